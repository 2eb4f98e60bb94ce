// Signs what `mettle … --sign-elsewhere FILE` wrote, as the browser extension does, and prints a signature per line. The
// key is the sr25519 account of export.mjs.
//
//     node sign.mjs ws://127.0.0.1:9944 FILE

import { readFileSync } from 'node:fs';
import { ApiPromise, Keyring, WsProvider } from '@polkadot/api';
import { cryptoWaitReady } from '@polkadot/util-crypto';
import { ACCOUNTS, PHRASE } from './export.mjs';

const [url, file] = process.argv.slice(2);
await cryptoWaitReady();
const api = await ApiPromise.create({ provider: new WsProvider(url, 500), noInitWarn: true });
const [type, path] = ACCOUNTS[0];
const pair = new Keyring({ type }).addFromUri(PHRASE + path);
for (const payload of JSON.parse(readFileSync(file, 'utf8'))) {
  const { signature } = api.registry.createType('ExtrinsicPayload', payload, { version: payload.version }).sign(pair);
  console.log(signature);
}
await api.disconnect();
