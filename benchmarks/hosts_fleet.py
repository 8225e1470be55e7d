"""One fleet on two hosts: a Ray node and a real device on each, the coordinator on the near one.

For `benchmarks.hosts`. All runs as `docs/cluster.md` says for several hosts; the workloads are few and small.
`Witness` watches from outside: the store's table, and the agents' spools on the disk. It reads files only,
and asks nothing of the fleet. What it has seen must be there ever after (`benchmarks.chaos_history.check`).
"""

from __future__ import annotations

import json
import os
import re
import secrets
import shutil
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from agents.row_file import read_rows
from agents.spool.disk_spool import FILE
from benchmarks.chaos_history import HistoryLog, Verdict, check, read_history
from benchmarks.chaos_real import watched_up
from benchmarks.chaos_watch import late_records, look_at_fleet
from benchmarks.fleet_up import (
    ROOT,
    LateError,
    Program,
    least_profile,
    patience,
    verb,
    wait_until,
    write_fleet,
)
from benchmarks.hosts_network import ADDRESSES, FAR, NEAR, TwoHosts
from fleet.errors import FleetError
from fleet.state.questions import StateReader
from fleet.state.schema import STATE
from fleet.store.store import Store

#: Between two looks: a look reads ids of the whole table.
_LOOK_SECS = 0.5


class Witness:
    """Looks every half second.

    Args:
        log: Where to write what is seen.
        disk: Folder of the fleet, with its store.
        spools: Folder of the spool of each device.

    Attributes:
        stored: Records seen in the table, by device.
        spooled: Records seen in the spools, by device.
        last_stored_at: When a record of a device was first seen in the table, monotonic, by device.
    """

    def __init__(self, log: HistoryLog, disk: Path, spools: Mapping[str, Path]) -> None:
        self._log, self._store, self._spools = log, disk / "store", spools
        self._next = 0.0
        self.stored: dict[str, set[str]] = {}
        self.spooled: dict[str, set[str]] = {name: set() for name in spools}
        self.last_stored_at: dict[str, float] = {}

    def look(self, *, at_once: bool = False) -> None:
        """Look, if it is time or must be at once."""
        if time.monotonic() < self._next and not at_once:
            return
        for name, folder in self._spools.items():
            self._look_at_spool(name, folder)
        self._look_at_table()
        self._next = time.monotonic() + _LOOK_SECS

    def known(self, device_id: str) -> set[str]:
        """Records of a device that were seen anywhere."""
        return self.spooled[device_id] | self.stored.get(device_id, set())

    def count(self, device_id: str) -> int:
        """Records of a device that were seen in the table."""
        return len(self.stored.get(device_id, ()))

    def late(self) -> set[str]:
        """Results that came after their lease, which the coordinator keeps in its state file."""
        with StateReader(self._store / STATE) as reader:
            return late_records(reader)

    def _look_at_table(self) -> None:
        seen: dict[str, set[str]] = {}
        try:
            for device_id, batch in Store.read(self._store).columns(["record_id"]):
                seen.setdefault(device_id, set()).update(batch.column(0).to_pylist())
        except FleetError:
            return  # it is not there yet, or changes just now
        for name, names in seen.items():
            known = self.stored.setdefault(name, set())
            if fresh := tuple(sorted(names - known)):
                known.update(fresh)
                self.last_stored_at[name] = time.monotonic()
                self._log.add("measured", records=fresh)
                self._log.add("seen", places={"store": fresh})

    def _look_at_spool(self, name: str, folder: Path) -> None:
        """Note what an agent has promised to keep: the rows of its spool."""
        fresh = [row.key for row in read_rows(folder / FILE)]
        if names := tuple(one for one in fresh if one not in self.spooled[name]):
            self.spooled[name].update(names)
            self._log.add("measured", records=names)
            self._log.add("acknowledged", by="spool", records=names)


DEVICES = NEAR_DEVICE, FAR_DEVICE = "near-cpu", "far-cpu"
_HEAD = f"{ADDRESSES[NEAR]}:6379"
#: Where the agents of another host keep their records, from its user's home.
_REMOTE_SPOOL = ".local/state/tensor-fleet/spool"
_WAIT_SECS, _STOP_SECS = 240.0, 60.0
#: As `RestartSec` of the units of `docs/cluster.md`.
_RESTART_SECS = 2.0


class Service(Program):
    """A program that is started again whenever it ends, as systemd does with `Restart=always`."""

    #: Folder that is deleted before each start.
    stale: Path | None = None
    _ended_at: float | None = None

    def start(self) -> None:
        """Start it now."""
        if self.stale is not None:
            shutil.rmtree(self.stale, ignore_errors=True)
        super().start()
        self._ended_at = None

    def tend(self) -> None:
        """Start it again if it has ended, after a short pause; to be called often."""
        if self.code is None:
            return
        now = time.monotonic()
        if self._ended_at is None:
            self._ended_at = now
        elif now > self._ended_at + _RESTART_SECS:
            self.start()


class TwoHostFleet:
    """The fleet, with its services; nothing runs before `start`.

    Args:
        root: Folder of everything.
        hosts: The two hosts.

    Attributes:
        near_ray, far_ray, up: The services: Ray on each host, and `fleet up`.
        witness: Who watches from outside.
    """

    def __init__(self, root: Path, hosts: TwoHosts) -> None:
        self._root, self._hosts, self._disk = root, hosts, root / "disk"
        self._history = root / "history.jsonl"
        self._log = HistoryLog(self._history)
        usable = sorted(os.sched_getaffinity(0))
        _, profile = least_profile()
        cores = {NEAR_DEVICE: usable[0], FAR_DEVICE: usable[-1]}
        self._settings = write_fleet(
            root,
            {name: profile | {"cores": [core], "note": ""} for name, core in cores.items()},
            self._disk,
            workloads={"networks": ["bert-tiny"], "count": 3, "max_flops": 2e7, "noise_samples": 0},
            protocol={"repeat": 3, "extra_repeats": 0, "min_repeat_ms": 2, "visits": 2, "check_share": 0},
            daemon={"lease_secs": 150, "stop_secs": 20},
        )
        self._token = secrets.token_hex(32)
        self.near_ray = self._ray(NEAR, NEAR_DEVICE, "--head", "--port=6379", "--include-dashboard=false")
        self.far_ray = self._ray(FAR, FAR_DEVICE, f"--address={_HEAD}")
        told = watched_up(self._history, "--address", _HEAD, *self._told())
        self.up = self._service(NEAR, told, "up.log")
        self._far_spool = self._home(FAR) / _REMOTE_SPOOL / FAR_DEVICE
        spools = {NEAR_DEVICE: self._disk / "spool" / NEAR_DEVICE, FAR_DEVICE: self._far_spool}
        self.witness = Witness(self._log, self._disk, spools)

    def start(self) -> None:
        """Start both hosts and the coordinator, which is up when this returns."""
        self.near_ray.start()
        self.until(lambda: "runtime started" in self.near_ray.told(), "Ray on the near host")
        self.far_ray.start()
        self.up.start()
        self.until(lambda: "fleet is up" in self.up.told(), "`fleet up`")

    def tend(self) -> None:
        """Start again what has ended, and look; to be called often."""
        for service in (self.near_ray, self.far_ray, self.up):
            service.tend()
        self.witness.look()

    def until(self, is_so: Callable[[], bool], what: str) -> None:
        """Wait for something; longer on a crowded host.

        Raises:
            LateError: It did not come; with the coordinator's last words.
        """
        try:
            wait_until(is_so, what, patience(_WAIT_SECS), meanwhile=self.tend)
        except LateError as error:
            raise LateError(f"{error}; `fleet up` said: {self.up.told()[-1500:]}") from None

    def pause(self, secs: float) -> None:
        """Let time pass."""
        deadline = time.monotonic() + secs
        while time.monotonic() < deadline:
            self.tend()
            time.sleep(0.1)

    def until_stored(self, device: str, *, after: float) -> float:
        """Wait until a record of a device came into the store after a moment; returns the seconds since it.

        Args:
            device: Its id.
            after: Of the monotonic clock.
        """
        last = self.witness.last_stored_at
        self.until(lambda: last.get(device, 0.0) > after, f"a record of {device}")
        return last[device] - after

    def until_measured(self, device: str) -> None:
        """Wait until a record of a device is stored that was not even spooled when this began."""
        self.witness.look(at_once=True)
        before, stored = self.witness.known(device), self.witness.stored
        self.until(lambda: bool(stored.get(device, set()) - before), f"a new record of {device}")

    def verb(self, *arguments: str, timeout_secs: float) -> dict[str, Any] | None:
        """Run a verb of the command line beside the coordinator, on its host.

        Returns:
            The JSON that it printed last; None where it failed, with the reason in its log.
        """
        command = verb(*arguments, "--json", *self._told())
        program = self._service(NEAR, command, f"{arguments[0]}.json")
        program.start()
        what = f"`fleet {arguments[0]}`"
        wait_until(lambda: program.code is not None, what, patience(timeout_secs), meanwhile=self.tend)
        # What it says while it works goes to the same file.
        printed = re.search(r"^\{.*\Z", program.told(), re.MULTILINE | re.DOTALL)
        return json.loads(printed[0]) if program.code == 0 and printed else None

    def stop(self) -> int:
        """End the coordinator in order, then both hosts at once; returns the coordinator's exit code."""
        code = self.up.stop(patience(_STOP_SECS))
        for service in (self.near_ray, self.far_ray):
            service.kill()
        self.witness.look(at_once=True)
        return code

    def judge(self) -> Verdict:
        """Look at a copy of all that is left on both hosts, and judge the whole history; nothing may run."""
        copy = self._root / "copy"
        shutil.copytree(self._disk, copy)
        shutil.copytree(self._far_spool, copy / "spool" / FAR_DEVICE)
        look_at_fleet(self._log, copy)
        return check(read_history(self._history))

    def _ray(self, side: str, device: str, *options: str) -> Service:
        """The Ray node of a host, in a folder that only this user may enter."""
        folder = self._root / side
        folder.mkdir(mode=0o700)
        self._home(side).mkdir()
        command = [sys.executable, "-m", "fleet.transport.ray_start", "--block", *options]
        command += [f"--node-ip-address={ADDRESSES[side]}", f"--temp-dir={folder / 't'}"]
        command += ["--num-cpus=1", f"--object-store-memory={100 << 20}"]
        command += [f'--resources={{"device:{device}": 1}}']
        service = self._service(side, command, f"{side}-ray.log")
        service.stale = folder / "t"
        return service

    def _told(self) -> tuple[str, ...]:
        return ("--config", str(self._settings), "--models", str(self._disk / "models"))

    def _home(self, side: str) -> Path:
        return self._root / f"{side}-home"

    def _service(self, side: str, command: Sequence[str], log: str) -> Service:
        environment = {
            "HOME": str(self._home(side)),
            "PYTHONPATH": str(ROOT),
            "RAY_AUTH_TOKEN": self._token,
        }
        launch = partial(self._hosts.start, side)
        return Service(command, self._root / log, environment=environment, launch=launch)
