// Exports accounts as polkadot-js does, with the password `a password`: SCHEME.json in DIRECTORY for each scheme. The
// files chain/client/tests/data/polkadot-js-SCHEME.json were made so. See README.md.
//
//     node export.mjs DIRECTORY

import { writeFileSync } from 'node:fs';
import { Keyring } from '@polkadot/keyring';
import { cryptoWaitReady } from '@polkadot/util-crypto';

export const PHRASE = 'bottom drive obey lake curtain smoke basket hold race lonely fit walk';
export const ACCOUNTS = [['sr25519', '//mettle//coldkey'], ['ed25519', '//mettle']];

if (process.argv[1].endsWith('export.mjs')) {
  await cryptoWaitReady();
  for (const [type, path] of ACCOUNTS) {
    const pair = new Keyring({ type }).addFromUri(PHRASE + path, { name: 'test' });
    writeFileSync(`${process.argv[2]}/${type}.json`, `${JSON.stringify(pair.toJson('a password'))}\n`);
    console.log(`${type} ${pair.address}`);
  }
}
