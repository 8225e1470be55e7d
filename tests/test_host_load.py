from __future__ import annotations

import time

from fleet.daemon.host_load import HostLoad


class Host:
    """Times that are set by hand."""

    def __init__(self) -> None:
        self.now, self.busy, self.own = 100.0, 50.0, 20.0
        self.load = HostLoad(lambda: self.now, lambda: (self.busy, self.own))

    def go(self, secs: float, *, own: float, others: float) -> bool | None:
        self.now += secs
        self.own += own
        self.busy += own + others
        return self.load.is_idle


def test_own_work_is_no_load_and_that_of_others_is() -> None:
    host = Host()
    assert host.load.is_idle is None
    assert host.go(10.0, own=19.0, others=0.5) is True
    assert host.go(10.0, own=0.0, others=6.0) is False
    assert host.go(1.0, own=0.0, others=0.0) is False, "it is not looked at all the time"
    assert host.go(9.0, own=9.0, others=0.0) is True


def test_the_real_times_grow_with_own_work() -> None:
    from fleet.daemon.host_load import _cpu_secs

    busy, own = _cpu_secs()
    until = time.process_time() + 0.3
    while time.process_time() < until:
        pass
    busy_after, own_after = _cpu_secs()
    assert own_after - own >= 0.2
    assert busy_after - busy >= 0.1
