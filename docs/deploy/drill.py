"""Injects faults into a localnet, one after the other, and checks that an operator finds the cause of each: by the
alert that fires, the seat that it names, and the command of its runbook.

A part of docs/deploy/check. The alerts are those of prometheus/mettle.rules.yml in a real Prometheus. Two miners with
buckets of their own suffer the faults; all other seats stay healthy, and none of them may raise an alert. A validator
votes against the others from the beginning.
"""

import json
import os
import random
import re
import shutil
import signal
import socket
import subprocess
import tempfile
import threading
import time
import urllib.error
import urllib.request
from pathlib import Path

HERE = Path(__file__).resolve().parent
# Windows of the rules, and of this network.
TRAIN_BLOCKS, WINDOW_BLOCKS, BLOCK_SECONDS = 12, 24, 0.5
WINDOW_SECONDS = WINDOW_BLOCKS * BLOCK_SECONDS
# The rules are for windows of ten minutes and blocks of six seconds.
WINDOWS_FACTOR = 600 / WINDOW_SECONDS
BLOCKS_FACTOR = 6 / BLOCK_SECONDS
DISK_BYTES = 48 << 20
SECONDS_MAX = 560
UP_SECONDS_MAX = 180
ALERT_SECONDS_MAX = 100
DOCTOR_SECONDS_MAX = 180
CLOCK_OFF = "+2h"

# What a fault may raise on the seat that has it: the alert that names the cause, and what follows from it.
CHAIN_AWAY = {"MettleChainHeadOld", "MettleNotHealthy", "MettleWindowsMissed", "MettleIdle", "MettleModelBehind", "MettleUploadsFail"}
DISK_FULL = {"MettleDiskFull", "MettleDiskSpaceLow", "MettleNotHealthy", "MettleWindowsMissed", "MettleIdle", "MettleModelBehind"}
BUCKET_FAILS = {"MettleUploadsFail", "MettleWindowsMissed", "MettleIdle", "MettleModelBehind", "MettleNotHealthy"}
# Of the machine rather than of a seat: another program may fill the disk of all of them.
OF_THE_MACHINE = {"MettleDiskSpaceLow"}


class Failed(Exception):
    pass


def duration(seconds):
    return f"{max(1, round(seconds * 1000))}ms"


def shortened(rules):
    """The rules for windows and blocks of this network."""
    unit = {"m": 60, "h": 3600, "d": 86400}

    def scaled(match):
        return match[1] + duration(int(match[2]) * unit[match[3]] / WINDOWS_FACTOR)

    rules = re.sub(r"(for: |\[|offset )(\d+)([mhd])\b", scaled, rules)
    for long, short in [
        ("24 * 3600", f"{24 * 3600 / WINDOWS_FACTOR:.0f}"),
        ("> 86400", f"> {86400 / WINDOWS_FACTOR:.0f}"),
        ("mettle_head_age_seconds > 120", f"mettle_head_age_seconds > {120 / BLOCKS_FACTOR:.0f}"),
        ("mettle_disk_free_bytes < 5e9", f"mettle_disk_free_bytes < {DISK_BYTES // 16}"),
    ]:
        if rules.count(long) != 1:
            raise Failed(f"{long} is not in the rules once: shorten them anew")
        rules = rules.replace(long, short)
    return rules


def free_port():
    """Below the ports that the kernel hands out, so that no other program is given it before it is used."""
    for port in random.sample(range(20_000, 30_000), 100):
        with socket.socket() as listener:
            try:
                listener.bind(("127.0.0.1", port))
                return port
            except OSError:
                continue
    raise OSError("no port is free")


def get(url, seconds=10):
    try:
        with urllib.request.urlopen(url, timeout=seconds) as answer:
            return answer.read().decode()
    except urllib.error.HTTPError as error:
        # /health is 503 where it says why.
        return error.read().decode()


class Forwarder:
    """A TCP proxy, which refuses connections or falls silent on request."""

    def __init__(self, target):
        self.target, self.port, self.state, self.open = target, free_port(), "open", []
        self.listener = None
        threading.Thread(target=self.accept, daemon=True).start()

    def accept(self):
        while True:
            if self.state == "refusing":
                if self.listener:
                    self.listener.close()
                    self.listener = None
                for stream in self.open:
                    try:
                        stream.shutdown(socket.SHUT_RDWR)
                    except OSError:
                        pass
                self.open.clear()
                time.sleep(0.1)
                continue
            if not self.listener:
                self.listener = socket.create_server(("127.0.0.1", self.port), backlog=64)
                self.listener.settimeout(0.2)
            try:
                near, _ = self.listener.accept()
                near.settimeout(None)
                far = socket.create_connection(("127.0.0.1", self.target))
            except OSError:
                continue
            self.open += [near, far]
            for ends in ((near, far), (far, near)):
                threading.Thread(target=self.copy, args=ends, daemon=True).start()

    def copy(self, source, sink):
        try:
            while part := source.recv(1 << 16):
                while self.state == "silent":
                    time.sleep(0.1)
                sink.sendall(part)
        except OSError:
            pass
        for end in (source, sink):
            try:
                end.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass


class Seat:
    """A miner with a bucket of its own, as an operator runs it."""

    def __init__(self, drill, name, chain_port):
        self.drill, self.name, self.chain_port = drill, name, chain_port
        self.home = drill.directory / name
        self.settings = self.home / "settings.toml"
        self.metrics_port = free_port()
        self.process = None
        section = drill.tool("localnet", "store", "add", name, "--dir", drill.net)
        said = dict(re.findall(r'^(\w+) = "(.*)"$', section, re.MULTILINE))
        drill.tool(
            "mettle", "init", "miner", "--dir", self.home, "--chain", f"ws://127.0.0.1:{chain_port}", "--yes",
            "--password-file", drill.password, "--store", said["endpoint"], "--bucket", name, "--access-key",
            said["access_key"], "--secret-file", said["secret_key_file"], "--endpoint", f"{said['endpoint']}/{name}",
        )

    def start(self, before=(), environment=()):
        """Starts it, by `before` if something has to be in place."""
        command = [*before, self.drill.programs / "miner", "start", "--config", self.settings, "--with-parent"]
        metrics = {"METTLE_METRICS": f"127.0.0.1:{self.metrics_port}", "RAYON_NUM_THREADS": "1"}
        self.process = self.drill.start(self.name, command, {**metrics, **dict(environment)}, stdin=subprocess.PIPE)

    def metric(self, name):
        text = get(f"http://127.0.0.1:{self.metrics_port}/metrics")
        return float(re.search(rf"^{name} (\S+)$", text, re.MULTILINE)[1])

    def health(self):
        return json.loads(get(f"http://127.0.0.1:{self.metrics_port}/health"))

    def doctor(self, *flags, before=(), environment=()):
        """What `mettle doctor` says: by the name of each check its verdict, text and advice."""
        command = [*before, self.drill.programs / "mettle", "doctor", "--config", self.settings, "--json", *flags]
        said = subprocess.run([str(part) for part in command], capture_output=True, text=True, timeout=DOCTOR_SECONDS_MAX,
                              stdin=subprocess.DEVNULL, env={**os.environ, **dict(environment)})
        return {check["name"]: check for check in json.loads(said.stdout)["checks"]}


class Drill:
    """The network, its Prometheus, and what is told of them."""

    def __init__(self, directory, expect, programs, prometheus, faketime):
        self.directory, self.expect, self.programs = Path(directory), expect, programs
        self.prometheus, self.faketime = prometheus, faketime
        self.net = self.directory / "net"
        self.password = self.directory / "password"
        # Where the second seat has its disk; the time that it is told is off by what the file says.
        self.disk, self.offset = self.directory / "disk", self.directory / "offset"
        self.disk.mkdir()
        self.offset.write_text("+0\n")
        self.port = None
        self.processes = []
        self.began = time.monotonic()
        # By alert and seat: when it fired first. What the faults so far may raise.
        self.fired, self.allowed = {}, {}
        self.rows = []

    def left(self):
        return self.began + SECONDS_MAX - time.monotonic()

    def tool(self, program, *arguments):
        done = subprocess.run([str(part) for part in (self.programs / program, *arguments)], text=True, timeout=120,
                              capture_output=True, stdin=subprocess.DEVNULL)
        if done.returncode:
            raise Failed(f"{program} {arguments[0]}: {done.stdout}{done.stderr}")
        return done.stdout

    def start(self, name, command, environment=(), **options):
        with open(self.directory / f"{name}.log", "a") as log:
            process = subprocess.Popen([str(part) for part in command], env={**os.environ, **dict(environment)},
                                       cwd=self.directory, stdout=log, stderr=subprocess.STDOUT,
                                       **{"stdin": subprocess.DEVNULL, **options})
        self.processes.append(process)
        return process

    def stop(self):
        for process in reversed(self.processes):
            process.send_signal(signal.SIGTERM)
        for process in reversed(self.processes):
            try:
                process.wait(15)
            except subprocess.TimeoutExpired:
                process.kill()

    def wait(self, until, seconds, what):
        """Waits until `until` says so, and looks at the alerts meanwhile."""
        end = time.monotonic() + min(seconds, self.left())
        while True:
            self.look()
            try:
                if found := until():
                    return found
            except (OSError, ValueError, TypeError):
                pass
            if end < time.monotonic():
                raise Failed(f"after {seconds} s: {what}")
            time.sleep(0.5)

    def up(self):
        self.password.write_text("a long password\n")
        self.password.chmod(0o600)
        up = [self.programs / "localnet", "up", "--plain", "--dir", self.net, "--seats", "honest:1,validator:3,false-merge:1",
              "--train-blocks", TRAIN_BLOCKS, "--block-millis", int(BLOCK_SECONDS * 1000)]
        process = self.start("up", up, {"METTLE_METRICS": "127.0.0.1:0"})
        log = self.directory / "up.log"

        def is_up():
            if process.poll() is not None:
                raise Failed(f"localnet up: {log.read_text()}")
            return re.search(r"^page of the run: http://(\S+)/$", log.read_text(), re.MULTILINE)

        self.page = self.wait(is_up, UP_SECONDS_MAX, "localnet up shows no page")[1]
        plan = json.loads((self.net / "network.json").read_text())
        self.chain_port = plan["chain"]["embedded"]["port"]
        self.admin_port, self.token = plan["store_admin"]
        self.uids = {seat["name"]: seat["uid"] for seat in plan["seats"]}
        self.cheat = next(seat["uid"] for seat in plan["seats"] if seat["strategy"] == "false-merge")
        self.forwarder = Forwarder(self.chain_port)
        self.seats = [Seat(self, "by-forwarder", self.forwarder.port), Seat(self, "by-tmpfs", self.chain_port)]

    def watch(self):
        """Starts Prometheus on every node and on the page."""
        targets = [(seat.name, f"127.0.0.1:{seat.metrics_port}") for seat in self.seats]
        for name in self.uids:
            log = self.net / name / "log.txt"
            found = self.wait(lambda: re.findall(r"serving /metrics.* address=(\S+)", log.read_text()), 30, f"{name} has no metrics")
            targets.append((name, found[-1]))
        jobs = [("mettle", targets), ("mettle-run", [("page", self.page)])]
        (self.directory / "rules.yml").write_text(shortened((HERE / "prometheus/mettle.rules.yml").read_text()))
        # JSON is YAML.
        (self.directory / "prometheus.yml").write_text(json.dumps({
            "global": {"scrape_interval": "1s", "evaluation_interval": "1s"},
            "rule_files": ["rules.yml"],
            "scrape_configs": [
                {"job_name": job, "static_configs": [{"targets": [at], "labels": {"instance": name}} for name, at in of]}
                for job, of in jobs
            ],
        }))
        port = free_port()
        self.start("prometheus", [
            self.prometheus, f"--config.file={self.directory}/prometheus.yml", f"--web.listen-address=127.0.0.1:{port}",
            f"--storage.tsdb.path={self.directory}/tsdb",
        ])
        self.wait(lambda: "Ready" in get(f"http://127.0.0.1:{port}/-/ready"), 30, "Prometheus is not ready")
        self.port = port

    def firing(self):
        """The alerts that fire now, each with its seat: the name of the instance, or the uid that the alert accuses."""
        alerts = json.loads(get(f"http://127.0.0.1:{self.port}/api/v1/alerts"))["data"]["alerts"]
        of = [alert["labels"] for alert in alerts if alert["state"] == "firing"]
        return {(labels["alertname"], labels.get("uid") or labels["instance"]) for labels in of}

    def look(self):
        if self.port is None:
            return
        for alert in self.firing():
            self.fired.setdefault(alert, time.monotonic())

    def faked_clock(self):
        """The environment of a process whose clock is off by what the file says. Time-outs stay right."""
        if not self.faketime:
            return {}
        return {"LD_PRELOAD": str(self.faketime), "FAKETIME_TIMESTAMP_FILE": str(self.offset), "FAKETIME_NO_CACHE": "1",
                "FAKETIME_DONT_FAKE_MONOTONIC": "1"}

    def inject(self, bucket, query):
        url = f"http://127.0.0.1:{self.admin_port}/faults/{bucket}?{query}"
        request = urllib.request.Request(url, method="PUT", headers={"x-mettle-token": self.token})
        urllib.request.urlopen(request, timeout=10).close()

    def allow(self, seat, alerts):
        self.allowed.setdefault(seat, set()).update(alerts)

    def expect_alert(self, what, alert, seat, since):
        """Waits for the alert; remembers how many windows it took."""
        self.wait(lambda: (alert, seat) in self.firing(), ALERT_SECONDS_MAX, f"{what}: {alert} does not fire for {seat}")
        seconds = time.monotonic() - since
        self.expect(f"{what}: {alert} fires for {seat}", True)
        return seconds / WINDOW_SECONDS

    def tell(self, what, alert, seat, windows, found):
        self.rows.append(f"{what} | {alert} | {seat} | {windows:.1f} | {found}")
        print(f"{time.monotonic() - self.began:4.0f} s | {self.rows[-1]}", flush=True)

    def expect_says(self, what, check, verdict, words):
        said = f"{check['measured']} {check['advice']}"
        self.expect(f"{what}: {check['name']} is {verdict} and says {words}", check["verdict"] == verdict and words in said, str(check))
        return f"doctor: {check['name']}: {check['measured'][:90]}"


def settled(drill):
    """Waits until both miners deliver and nothing fires but the alert of the cheating validator."""
    def is_so():
        calm = all(seat in drill.allowed for _, seat in drill.firing())
        return calm and all(seat.metric("mettle_uploads_total") >= 2 for seat in drill.seats)

    drill.wait(is_so, 150, "the network does not settle")


def cheat(drill):
    what, seat, since = "a validator votes for another merge", str(drill.cheat), drill.watched
    drill.allow(seat, {"MettleMinorityVotes"})
    windows = drill.expect_alert(what, "MettleMinorityVotes", seat, since)
    rows = json.loads(get(f"http://{drill.page}/api/overview"))
    window = rows["windows"][1] - 1
    why = drill.tool("mettle", "why", "--chain", f"ws://127.0.0.1:{drill.chain_port}", "--uid", seat, "--window", window)
    drill.expect(f"{what}: mettle why names the vote", "for another update than two thirds" in " ".join(why.split()), why)
    drill.tell(what, "MettleMinorityVotes", f"uid {seat}", windows, f"why --uid {seat} --window {window}: for another update than two thirds of the stake")


def chain_away(drill, state, words):
    seat = drill.seats[0]
    what = f"the chain's RPC is {state}"
    drill.allow(seat.name, CHAIN_AWAY)
    drill.wait(lambda: ("MettleChainHeadOld", seat.name) not in drill.firing(), 60, f"{what}: the alert of before goes on")
    since = time.monotonic()
    drill.forwarder.state = state
    windows = drill.expect_alert(what, "MettleChainHeadOld", seat.name, since)
    found = drill.expect_says(what, seat.doctor()["chain"], "failed", words)
    other = seat.doctor("--chain", f"ws://127.0.0.1:{drill.chain_port}")
    drill.expect(f"{what}: another URL is well", other["head"]["verdict"] == "ok", str(other))
    drill.forwarder.state = "open"
    delivered = seat.metric("mettle_uploads_total")
    drill.wait(lambda: seat.metric("mettle_uploads_total") > delivered, 60, f"{what}: the seat does not resume")
    drill.tell(what, "MettleChainHeadOld", seat.name, windows, found)


def disk_full(drill):
    seat, what = drill.seats[1], "the disk is full"
    drill.allow(seat.name, DISK_FULL)
    pid = seat.process.pid
    fill = Path(f"/proc/{pid}/root{drill.disk}/of-another-program")
    since = time.monotonic()
    try:
        with open(fill, "wb", buffering=0) as file:
            while True:
                file.write(bytes(1 << 16))
    except OSError:
        pass
    windows = drill.expect_alert(what, "MettleDiskFull", seat.name, since)
    error = seat.health()["last_error"]
    drill.expect(f"{what}: /health names the file", "disk is full" in error and str(drill.disk) in error, error)
    before = ["nsenter", f"--mount=/proc/{pid}/ns/mnt"]
    found = drill.expect_says(what, seat.doctor(before=before)["disk"], "failed", "make room")
    fill.unlink()
    delivered = seat.metric("mettle_uploads_total")
    drill.wait(lambda: seat.metric("mettle_uploads_total") > delivered, 60, f"{what}: the seat does not resume")
    drill.tell(what, "MettleDiskFull", seat.name, windows, found)


def bucket_slow(drill):
    seat, what = drill.seats[0], "the bucket is slow"
    drill.allow(seat.name, BUCKET_FAILS)
    drill.wait(lambda: ("MettleUploadsFail", seat.name) not in drill.firing(), 150, f"{what}: the alert of before goes on")
    since = time.monotonic()
    drill.inject(seat.name, "delay_max_ms=20000")
    windows = drill.expect_alert(what, "MettleUploadsFail", seat.name, since)
    error = seat.health()["last_error"]
    drill.expect(f"{what}: /health says so", "after the reveal deadline" in error and "slow" in error, error)
    found = drill.expect_says(what, seat.doctor()["uplink"], "failed", "nearer to this machine")
    drill.inject(seat.name, "")
    drill.tell(what, "MettleUploadsFail", seat.name, windows, found)


def bucket_clock(drill):
    """Of its objects' times only: no rule reads them."""
    seat, what = drill.seats[1], "the bucket's times are wrong"
    since, delivered, before = time.monotonic(), seat.metric("mettle_uploads_total"), drill.firing()
    drill.inject(seat.name, "clock_skew_seconds=-31536000")
    drill.wait(lambda: seat.metric("mettle_uploads_total") >= delivered + 2, 60, f"{what}: the seat delivers nothing")
    new = drill.firing() - before
    drill.expect(f"{what}: no alert", not new, str(new))
    drill.inject(seat.name, "")
    drill.tell(what, "none", seat.name, (time.monotonic() - since) / WINDOW_SECONDS, "harmless: no rule reads them")


def clock_off(drill):
    seat, what = drill.seats[1], "the machine's clock is wrong"
    drill.allow(seat.name, BUCKET_FAILS)
    since = time.monotonic()
    drill.offset.write_text(f"{CLOCK_OFF}\n")
    windows = drill.expect_alert(what, "MettleUploadsFail", seat.name, since)
    error = seat.health()["last_error"]
    drill.expect(f"{what}: /health names the clock", "the clock of this machine" in error, error)
    before = ["nsenter", f"--mount=/proc/{seat.process.pid}/ns/mnt"]
    found = drill.expect_says(what, seat.doctor(before=before, environment=drill.faked_clock())["bucket"], "failed", "clocks")
    drill.offset.write_text("+0\n")
    delivered = seat.metric("mettle_uploads_total")
    drill.wait(lambda: seat.metric("mettle_uploads_total") > delivered, 60, f"{what}: the seat does not resume")
    drill.tell(what, "MettleUploadsFail", seat.name, windows, found)


def healthy(drill):
    """No alert but those of the seats that had a fault, and of those only the ones that it may raise."""
    for (alert, seat), at in sorted(drill.fired.items()):
        is_allowed = alert in drill.allowed.get(seat, set()) | OF_THE_MACHINE
        drill.expect(f"{alert} fires for {seat}, {at - drill.began:.0f} s after the start", is_allowed)
    others = {seat for alert, seat in drill.fired if alert not in OF_THE_MACHINE} - drill.allowed.keys()
    drill.expect("the seats without a fault raise nothing", not others, ", ".join(sorted(others)))


def play(expect, programs, prometheus, faketime):
    """Plays all faults. `faketime` is the library that fakes the clock; without it, that fault is left out."""
    with tempfile.TemporaryDirectory(prefix="mettle-drill-") as directory:
        drill = Drill(directory, expect, programs, prometheus, faketime)
        try:
            drill.up()
            first, second = drill.seats
            first.start()
            # A disk of its own, in a mount namespace: the directory of the node is on it.
            text = second.settings.read_text()
            second.settings.write_text(re.sub(r'^directory = ".*"$', f'directory = "{drill.disk}/data"', text, flags=re.MULTILINE))
            mount = f'mount -t tmpfs -o size={DISK_BYTES} none {drill.disk} && exec "$@"'
            second.start(["unshare", "--mount", "sh", "-c", mount, "-"], drill.faked_clock())
            drill.watched = time.monotonic()
            drill.watch()
            cheat(drill)
            settled(drill)
            chain_away(drill, "refusing", "Connection refused")
            chain_away(drill, "silent", "no answer")
            disk_full(drill)
            bucket_clock(drill)
            bucket_slow(drill)
            if faketime:
                clock_off(drill)
            else:
                print("libfaketime is not installed: the clock of a machine was not moved")
            drill.look()
            healthy(drill)
        except BaseException as failed:
            kept = Path(tempfile.mkdtemp(prefix="mettle-drill-kept-"))
            for log in (*drill.directory.glob("*.log"), *drill.net.glob("*/log.txt")):
                shutil.copy(log, kept / str(log.relative_to(drill.directory)).replace("/", "-"))
            print(f"its logs are in {kept}")
            if not isinstance(failed, Failed):
                raise
            expect(str(failed), False, "\n".join(f"{alert} {seat}" for alert, seat in sorted(drill.fired)))
        finally:
            drill.stop()
        print(f"{len(drill.rows)} faults in {time.monotonic() - drill.began:.0f} s")
