"""One fleet on two hosts: a Ray node and a real device on each, the coordinator on the near one.

For `benchmarks.hosts`. All runs as `docs/cluster.md` says for several hosts; the workloads are few and small.
"""

from __future__ import annotations

import json
import os
import re
import secrets
import shutil
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import yaml

from benchmarks.chaos_history import HistoryLog, Verdict, check, read_history
from benchmarks.chaos_watch import look_at_fleet
from benchmarks.chaos_wreck import local_profiles
from benchmarks.hosts_network import ADDRESSES, FAR, NEAR, TwoHosts
from benchmarks.hosts_services import ROOT, Service, wait_until
from benchmarks.hosts_witness import Witness
from benchmarks.patience import patience

NEAR_DEVICE, FAR_DEVICE = "near-cpu", "far-cpu"
_HEAD = f"{ADDRESSES[NEAR]}:6379"
#: Where the agents of another host keep their records, from its user's home.
_REMOTE_SPOOL = ".local/state/tensor-fleet/spool"
_WAIT_SECS, _STOP_SECS = 240.0, 60.0
_SETTINGS = """schema: 1
devices: {{folder: {hardware}, ids: [{ids}]}}
workloads: {{networks: [bert-tiny], count: 3, max_flops: 2.0e+7, noise_samples: 0}}
protocol: {{repeat: 3, extra_repeats: 0, min_repeat_ms: 2, visits: 2, check_share: 0}}
store: {{path: {disk}/store}}
daemon: {{root: {disk}/fleet, api_port: 0, refresh: false, lease_secs: 150, stop_secs: 20}}
"""


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
        hardware = root / "hardware"
        hardware.mkdir()
        usable = sorted(os.sched_getaffinity(0))
        _write_device(hardware, NEAR_DEVICE, usable[0])
        _write_device(hardware, FAR_DEVICE, usable[-1])
        self._settings = root / "fleet.yaml"
        ids = f"{NEAR_DEVICE}, {FAR_DEVICE}"
        self._settings.write_text(_SETTINGS.format(hardware=hardware, ids=ids, disk=self._disk))
        self._token = secrets.token_hex(32)
        self.near_ray = self._ray(NEAR, NEAR_DEVICE, "--head", "--port=6379", "--include-dashboard=false")
        self.far_ray = self._ray(FAR, FAR_DEVICE, f"--address={_HEAD}")
        told = ("--address", _HEAD, "--config", str(self._settings), "--models", str(self._disk / "models"))
        self.up = Service(
            hosts,
            NEAR,
            [sys.executable, "-m", "benchmarks.chaos_real", str(self._history), "up", *told],
            environment=self._environment(NEAR),
            log=root / "up.log",
        )
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

    def until(self, is_so: Callable[[], bool], what: str) -> float:
        """Wait, and return the seconds that it took; longer on a crowded host.

        Raises:
            TimeoutError: It did not come; with the coordinator's last words.
        """
        try:
            return wait_until(is_so, what, patience(_WAIT_SECS), meanwhile=self.tend)
        except TimeoutError as error:
            raise TimeoutError(f"{error}; `fleet up` said: {self.up.told()[-1500:]}") from None

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
        out = self._root / f"{arguments[0]}.json"
        told = ("--json", "--config", str(self._settings), "--models", str(self._disk / "models"))
        command = [sys.executable, "-m", "fleet.cli", *arguments, *told]
        with out.open("wb") as stream:
            process = self._hosts.start(
                NEAR, command, environment=self._environment(NEAR), folder=ROOT, out=stream
            )
        what, deadline = f"`fleet {arguments[0]}`", patience(timeout_secs)
        wait_until(lambda: process.poll() is not None, what, deadline, meanwhile=self.tend)
        # What it says while it works goes to the same file.
        printed = re.search(r"^\{.*\Z", out.read_text(), re.MULTILINE | re.DOTALL)
        return json.loads(printed[0]) if process.returncode == 0 and printed else None

    def stop(self) -> int:
        """End the coordinator in order, then both hosts at once; returns the coordinator's exit code."""
        code = self.up.stop(signal.SIGTERM, patience(_STOP_SECS))
        for service in (self.near_ray, self.far_ray):
            service.kill()
        self.witness.look(at_once=True)
        return code

    def judge(self) -> Verdict:
        """Look at a copy of all that is left on both hosts, and judge the whole history; nothing may run."""
        copy = self._root / "copy"
        shutil.copytree(self._disk, copy)
        shutil.copytree(self._far_spool, copy / "spool" / FAR_DEVICE)
        look_at_fleet(self._log, self._history, copy)
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
        log, environment = self._root / f"{side}-ray.log", self._environment(side)
        return Service(self._hosts, side, command, environment=environment, log=log, stale=folder / "t")

    def _home(self, side: str) -> Path:
        return self._root / f"{side}-home"

    def _environment(self, side: str) -> dict[str, str]:
        told = {
            "HOME": str(self._home(side)),
            "PYTHONPATH": str(ROOT),
            "RAY_AUTH_TOKEN": self._token,
            "COLUMNS": "200",
        }
        return {**os.environ, **told}


def _write_device(folder: Path, name: str, core: int) -> None:
    """Write the file of a device: the least profile of this machine's CPU, on one core."""
    [profile] = local_profiles().values()
    values = yaml.safe_load(profile.read_text()) | {"device_id": name, "cores": [core], "note": ""}
    (folder / f"{name}.yaml").write_text(yaml.safe_dump(values, sort_keys=False))
