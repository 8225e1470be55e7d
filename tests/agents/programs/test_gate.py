"""What a gate says of a repeat, and how it learns how fast the probe can be."""

from __future__ import annotations

import os
import time

from agents.programs.gate import Disturbance, RepeatGate, Repeats, compiled_probe
from tests.conftest import running

CLEAN, PREEMPTED, SLOW = Disturbance.NONE, Disturbance.PREEMPTED, Disturbance.SLOW_CORE


class Host:
    """A clock, and a core on which the probe takes `probe_secs`."""

    def __init__(self) -> None:
        self.now, self.probe_secs = 0.0, 1e-5

    def probe(self) -> float:
        self.now += 0.5
        return self.probe_secs

    def gate(self) -> RepeatGate:
        # The host is not a real one, so its thread is never seen to lose a core.
        gate = RepeatGate(self.probe, threads=2, clock=lambda: self.now, counts_switches=False)
        gate.repeat(lambda: 1.0)
        return gate

    def slowed(self, secs: float) -> float:
        """A repeat after which the core is slower."""
        self.probe_secs = secs
        return 2.0


def busy(secs: float = 0.0) -> float:
    end = time.thread_time() + secs
    while time.thread_time() < end:
        pass
    return secs or 1.0


def test_a_repeat_is_clean_if_the_probes_on_both_sides_are_near_their_best() -> None:
    host = Host()
    gate = host.gate()
    assert gate.repeat(lambda: 3.0) == Repeats((3.0,), (CLEAN,))
    host.probe_secs = 1.07e-5
    assert gate.repeat(lambda: 3.0).clean == 1
    assert gate.repeat(lambda: host.slowed(1.1e-5)).disturbances == (SLOW,), "the probe behind it"
    assert gate.repeat(lambda: host.slowed(1e-5)).disturbances == (SLOW,), "the probe before it"
    assert gate.repeat(lambda: 3.0).clean == 1


def test_a_faster_probe_is_the_best_if_it_comes_again_or_if_others_know_of_it() -> None:
    host = Host()
    gate = host.gate()
    host.probe_secs = 0.9e-5
    gate.repeat(lambda: 3.0)
    assert gate.best_secs == 1e-5, "two of them may be chance"
    gate.repeat(lambda: 3.0)
    assert gate.best_secs == 0.9e-5
    gate.learn(0.0)
    gate.learn(2e-5)
    assert gate.best_secs == 0.9e-5
    gate.learn(0.7e-5)
    assert gate.repeat(lambda: 3.0).disturbances == (SLOW,)


def test_a_core_that_stays_slower_is_the_usual_one_after_ten_minutes() -> None:
    host = Host()
    gate = host.gate()
    host.probe_secs = 1.3e-5
    # Each repeat has two probes, half a second each.
    repeats = [gate.repeat(lambda: 1.0) for _ in range(630)]
    assert [each.clean for each in repeats] == [0] * 600 + [1] * 30
    assert (gate.best_secs, gate.has_new_level) == (1.3e-5, True)
    gate.learn(1e-5)
    assert gate.best_secs == 1.3e-5
    # Many probes within seconds say nothing of a clock that fell for good.
    quick = RepeatGate(lambda: host.probe_secs, clock=lambda: 0.0)
    quick.repeat(lambda: host.slowed(2e-5))
    assert not any(quick.repeat(lambda: 1.0).clean for _ in range(300))


def test_a_thread_that_waits_or_loses_its_core_was_preempted() -> None:
    gate = RepeatGate(lambda: 1e-5)
    assert gate.repeat(busy).disturbances != (SLOW,)
    assert gate.repeat(lambda: time.sleep(0.02) or 1.0).disturbances == (PREEMPTED,)
    # The calling thread of a parallel program waits for the others.
    parallel = RepeatGate(lambda: 1e-5, threads=2)
    assert parallel.repeat(lambda: time.sleep(0.02) or 1.0).clean == 1


def test_a_kernel_that_counts_no_switches_leaves_the_processor_time() -> None:
    gate = RepeatGate(lambda: 1e-5, counts_switches=False)
    assert gate.repeat(lambda: time.sleep(0.02) or 1.0).disturbances == (PREEMPTED,)
    assert gate._switches() == 0


def test_a_real_neighbour_on_the_core_is_seen() -> None:
    cores = os.sched_getaffinity(0)
    core = min(cores)
    os.sched_setaffinity(0, [core])
    try:
        gate = RepeatGate(lambda: 1e-5)
        with running("print(1, flush=True)\nwhile True: pass") as neighbour:
            disturbed = [gate.repeat(lambda: busy(0.05)) for _ in range(6)]
            neighbour.kill()
    finally:
        os.sched_setaffinity(0, cores)
    assert sum(each.disturbances == (PREEMPTED,) for each in disturbed) >= 5


def test_the_compiled_probe_takes_some_microseconds() -> None:
    gate = RepeatGate(compiled_probe())
    repeats = [gate.repeat(busy) for _ in range(200)]
    assert 1e-6 < gate.best_secs < 1e-3
    assert sum(each.clean for each in repeats) >= 10, "on a host that others use some are clean"
