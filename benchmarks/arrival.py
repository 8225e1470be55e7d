"""A new device beside a daemon at work: `python -m benchmarks.arrival --json`.

Three ISA profiles of this host are collected and learnt, and a real `fleet up` goes on with them. Then the
file of a fourth appears: when it is known, when its head serves, and with how many samples. Afterwards the
daemon measures more on it: the candidates of the known devices that it had not asked for, and as many that no
device had measured when the head was made. They tell what the head is worth: its top-1 against that of a head
from scratch of the same samples, workload by workload, on candidates that neither has seen: those that it was
not asked for, which are harder than any draw because the daemon asks for promising ones, and (`nobody_knew`)
those that nobody had measured. Some workloads are held out from all that heads learn; both heads meet these.
Its expectation is meant for all candidates of the known devices, and is compared with the truth of those.
Last, the device is timed in another way, which is another environment: how long and how many samples until
its head was made anew.

The folder is kept where one is given, and a second run goes on from what is measured.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from agents.records import DeviceId, Outcome
from benchmarks.fleet_up import START_SECS, Program, profile_file, run_verb, running, verb, wait_until
from benchmarks.harness import Figures, benchmark, option, stopwatch, working_folder
from benchmarks.tables import interval
from fleet.api.client import DaemonClient, find_daemon
from fleet.config.settings import load_fleet, select_devices
from fleet.models.versions import load_snapshot, train_config
from fleet.report.demo import choose_devices
from fleet.store.store import Store
from transfer.adapt.base import FewShotTask
from transfer.adapt.guard import Scratch
from transfer.adapt.kept import load_adapted
from transfer.evaluate.rankers import difference, judge

WORKLOADS = 16
#: Candidates of each workload on each known device; the new one measures twice as many to be judged on.
CANDIDATES = 24
#: Bounds as in the demo: larger programs would make the benchmark an hour.
_BOUNDS = {"min_flops": 2e5, "max_flops": 2.5e7}
_HEAD_SECS = 1800.0


@dataclass(frozen=True)
class Options:
    """How the new device comes, and where."""

    samples: int = option(64, "candidates that the new device measures for its head", least=1)
    folder: Path | None = option(None, "where to work, and to go on (a temporary one)")


def measure(options: Options) -> Figures:
    """Do all of it in a folder."""
    with working_folder(options.folder) as folder:
        return _run(folder, options.samples)


def _run(folder: Path, samples: int) -> Figures:
    """Do all of it: the folder gets device files, store, models and the daemon's folder."""
    sources, target = choose_devices(list(select_devices(load_fleet(None).config).values()))
    known = [spec.device_id for spec in sources[-3:]]
    files = folder / "configs" / "hardware"
    files.mkdir(parents=True, exist_ok=True)
    for name in known:
        (files / f"{name}.yaml").write_bytes(profile_file(name).read_bytes())
    (files / f"{target.device_id}.yaml").unlink(missing_ok=True)
    settings = {
        "schema": 1,
        "daemon": {"arrival_samples": samples, "return_samples": 32},
        "workloads": {**_BOUNDS, "count": WORKLOADS},
    }
    (folder / "configs" / "fleet.yaml").write_text(yaml.safe_dump(settings))
    size = ("collect", "--workloads", str(WORKLOADS), "--samples")
    run_verb(folder, *size, str(CANDIDATES), *_named(known))
    if not (folder / "runs" / "models").exists():
        run_verb(folder, "train")
    name = target.device_id
    with running(Program(verb("up"), folder / "up.log", folder=folder)):
        daemon = find_daemon(folder / "runs" / "fleet")
        assert daemon is not None
        wait_until(lambda: _is_at_work(daemon, known), "work of the known devices", START_SECS)
        elapsed = stopwatch()
        (files / f"{name}.yaml").write_bytes(profile_file(name).read_bytes())
        wait_until(lambda: name in daemon.get("/v1/devices"), "the new device", START_SECS)
        known_secs = elapsed()
        arrived = _onboarded(daemon, name, 0)
        head_secs = elapsed()
        asked, known_to_any = _measured(folder, [name]), _measured(folder, [*known, name])
        run_verb(folder, *size, str(2 * CANDIDATES), *_named([name]))
        truth = _judge(folder, name, arrived["version"], asked, known_to_any)
        elapsed = stopwatch()
        changed = yaml.safe_load(profile_file(name).read_text())
        changed["protocol"] = {**changed.get("protocol", {}), "min_repeat_ms": 31}
        (files / f"{name}.yaml").write_text(yaml.safe_dump(changed))
        again = _onboarded(daemon, name, 1)
        refreshed_secs = elapsed()
    expected = arrived["expected"] or {}
    return {
        "device": name,
        "workloads": WORKLOADS,
        "known_secs": known_secs,
        "head_secs": head_secs,
        "parts": arrived["seconds"],
        "samples": len(asked),
        "strategy": arrived["taken"],
        "served_by": arrived["served_by"],
        **truth,
        "expected_top1": expected.get("top1"),
        "expected_interval": expected.get("top1_interval"),
        "expected_minus_true": expected["top1"] - truth["of_known_devices"]["top1"] if expected else None,
        "refreshed_secs": refreshed_secs,
        "refreshed_samples": again["samples"],
        "refreshed_served": again["served_by"] == again["version"],
    }


def _judge(folder: Path, target: DeviceId, version: str, asked: set[str], known: set[str]) -> Figures:
    """Top-1 of the head and of one from scratch on candidates that the device was not asked for.

    Args:
        folder: Of the benchmark.
        target: The device that came.
        version: Of its head.
        asked: Candidates that its head has learnt from.
        known: Candidates that any device had measured when the head was made.
    """
    dataset = load_snapshot(Store.read(folder / "runs" / "store")).dataset
    column = dataset.column(target)
    is_measured = np.isfinite(dataset.latency_secs[:, column])
    was_asked, was_known = (np.isin(dataset.candidate_ids, sorted(names)) for names in (asked, known))
    test = np.flatnonzero(~was_asked & is_measured)
    is_visible = np.repeat(was_known[:, None], len(dataset.device_ids), axis=1)
    is_visible[:, column] = was_asked & is_measured
    view = dataset.where(is_visible)
    head = load_adapted(folder / "runs" / "models" / version, target)
    task = FewShotTask(
        source=None,
        dataset=view,
        target=target,
        few_shot=np.flatnonzero(was_asked & is_measured),
        source_rows=np.flatnonzero(was_known),
        config=train_config(24),
        seed=0,
    )
    scratch = Scratch().adapt(task)

    def compared(rows: np.ndarray) -> Figures:
        ours, theirs = (judge(dataset, target, rows, one.score(view, rows)) for one in (head, scratch))
        assert ours is not None
        assert theirs is not None
        gain = difference([ours], [theirs], "top1")
        return {
            "top1": ours.value("top1"),
            "scratch_top1": theirs.value("top1"),
            "random_top1": ours.value("random_top1"),
            "top1_minus_scratch": interval(gain),
            "judged_workloads": len(ours.groups),
            "judged_candidates": len(rows),
        }

    return {
        **compared(test[was_known[test]]),
        "nobody_knew": compared(test[~was_known[test]]),
        "of_known_devices": compared(np.flatnonzero(was_known & is_measured)),
    }


def _measured(folder: Path, device_ids: Sequence[str]) -> set[str]:
    """Candidates that any of some devices has a record of."""
    reader = Store.read(folder / "runs" / "store")
    return {
        str(record.candidate_id)
        for one in device_ids
        for record in reader.records(device_id=DeviceId(one))
        if record.outcome is not Outcome.LOST
    }


def _is_at_work(daemon: DaemonClient, names: list[DeviceId]) -> bool:
    found = daemon.get("/v1/devices")
    return all(found.get(one, {}).get("leases") and found[one]["champion"] for one in names)


def _named(names: list[DeviceId]) -> list[str]:
    return [part for name in names for part in ("--device", name)]


def _onboarded(daemon: DaemonClient, device_id: str, number: int) -> Figures:
    """Wait for the result of a device's onboarding, counted from 0."""

    def ended() -> Any:
        listed = [
            one
            for one in daemon.get("/v1/requests")
            if one["kind"] == "onboarding" and one["arguments"]["device"] == device_id
        ]
        return listed[number] if len(listed) > number and listed[number]["ended_at"] is not None else None

    request = wait_until(ended, f"onboarding {number} of {device_id}", _HEAD_SECS)
    if request["state"] != "succeeded":
        raise SystemExit(f"the onboarding of {device_id} {request['state']}: {request['reason']}")
    result: Figures = request["result"]
    return result


main = benchmark("arrival", __doc__, Options, measure)

if __name__ == "__main__":
    main()
