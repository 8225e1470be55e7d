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
from benchmarks.harness import Figures, benchmark, option
from benchmarks.hosts_fleet import FAR_DEVICE, NEAR_DEVICE, TwoHostFleet
from benchmarks.hosts_network import TwoHosts, why_not

PARTITION_SECS, SHORT_PARTITION_SECS = 60.0, 10.0
#: Records of each device before anything happens.
_RECORDS = 8
#: Candidates that the far device measures for a head, and in a search.
_SAMPLES, _TRIALS = 16, 8
_VERB_SECS = 300.0


class Story:
    """What is done to a fleet of two hosts, one step after the other.

    Args:
        fleet: Not started yet.
        hosts: The two hosts.

    Attributes:
        found: What was measured, by key of the JSON.
    """

    def __init__(self, fleet: TwoHostFleet, hosts: TwoHosts) -> None:
        self._fleet, self._hosts = fleet, hosts
        self.found: Figures = {}

    def collect(self) -> None:
        """Both hosts measure, and their records are stored."""
        fleet, witness, began = self._fleet, self._fleet.witness, time.monotonic()
        fleet.start()
        devices = (NEAR_DEVICE, FAR_DEVICE)
        fleet.until(lambda: all(witness.count(one) >= _RECORDS for one in devices), "records of both hosts")
        self.found["collected_secs"] = time.monotonic() - began

    def use_far_host(self) -> None:
        """A head for the device of the far host, from a few samples, and a search on it."""
        fleet = self._fleet
        epochs = ("--epochs", "4")
        trained = fleet.verb("train", "--device", NEAR_DEVICE, *epochs, timeout_secs=_VERB_SECS)
        samples, strategy = ("--samples", str(_SAMPLES)), ("--strategy", "nearest")
        made = fleet.verb("onboard", FAR_DEVICE, *samples, *strategy, *epochs, timeout_secs=_VERB_SECS)
        found = fleet.verb("tune", FAR_DEVICE, "--trials", str(_TRIALS), timeout_secs=_VERB_SECS)
        self.found |= {
            "remote_onboarded": trained is not None and made is not None and made["samples"] > 0,
            "remote_tuned": found is not None and found["trials"] == _TRIALS,
        }

    def cut_link(self, secs: float) -> None:
        """The link is down for a while; what the far agent has spooled meanwhile arrives afterwards.

        Args:
            secs: How long at least: it stays down until the far agent has spooled something.
        """
        fleet, witness = self._fleet, self._fleet.witness
        # In the middle of its work: right after a batch it would have none to go on with.
        fleet.until_stored(FAR_DEVICE, after=time.monotonic())
        before = witness.known(FAR_DEVICE)
        self._hosts.set_link(is_up=False)
        fleet.pause(secs)
        spool = witness.spooled[FAR_DEVICE]
        fleet.until(lambda: bool(spool - before), "a record in the far spool, the link being down")
        spooled = spool - before
        self._hosts.set_link(is_up=True)
        recovered = fleet.until_stored(FAR_DEVICE, after=time.monotonic())

        def has_arrived() -> bool:
            return not spooled - witness.stored.get(FAR_DEVICE, set()) - witness.late()

        fleet.until(has_arrived, f"{len(spooled)} records that were spooled while the link was down")
        self.found |= {
            "partition_recovered_secs": recovered,
            "spooled_in_partition": len(spooled),
            "spooled_came_late": len(spooled & witness.late()),
        }

    def kill_far_node(self) -> None:
        """The far host's Ray is killed with its agent, and started again."""
        at = time.monotonic()
        self._fleet.far_ray.kill()
        self._fleet.until_measured(FAR_DEVICE)
        self.found["far_node_recovered_secs"] = time.monotonic() - at

    def kill_near_node(self) -> None:
        """The head of the cluster is killed with the agent beside it, and started again: all goes on."""
        at = time.monotonic()
        self._fleet.near_ray.kill()
        # What the far agent measures goes to the coordinator for a while, even without a head.
        for device in (NEAR_DEVICE, FAR_DEVICE):
            self._fleet.until_measured(device)
        self.found["near_node_recovered_secs"] = time.monotonic() - at

    def end(self) -> None:
        """Stop all, and judge what is left."""
        fleet, witness = self._fleet, self._fleet.witness
        code = fleet.stop()
        verdict = fleet.judge()
        self.found |= {
            "records": {one: witness.count(one) for one in (NEAR_DEVICE, FAR_DEVICE)},
            "exit_code": code,
            "lost": len(verdict.lost),
            "duplicated": len(verdict.duplicated),
            "unaccounted": len(verdict.unaccounted),
            "invented": len(verdict.invented),
            "wrong": list(verdict.wrong),
        }

    @property
    def is_clean(self) -> bool:
        """Whether all came back and nothing is wrong."""
        names = ("lost", "duplicated", "unaccounted", "invented", "wrong", "exit_code")
        is_used = all(self.found.get(name, True) for name in ("remote_onboarded", "remote_tuned"))
        return is_used and not any(self.found[name] for name in names)


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
    base = Path(tempfile.mkdtemp(prefix="fleet-hosts-"))
    with closing(TwoHosts()) as hosts:
        story = Story(TwoHostFleet(base, hosts), hosts)
        try:
            story.collect()
            story.cut_link(SHORT_PARTITION_SECS if options.short else PARTITION_SECS)
            if not options.short:
                story.use_far_host()
                story.kill_far_node()
                story.kill_near_node()
            story.end()
        except LateError as error:
            story.found["failure"] = str(error)
    if "failure" in story.found or not story.is_clean:
        story.found["folder"] = str(base)
    else:
        shutil.rmtree(base)
    return {
        "hosts": 2,
        **story.found,
        "cores": len(os.sched_getaffinity(0)),
        "load_1m": os.getloadavg()[0],
    }


main = benchmark("hosts", __doc__, Options, measure, fails=lambda result: "folder" in result)

if __name__ == "__main__":
    main()
