"""Writes points into trackers, each by its own package, and reads back which are there.

What a tracker holds is the only record of what was exported: an export writes the difference. So it may be repeated, be
killed at any point, and be continued by another process.
"""

from __future__ import annotations

import hashlib
import json
import os
import struct
import time
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from series import Identity, Place, Points, Series

BATCH = 1000


class Tracker(ABC):
    """One run in a tracker."""

    present: Points

    @abstractmethod
    def __init__(self, out: str, project: str, identity: Identity) -> None:
        """Opens the run where it is, or begins it, and reads which points are there."""

    def stored(self, value: float) -> float:
        """What the tracker makes of a value."""
        return value

    def update(self, series: Series) -> int:
        """Writes what is not there yet. Returns the number of points that were new or had another value."""
        new = {place: value for place, value in series.points.items() if self.present.get(place) != self.stored(value)}
        self.write(new, series)
        self.present.update((place, self.stored(value)) for place, value in new.items())
        return len(new)

    @abstractmethod
    def write(self, new: Points, series: Series) -> None:
        """Writes points, and settings and state where they differ from those there."""

    @abstractmethod
    def close(self) -> None:
        """Everything is on the disk after this."""

    def note(self) -> str:
        """What a user should know, after an export."""
        return ""


def rows(points: Points) -> Iterator[tuple[int, dict[str, float]]]:
    """Points by window, in order."""
    by_window: dict[int, dict[str, float]] = {}
    for place in sorted(points):
        by_window.setdefault(place.window, {})[place.metric] = points[place]
    yield from sorted(by_window.items())


def chunks(things: Iterable[Any], size: int) -> Iterator[list[Any]]:
    left = list(things)
    for begin in range(0, len(left), size):
        yield left[begin : begin + size]


class TensorBoard(Tracker):
    """A folder of event files. Values are 32 bits wide there."""

    def __init__(self, out: str, project: str, identity: Identity) -> None:
        from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

        self.directory = Path(out) / identity.name
        self.writer: Any = None
        self.text = ""
        self.present = {}
        if any(self.directory.glob("events.out.tfevents.*")):
            read = EventAccumulator(str(self.directory), size_guidance={"scalars": 0, "tensors": 0})
            read.Reload()
            for metric in read.Tags()["scalars"]:
                for event in read.Scalars(metric):
                    self.present[Place(metric, event.step)] = event.value
            if "mettle/text_summary" in read.Tags()["tensors"]:
                last = read.Tensors("mettle/text_summary")[-1]
                self.text = last.tensor_proto.string_val[0].decode("utf-8", "replace")

    def stored(self, value: float) -> float:
        try:
            return float(struct.unpack("f", struct.pack("f", value))[0])
        except OverflowError:
            return float("inf") if 0 < value else float("-inf")

    def write(self, new: Points, series: Series) -> None:
        from tensorboard.compat.proto import event_pb2, summary_pb2, tensor_pb2, types_pb2
        from tensorboard.summary.writer.event_file_writer import EventFileWriter

        known = {**series.settings, **series.state}
        text = "| | |\n|---|---|\n" + "".join(f"| {name} | {str(value).replace('|', ' ')} |\n" for name, value in known.items())
        if not new and text == self.text:
            return
        if self.writer is None:
            # Files are read in the order of their names, which begin with the second.
            while any(self.directory.glob(f"events.out.tfevents.{int(time.time()):010}.*")):
                time.sleep(0.05)
            self.writer = EventFileWriter(str(self.directory))
        latest: dict[str, int] = {}
        for place in self.present:
            latest[place.metric] = max(place.window, latest.get(place.metric, 0))
        # Where a value is replaced or comes late, the log goes back to that window, as that of a trainer which went on
        # from an older checkpoint: readers drop what they have from there on, and everything is written again.
        late = [place.window for place in new if place.window <= latest.get(place.metric, -1)]
        if late:
            back_to = min(late)
            start = event_pb2.SessionLog(status=event_pb2.SessionLog.START)
            self.writer.add_event(event_pb2.Event(wall_time=time.time(), step=back_to, session_log=start))
            # Also what this export does not know: an earlier one may have been given more facts.
            everything = {**self.present, **series.points}
            new = {place: value for place, value in everything.items() if back_to <= place.window or place in new}
        for window, row in rows(new):
            values = [summary_pb2.Summary.Value(tag=metric, simple_value=self.stored(value)) for metric, value in row.items()]
            event = event_pb2.Event(wall_time=time.time(), step=window, summary=summary_pb2.Summary(value=values))
            self.writer.add_event(event)
        if late or text != self.text:
            plugin = summary_pb2.SummaryMetadata.PluginData(plugin_name="text")
            value = summary_pb2.Summary.Value(
                tag="mettle/text_summary",
                metadata=summary_pb2.SummaryMetadata(plugin_data=plugin),
                tensor=tensor_pb2.TensorProto(dtype=types_pb2.DT_STRING, string_val=[text.encode()]),
            )
            step = int(series.state.get("held_window", 0))
            summary = summary_pb2.Summary(value=[value])
            self.writer.add_event(event_pb2.Event(wall_time=time.time(), step=step, summary=summary))
            self.text = text
        self.writer.flush()

    def close(self) -> None:
        if self.writer is not None:
            self.writer.close()

    def note(self) -> str:
        return f"tensorboard --logdir {self.directory.parent}"


class MLflow(Tracker):
    """A run of an experiment, on a server or in a database."""

    def __init__(self, out: str, project: str, identity: Identity) -> None:
        from mlflow.tracking import MlflowClient

        if "://" in out:
            self.uri = out
        else:
            Path(out).mkdir(parents=True, exist_ok=True)
            self.uri = f"sqlite:///{Path(out).resolve() / 'mlflow.db'}"
        self.client = MlflowClient(tracking_uri=self.uri)
        experiment = self.client.get_experiment_by_name(project)
        number = experiment.experiment_id if experiment else self.client.create_experiment(project)
        found = self.client.search_runs([number], f"tags.`mettle.id` = '{identity.id}'", max_results=1)
        run = found[0] if found else self.client.create_run(number, run_name=identity.name, tags={"mettle.id": identity.id})
        self.run = run.info.run_id
        self.client.update_run(self.run, status="RUNNING")
        self.settings, self.state = dict(run.data.params), dict(run.data.tags)
        self.present = {
            Place(metric, point.step): point.value
            for metric in run.data.metrics
            # Of several values for a window the latest counts.
            for point in sorted(self.client.get_metric_history(self.run, metric), key=lambda point: point.timestamp)
        }

    def write(self, new: Points, series: Series) -> None:
        from mlflow.entities import Metric, Param, RunTag

        now = int(time.time() * 1000)
        metrics = [Metric(metric, value, now, window) for window, row in rows(new) for metric, value in row.items()]
        for batch in chunks(metrics, BATCH):
            self.client.log_batch(self.run, metrics=batch)
        # A parameter cannot be changed; what does not change is written once.
        params = {name: str(value) for name, value in series.settings.items() if name not in self.settings}
        tags = {f"mettle.{name}": str(value) for name, value in series.state.items()}
        tags = {name: value for name, value in tags.items() if self.state.get(name) != value}
        for batch in chunks(params.items(), 100):
            self.client.log_batch(self.run, params=[Param(*param) for param in batch])
        for batch in chunks(tags.items(), 100):
            self.client.log_batch(self.run, tags=[RunTag(*tag) for tag in batch])
        self.settings.update(params)
        self.state.update(tags)

    def close(self) -> None:
        self.client.set_terminated(self.run)

    def note(self) -> str:
        return f"mlflow ui --backend-store-uri {self.uri}" if self.uri.startswith("sqlite:") else self.uri


class WeightsAndBiases(Tracker):
    """An offline run, in a folder that `wandb sync` uploads. Each export that has something new is a folder of its own,
    of the same run."""

    def __init__(self, out: str, project: str, identity: Identity) -> None:
        self.out, self.project, self.identity = Path(out), project, identity
        self.run: Any = None
        self.known: dict[str, object] = {}
        self.present = {}
        for file in sorted(self.out.glob(f"wandb/offline-run-*-{identity.id}/run-{identity.id}.wandb")):
            self._read(file)

    def _read(self, file: Path) -> None:
        from google.protobuf.message import DecodeError
        from wandb.proto.wandb_internal_pb2 import Record

        for data in records(file.read_bytes()):
            try:
                record = Record.FromString(data)
            except DecodeError:
                # Damaged: W&B does not read on either. What follows is written again, into another folder.
                return
            if record.HasField("summary"):
                self.known.update(values(record.summary.update))
            if record.HasField("config"):
                self.known.update(values(record.config.update))
            if record.HasField("run"):
                self.known.update(values(record.run.config.update))
            row = values(record.history.item) if record.HasField("history") else {}
            window = row.pop("window", None)
            if isinstance(window, int):
                for metric, value in row.items():
                    if not metric.startswith("_") and isinstance(value, (int, float)):
                        self.present[Place(metric, window)] = float(value)

    def write(self, new: Points, series: Series) -> None:
        known = {**series.settings, **{f"mettle.{name}": value for name, value in series.state.items()}}
        changed = {name: value for name, value in known.items() if self.known.get(name) != value}
        if not new and not changed:
            return
        if self.run is None:
            self._start()
        for window, row in rows(new):
            self.run.log({"window": window, **row})
        self.run.config.update({name: changed[name] for name in series.settings if name in changed}, allow_val_change=True)
        self.run.summary.update({name: value for name, value in changed.items() if name.startswith("mettle.")})
        self.known.update(changed)

    def _start(self) -> None:
        import wandb

        self.out.mkdir(parents=True, exist_ok=True)
        quiet = {"x_disable_stats": True, "x_disable_meta": True, "disable_git": True, "disable_code": True, "silent": True}
        self.run = wandb.init(
            project=self.project, id=self.identity.id, name=self.identity.name, dir=str(self.out), mode="offline",
            resume="allow", reinit="create_new", settings=wandb.Settings(console="off", **quiet),
        )
        self.run.define_metric("window")
        self.run.define_metric("*", step_metric="window")

    def close(self) -> None:
        if self.run is not None:
            self.run.finish()

    def note(self) -> str:
        return f"wandb sync {self.out / 'wandb'}/offline-run-*-{self.identity.id}"


def values(entries: Any) -> dict[str, object]:
    """Keys and values of W&B's records."""
    return {entry.key or ".".join(entry.nested_key): json.loads(entry.value_json) for entry in entries}


def records(data: bytes) -> Iterator[bytes]:
    """The records of an offline file of W&B, which is a log of LevelDB behind a head of seven bytes: blocks of 32 KiB,
    in them parts with checksum, length and type (1 whole, 2 first, 3 middle, 4 last). W&B's package has had no reader
    of its own since 0.30. What a kill left of a record is passed over."""
    at, record = 7, b""
    while at + 7 <= len(data):
        left = 32768 - at % 32768
        length, kind = struct.unpack_from("<HB", data, at + 4)
        if left < 7 or kind == 0:
            at += left
            continue
        part = data[at + 7 : at + 7 + length]
        if len(part) < length:
            return
        record = part if kind in (1, 2) else record + part
        if kind in (1, 4):
            yield record
        at += 7 + length


class Trackio(Tracker):
    """A run of a project in trackio's database."""

    def __init__(self, out: str, project: str, identity: Identity) -> None:
        os.environ["TRACKIO_DIR"] = str(Path(out).resolve())
        import trackio

        self.storage: Any = trackio.SQLiteStorage
        self.project, self.identity = project, identity
        self.present = {}
        for row in self.storage.get_logs(project, run=identity.name, run_id=identity.id):
            for metric, value in row.items():
                if metric.startswith("mettle_") and isinstance(value, (int, float)):
                    self.present[Place(metric, int(row["step"]))] = float(value)

    def write(self, new: Points, series: Series) -> None:
        config = {**series.settings, **{f"mettle.{name}": value for name, value in series.state.items()}}
        logged = list(rows(new))
        # A row of a name that is there already is not written again, should two processes export the same.
        names = []
        for window, row in logged:
            before = [self.present.get(Place(metric, window)) for metric in row]
            names.append(hashlib.sha256(json.dumps([self.identity.id, window, row, before]).encode()).hexdigest())
        # Without a row, trackio does not write the settings either.
        self.storage.bulk_log(
            self.project, self.identity.name, [row for _, row in logged], steps=[window for window, _ in logged],
            config=config, log_ids=names, run_id=self.identity.id,
        )

    def close(self) -> None:
        """Each write is a transaction."""

    def note(self) -> str:
        return f"TRACKIO_DIR={os.environ['TRACKIO_DIR']} trackio show --project {self.project}"


TRACKERS: dict[str, type[Tracker]] = {
    "tensorboard": TensorBoard,
    "mlflow": MLflow,
    "wandb": WeightsAndBiases,
    "trackio": Trackio,
}
