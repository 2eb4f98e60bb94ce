"""Tests unmodified substrate-interface against a Mettle chain: connect, read storage, register a seat, follow the
transaction to finality, decode events and errors. See README.md.

    python check.py ws://127.0.0.1:9944 RUN
"""

import signal
import sys
import threading
import traceback

from substrateinterface import Keypair, KeypairType, SubstrateInterface

MTL = 10**12
STAKE = 10 * MTL


class Checks:
    def __init__(self):
        self.passed = 0

    def done(self, what):
        self.passed += 1
        print(f"substrate-interface ... {what}", flush=True)


def name_of(event):
    return f"{event.value['module_id']}.{event.value['event_id']}"


def fields_of(events, name):
    """The fields of the first event with this name."""
    for event in events:
        if name_of(event) == name:
            return event.value["attributes"]
    raise AssertionError(f"{name} is not among {[name_of(event) for event in events]}")


class Follower(threading.Thread):
    """Follows the finalised blocks on a separate connection."""

    def __init__(self, url):
        super().__init__(daemon=True)
        self.url = url
        self.numbers = []
        self.changed = threading.Condition()
        self.start()

    def run(self):
        def handler(header, update_nr, subscription_id):
            with self.changed:
                self.numbers.append(header["header"]["number"])
                self.changed.notify()

        SubstrateInterface(url=self.url).subscribe_block_headers(handler, finalized_only=True)

    def until(self, number):
        """Waits for the block `number`; returns the numbers of all blocks received."""
        with self.changed:
            received = self.changed.wait_for(lambda: self.numbers and self.numbers[-1] >= number, timeout=240)
            assert received, f"block {number} is not among {self.numbers}"
            return list(self.numbers)


def check(url, run, checks):
    chain = SubstrateInterface(url=url)
    assert chain.token_symbol == "MTL" and chain.token_decimals == 12, (chain.token_symbol, chain.token_decimals)
    chain.init_runtime()
    version = chain.get_constant("System", "Version").value
    assert version["spec_name"] == "mettle", version
    checks.done(f"connected to {chain.chain}, {version['spec_name']} {version['spec_version']}")

    charlie = Keypair.create_from_uri("//Charlie")

    def account(at=None):
        return chain.query("System", "Account", [charlie.ss58_address], block_hash=at).value["data"]

    before = account()
    assert before["free"] > 2 * STAKE, "the development account //Charlie cannot afford the stake"
    runs = chain.query("Registry", "RunCount").value
    assert run < runs, f"there is no run {run} among {runs}"
    checks.done(f"read storage: //Charlie has {before['free'] / MTL} MTL, there are {runs} runs")

    # A new hotkey for each run, so that the test can be repeated.
    hotkey = Keypair.create_from_mnemonic(Keypair.generate_mnemonic(), crypto_type=KeypairType.ED25519)
    # The hotkey's consent to hold a seat of the run for //Charlie on this chain.
    genesis = bytes.fromhex(chain.get_block_hash(0).removeprefix("0x"))
    proof = hotkey.sign(b"mettle/2/hotkey\0" + genesis + run.to_bytes(4, "little") + charlie.public_key)
    call = chain.compose_call(
        call_module="Registry",
        call_function="register",
        call_params={
            "run": run,
            "role": "Miner",
            "hotkey": hotkey.ss58_address,
            "endpoint": "http://127.0.0.1:9000/miner",
            "stake": STAKE,
            "price_max": STAKE,
            "proof": "0x" + proof.hex(),
        },
    )
    fee = chain.get_payment_info(call=call, keypair=charlie)["partialFee"]
    assert fee > 0
    checks.done(f"estimated the fee: {fee / MTL} MTL")

    # Follow the transaction in two ways: by its receipt, and by the finalised blocks.
    follower = Follower(url)
    follower.until(0)
    extrinsic = chain.create_signed_extrinsic(call=call, keypair=charlie)
    receipt = chain.submit_extrinsic(extrinsic, wait_for_finalization=True)
    assert receipt.finalized and receipt.is_success, receipt.error_message
    seat = fields_of(receipt.triggered_events, "Registry.Registered")
    assert (seat["run"], seat["role"], seat["stake"]) == (run, "Miner", STAKE), seat
    assert (seat["hotkey"], seat["coldkey"]) == (hotkey.ss58_address, charlie.ss58_address), seat
    fields_of(receipt.triggered_events, "System.ExtrinsicSuccess")
    checks.done(f"registered a seat: uid {seat['uid']}, block {receipt.block_hash}")

    number = chain.get_block_number(receipt.block_hash)
    heads = follower.until(number)
    assert number in heads and heads == list(range(heads[0], heads[-1] + 1)), f"{number} is missing, or gaps in {heads}"
    registered = fields_of(chain.get_events(receipt.block_hash), "Registry.Registered")
    assert registered["coldkey"] == charlie.ss58_address, registered
    calls = [call.value["call"] for call in chain.get_block(block_hash=receipt.block_hash)["extrinsics"]]
    names = [f"{call['call_module']}.{call['call_function']}" for call in calls]
    assert "Registry.register" in names, names
    checks.done(f"followed the finalised blocks {heads[0]} to {heads[-1]}, and read the events and calls of block {number}")

    after = account(receipt.block_hash)
    assert after["reserved"] - before["reserved"] == STAKE, (before, after)
    assert before["free"] - after["free"] > STAKE, "a fee was paid"
    checks.done(f"the stake is held: {after['reserved'] / MTL} MTL")

    extrinsic = chain.create_signed_extrinsic(call=call, keypair=charlie)
    again = chain.submit_extrinsic(extrinsic, wait_for_finalization=True)
    assert not again.is_success and again.error_message["type"] == "Module", again.error_message
    checks.done(f"a second seat for the same hotkey is refused: {again.error_message['name']}")
    chain.close()


def main():
    if len(sys.argv) != 3 or not sys.argv[1].startswith("ws") or not sys.argv[2].isdigit():
        sys.exit("usage: python check.py ws://HOST:PORT RUN")

    def time_out(*_):
        raise TimeoutError("timeout after 5 minutes")

    signal.signal(signal.SIGALRM, time_out)
    signal.alarm(300)
    checks = Checks()
    try:
        check(sys.argv[1], int(sys.argv[2]), checks)
    except Exception:
        traceback.print_exc()
        print(f"substrate-interface: {checks.passed} passed, 1 failed", flush=True)
        sys.exit(1)
    print(f"substrate-interface: {checks.passed} passed, 0 failed", flush=True)


main()
