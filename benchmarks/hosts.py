"""Two hosts, really run, and one of them lost: `python -m benchmarks.hosts --json`.

Two network namespaces of this machine are the hosts (`benchmarks.hosts_network`): each has an address of its
own, a Ray node and a real device, a profile of this machine's CPU. The coordinator runs on the near one. Both
collect; then the link between them is down for a while and comes back. The far device is onboarded and tuned.
The far host's Ray node is killed, and the near host's with the head of the cluster. A killed node is started
again after 2 s, as systemd would, and so is `fleet up` where it ends, with the same command. What was stored
and spooled is watched from outside, and `benchmarks.chaos_history.check` judges it at the end.

Exit code 1 if anything was lost, stored twice or unaccounted for, or did not come back; the folder of such a
run is kept and named. Where two hosts cannot be made, the JSON says why in `skipped`, and the exit code is 0.
"""

from __future__ import annotations

import os
import shutil
import signal
import sys
import tempfile
import time
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from benchmarks.fleet_up import LateError
from benchmarks.harness import Figures, benchmark, option, stopwatch
from benchmarks.hosts_fleet import DEVICES, FAR_DEVICE, NEAR_DEVICE, TwoHostFleet
from benchmarks.hosts_network import TwoHosts, why_not

PARTITION_SECS, SHORT_PARTITION_SECS = 60.0, 10.0
#: Records of each device before anything happens.
_RECORDS = 8
#: Candidates that the far device measures for a head, and in a search.
_SAMPLES, _TRIALS = 16, 8
_VERB_SECS = 300.0
#: Of a clean run there is nothing of these.
_NOTHING = ("lost", "duplicated", "unaccounted", "invented", "wrong", "exit_code")


def collect(fleet: TwoHostFleet) -> Figures:
    """Both hosts measure, and their records are stored."""
    elapsed = stopwatch()
    fleet.start()
    fleet.until(lambda: all(fleet.witness.count(one) >= _RECORDS for one in DEVICES), "records of both hosts")
    return {"collected_secs": elapsed()}


def use_far_host(fleet: TwoHostFleet) -> Figures:
    """A head for the device of the far host, from a few samples, and a search on it."""
    epochs, samples = ("--epochs", "4"), ("--samples", str(_SAMPLES), "--strategy", "nearest")
    trained = fleet.verb("train", "--device", NEAR_DEVICE, *epochs, timeout_secs=_VERB_SECS)
    made = fleet.verb("onboard", FAR_DEVICE, *samples, *epochs, timeout_secs=_VERB_SECS)
    tuned = fleet.verb("tune", FAR_DEVICE, "--trials", str(_TRIALS), timeout_secs=_VERB_SECS)
    return {
        "remote_onboarded": trained is not None and made is not None and made["samples"] > 0,
        "remote_tuned": tuned is not None and tuned["trials"] == _TRIALS,
    }


def cut_link(fleet: TwoHostFleet, hosts: TwoHosts, secs: float) -> Figures:
    """The link is down for a while; what the far agent has spooled meanwhile arrives afterwards.

    Args:
        fleet: That collects.
        hosts: The two hosts.
        secs: How long at least: it stays down until the far agent has spooled something.
    """
    witness = fleet.witness
    # In the middle of its work: right after a batch it would have none to go on with.
    fleet.until_stored(FAR_DEVICE, after=time.monotonic())
    before = witness.known(FAR_DEVICE)
    hosts.set_link(is_up=False)
    fleet.pause(secs)
    spool = witness.spooled[FAR_DEVICE]
    fleet.until(lambda: bool(spool - before), "a record in the far spool, the link being down")
    spooled = spool - before
    hosts.set_link(is_up=True)
    recovered = fleet.until_stored(FAR_DEVICE, after=time.monotonic())
    fleet.until(
        lambda: not spooled - witness.stored.get(FAR_DEVICE, set()) - witness.late(),
        f"{len(spooled)} records that were spooled while the link was down",
    )
    return {
        "partition_recovered_secs": recovered,
        "spooled_in_partition": len(spooled),
        "spooled_came_late": len(spooled & witness.late()),
    }


def kill_nodes(fleet: TwoHostFleet) -> Figures:
    """Each host's Ray is killed with the agent beside it, and started again: all goes on.

    The near one is the head of the cluster. What the far agent measures goes to the coordinator for a while,
    even without a head.
    """
    recovered = {}
    for name, node, devices in (("far", fleet.far_ray, DEVICES[1:]), ("near", fleet.near_ray, DEVICES)):
        elapsed = stopwatch()
        node.kill()
        for device in devices:
            fleet.until_measured(device)
        recovered[f"{name}_node_recovered_secs"] = elapsed()
    return recovered


def end(fleet: TwoHostFleet) -> Figures:
    """Stop all, and judge what is left."""
    code = fleet.stop()
    verdict = fleet.judge()
    return {
        "records": {one: fleet.witness.count(one) for one in DEVICES},
        "exit_code": code,
        "lost": len(verdict.lost),
        "duplicated": len(verdict.duplicated),
        "unaccounted": len(verdict.unaccounted),
        "invented": len(verdict.invented),
        "wrong": list(verdict.wrong),
    }


@dataclass(frozen=True)
class Options:
    """How much of the story is run."""

    short: bool = option(False, f"only the link, down for {SHORT_PARTITION_SECS:g} s")


def measure(options: Options) -> Figures:
    """Run the story, or its short form without killed nodes.

    Returns:
        What was measured; with `skipped` alone where this machine cannot be two hosts. `failure` is there
        where something did not come back, `folder` where anything is wrong.
    """
    # The namespaces, and all in them, go even where somebody ends this.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    reason = why_not()
    if reason is not None:
        return {"skipped": reason}
    base, found = Path(tempfile.mkdtemp(prefix="fleet-hosts-")), Figures()
    with closing(TwoHosts()) as hosts:
        fleet = TwoHostFleet(base, hosts)
        try:
            found |= collect(fleet)
            found |= cut_link(fleet, hosts, SHORT_PARTITION_SECS if options.short else PARTITION_SECS)
            if not options.short:
                found |= use_far_host(fleet)
                found |= kill_nodes(fleet)
            found |= end(fleet)
        except LateError as error:
            found["failure"] = str(error)
    is_used = all(found.get(name, True) for name in ("remote_onboarded", "remote_tuned"))
    if "failure" in found or not is_used or any(found[name] for name in _NOTHING):
        found["folder"] = str(base)
    else:
        shutil.rmtree(base)
    return {
        "hosts": 2,
        **found,
        "cores": len(os.sched_getaffinity(0)),
        "load_1m": os.getloadavg()[0],
    }


main = benchmark("hosts", __doc__, Options, measure, fails=lambda result: "folder" in result)

if __name__ == "__main__":
    main()
