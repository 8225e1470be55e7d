"""A daemon with many replay devices and everything on: `python -m benchmarks.many_devices STORE --json`.

The devices answer from a store of real records, behind real Ray actors (several a process). A `fleet up`
collects, onboards, trains, ranks and serves its API. Then the file of one more device appears. What is
measured: how fast the devices come to work, memory, how fast the API answers meanwhile, and the onboarding of
the last one, which must not cost a training for each device that is known.

Make the store first, for example with `python -m benchmarks.arrival --folder FOLDER` (`FOLDER/runs/store`).
"""

from __future__ import annotations

import statistics
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import psutil
import yaml

from agents.records import DeviceKind
from benchmarks.harness import Figures, Option, benchmark, working_folder
from benchmarks.live_daemon import HEAD_SECS, START_SECS, onboarded, running, until
from fleet.api.client import DaemonClient
from fleet.config.device_folder import RETIRED
from fleet.store.store import Store

_WORK_SECS, _MODEL_SECS = 900.0, 1800.0
#: Answers of the API that are timed.
_ASKED = 40


@dataclass(frozen=True, slots=True)
class Options:
    """How many devices, and what they answer from."""

    records: Annotated[Path, Option("store of real records, of live devices", is_positional=True)]
    devices: Annotated[int, Option("replay devices at work before the last one comes", least=1)] = 128
    head_secs: Annotated[float, Option("how long the last head is waited for")] = HEAD_SECS


def measure(options: Options) -> Figures:
    """Do all of it in a folder; what took too long is in `unfinished`."""
    found: Figures = {}
    with working_folder() as folder:
        try:
            _run(folder, options, found)
        except SystemExit as error:
            found["unfinished"] = str(error)
    return found


def _run(folder: Path, options: Options, found: Figures) -> None:
    """Do all of it; `found` gets the figures, as soon as each is known."""
    records, devices = options.records, options.devices
    entries = Store.read(records).devices()
    live = sorted(one for one, entry in entries.items() if entry.spec.kind is not DeviceKind.REPLAY)
    files = folder / "configs" / "hardware"
    files.mkdir(parents=True, exist_ok=True)
    names = [f"replay-{number:03}" for number in range(devices + 1)]
    *known, last = names
    for number, name in enumerate(known):
        _write(files / f"{name}.yaml", name, records, live[number % len(live)], number)
    # Replay devices are named at the start; one that was there once may come later.
    (files / RETIRED).mkdir()
    _write(files / RETIRED / f"{last}.yaml", last, records, live[devices % len(live)], devices)
    settings = {
        "schema": 1,
        "devices": {"ids": names},
        "daemon": {"arrival_samples": 64, "lease_secs": 120.0},
        "training": {"epochs": 4},
    }
    (folder / "configs" / "fleet.yaml").write_text(yaml.safe_dump(settings))
    found |= {"benchmark": "many_devices", "devices": devices, "recorded_devices": len(live)}
    began = time.monotonic()
    with running(folder) as daemon:
        until(lambda: _with_records(daemon, known), _WORK_SECS, "all devices have measured")
        found["working_secs"] = time.monotonic() - began
        until(lambda: _served(daemon, known), _MODEL_SECS, "all devices have a head")
        found["served_secs"] = time.monotonic() - began
        answers = [_timed(daemon) for _ in range(_ASKED)]
        status = daemon.get("/v1/status")
        found |= {
            "records": sum(one["records"] for one in status["devices"].values()),
            "versions": len({one["champion"] for one in status["devices"].values()}),
            "api_median_secs": statistics.median(answers),
            "api_slowest_secs": max(answers),
            **_memory_mb(daemon.pid),
        }
        came = time.monotonic()
        _write(files / f"{last}.yaml", last, records, live[devices % len(live)], devices)
        until(lambda: last in daemon.get("/v1/devices"), START_SECS, "the last device is known")
        found["known_secs"] = time.monotonic() - came
        arrived = onboarded(daemon, last, 0, options.head_secs)
        found |= {
            "head_secs": time.monotonic() - came,
            "parts": arrived["seconds"],
            "strategy": arrived["taken"],
            "samples": arrived["samples"],
            "sources": len(arrived["source_devices"]),
        }


def _write(path: Path, name: str, records: Path, device: str, seed: int) -> None:
    value = {"schema": 1, "device_id": name, "kind": "replay", "family": "cpu"}
    value |= {"records": str(records.absolute()), "device": device, "seed": seed, "noise": True}
    path.write_text(yaml.safe_dump(value))


def _with_records(daemon: DaemonClient, names: list[str]) -> bool:
    found = daemon.get("/v1/devices")
    return all(found.get(one, {}).get("records") for one in names)


def _served(daemon: DaemonClient, names: list[str]) -> bool:
    found = daemon.get("/v1/devices")
    return all(found[one]["champion"] for one in names)


def _timed(daemon: DaemonClient) -> float:
    began = time.monotonic()
    daemon.get("/v1/status")
    return time.monotonic() - began


def _memory_mb(pid: int) -> dict[str, float]:
    """Memory of the daemon's process and of all that it has started (proportional set size)."""
    process = psutil.Process(pid)
    below = 0.0
    for child in process.children(recursive=True):
        try:
            below += child.memory_full_info().pss
        except psutil.NoSuchProcess:
            continue
    return {
        "coordinator_mb": process.memory_full_info().pss / 2**20,
        "processes_mb": below / 2**20,
    }


main = benchmark("many_devices", __doc__, Options, measure, fails=lambda result: "unfinished" in result)

if __name__ == "__main__":
    main()
