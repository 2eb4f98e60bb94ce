// Tests unmodified polkadot-js against a Mettle chain: connect, read storage, register a seat, follow the transaction
// to finality, decode events and errors. See README.md.
//
//     node check.mjs ws://127.0.0.1:9944 RUN

import { strict as assert } from 'node:assert';
import { randomBytes } from 'node:crypto';
import { merkleizeMetadata } from '@polkadot-api/merkleize-metadata';
import { ApiPromise, Keyring, WsProvider } from '@polkadot/api';

const MTL = 10n ** 12n;
const STAKE = 10n * MTL;

const [url, run] = process.argv.slice(2);
assert(url?.startsWith('ws') && /^\d+$/.test(run ?? ''), 'usage: node check.mjs ws://HOST:PORT RUN');

const mtl = (amount) => `${Number(amount.toBigInt()) / Number(MTL)} MTL`;

let passed = 0;
function done(what) {
  passed += 1;
  console.log(`polkadot-js ... ${what}`);
}

function fail(error) {
  console.error(error);
  console.log(`polkadot-js: ${passed} passed, 1 failed`);
  process.exit(1);
}

/** Follows a transaction to finality. Returns its statuses, block, events, and dispatch error. */
function untilFinal(api, call, signer, options = {}) {
  return new Promise((resolve, reject) => {
    const steps = [];
    call
      .signAndSend(signer, options, (result) => {
        steps.push(result.status.type);
        if (result.isError) {
          reject(new Error(`the transaction failed: ${steps.join(', ')}`));
        } else if (result.status.isFinalized) {
          const refusal = result.dispatchError?.isModule ? api.registry.findMetaError(result.dispatchError.asModule) : undefined;
          resolve({ steps, block: result.status.asFinalized, events: result.events, refusal, failed: result.dispatchError });
        }
      })
      .catch(reject);
  });
}

/** The fields, by name, of the first event with this name. */
function eventOf(events, section, method) {
  const found = events.map(({ event }) => event).find((event) => event.section === section && event.method === method);
  assert(found, `${section}.${method} is not among ${events.map(({ event }) => `${event.section}.${event.method}`)}`);
  return Object.fromEntries(found.data.names.map((name, index) => [name, found.data[index]]));
}

async function main() {
  const api = await ApiPromise.create({ provider: new WsProvider(url, 500), noInitWarn: true });
  const { specName, specVersion } = api.runtimeVersion;
  assert.equal(specName.toString(), 'mettle');
  assert.equal(api.registry.chainDecimals[0], 12);
  assert.equal(api.registry.chainTokens[0], 'MTL');
  done(`connected to ${await api.rpc.system.chain()}, ${specName} ${specVersion}`);

  const bob = new Keyring({ type: 'sr25519' }).addFromUri('//Bob');
  const account = async (at = api) => (await at.query.system.account(bob.address)).data;
  const before = await account();
  assert(before.free.toBigInt() > 2n * STAKE, 'the development account //Bob cannot afford the stake');
  const runs = (await api.query.registry.runCount()).toNumber();
  assert(Number(run) < runs, `there is no run ${run} among ${runs}`);
  done(`read storage: //Bob has ${mtl(before.free)}, there are ${runs} runs`);

  // A new hotkey for each run, so that the test can be repeated.
  const hotkey = new Keyring({ type: 'ed25519' }).addFromSeed(randomBytes(32));
  // The hotkey's consent to hold a seat of the run for //Bob on this chain.
  const runBytes = Buffer.alloc(4);
  runBytes.writeUInt32LE(Number(run));
  const consent = Buffer.concat([Buffer.from('mettle/2/hotkey\0'), api.genesisHash.toU8a(), runBytes, bob.publicKey]);
  const proof = hotkey.sign(consent);
  // Read the call's fields from the metadata, as a wallet does, so that an unknown field fails here.
  const endpoint = 'http://127.0.0.1:9000/miner';
  const fields = { run, role: 'Miner', hotkey: hotkey.address, endpoint, stake: STAKE, priceMax: STAKE, proof };
  const names = api.tx.registry.register.meta.args.map(({ name }) => name.toString());
  assert(names.every((name) => name in fields), `the call has fields ${names}`);
  const register = () => api.tx.registry.register(...names.map((name) => fields[name]));
  const fee = (await register().paymentInfo(bob)).partialFee;
  assert(fee.toBigInt() > 0n);
  done(`estimated the fee: ${mtl(fee)}`);

  // Follow the transaction in two ways: by its status, and by the finalised blocks.
  const heads = [];
  const stop = await api.rpc.chain.subscribeFinalizedHeads((head) => heads.push(head));
  const { steps, block, events, failed } = await untilFinal(api, register(), bob);
  assert(!failed, `registering failed: ${failed}`);
  // With immediate finality, the status before `Finalized` may be missing.
  assert.equal(steps.at(-1), 'Finalized');
  eventOf(events, 'system', 'ExtrinsicSuccess');
  const seat = eventOf(events, 'registry', 'Registered');
  assert.equal(seat.run.toString(), run);
  assert.equal(seat.role.type, 'Miner');
  assert.equal(seat.hotkey.toString(), api.createType('AccountId', hotkey.publicKey).toString());
  assert.equal(seat.coldkey.toString(), bob.address);
  done(`registered a seat (${steps.join(', ')}): uid ${seat.uid}, block ${block}`);

  const number = (await api.rpc.chain.getHeader(block)).number.toNumber();
  while (!heads.some((head) => head.number.toNumber() >= number)) {
    await new Promise((resolve) => setTimeout(resolve, 50));
  }
  stop();
  const numbers = heads.map((head) => head.number.toNumber());
  assert(numbers.every((each, index) => index === 0 || each === numbers[index - 1] + 1), `gaps: ${numbers}`);
  const at = await api.at(block);
  const registered = eventOf([...(await at.query.system.events())], 'registry', 'Registered');
  assert.equal(registered.coldkey.toString(), bob.address);
  const signed = (await api.rpc.chain.getBlock(block)).block.extrinsics.filter(({ isSigned }) => isSigned);
  assert(signed.some(({ method }) => `${method.section}.${method.method}` === 'registry.register'));
  done(`followed the finalised blocks ${numbers[0]} to ${numbers.at(-1)}, and read the events and calls of block ${number}`);

  const after = await account(at);
  assert.equal(after.reserved.toBigInt() - before.reserved.toBigInt(), STAKE);
  assert(before.free.toBigInt() - after.free.toBigInt() > STAKE, 'a fee was paid');
  done(`the stake is held: ${mtl(after.reserved)}`);

  const again = await untilFinal(api, register(), bob);
  assert(again.failed && again.refusal?.section === 'registry', `the chain did not refuse it: ${again.failed}`);
  done(`a second seat for the same hotkey is refused: ${again.refusal.section}.${again.refusal.name}`);

  // As the wallet of a Ledger does, which shows a call by parts of the metadata (RFC 78).
  const metadata = (await api.call.metadata.metadataAtVersion(15)).unwrap().toHex();
  const digest = merkleizeMetadata(metadata, { decimals: 12, tokenSymbol: 'MTL' }).digest();
  const remark = () => api.tx.system.remark('0x00');
  const proving = (bytes) => ({ mode: 1, metadataHash: `0x${Buffer.from(bytes).toString('hex')}` });
  const proven = await untilFinal(api, remark(), bob, proving(digest));
  assert(!proven.failed, `a transaction with the digest of the metadata failed: ${proven.failed}`);
  await assert.rejects(untilFinal(api, remark(), bob, proving(digest.map((byte) => byte ^ 1))), /bad signature/);
  done('signed with the digest of the metadata; another digest is refused');

  await api.disconnect();
  console.log(`polkadot-js: ${passed} passed, 0 failed`);
  process.exit(0);
}

setTimeout(() => fail(new Error('timeout after 5 minutes')), 300_000);
main().catch(fail);
