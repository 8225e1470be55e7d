from __future__ import annotations

from fleet.daemon.steady_clock import SteadyClock


class Host:
    """The clocks of a host."""

    def __init__(self) -> None:
        self.wall, self.steady = 1_800_000_000.0, 500.0

    def wait(self, secs: float) -> None:
        self.wall += secs
        self.steady += secs


def test_time_passes_while_the_hosts_clock_is_set_back() -> None:
    host = Host()
    clock = SteadyClock(lambda: host.wall, lambda: host.steady)
    assert clock() == 1_800_000_000.0
    host.wait(10.0)
    assert clock() == 1_800_000_010.0
    host.wall -= 86_400.0
    assert clock() == 1_800_000_010.0
    host.wait(5.0)
    assert clock() == 1_800_000_015.0
    host.wall += 86_400.0
    assert clock() == 1_800_000_015.0


def test_it_follows_the_hosts_clock_forward() -> None:
    host = Host()
    clock = SteadyClock(lambda: host.wall, lambda: host.steady)
    host.wall += 8 * 3600.0  # the host was asleep, or learnt the time after it began
    assert clock() == host.wall
    host.wait(1.0)
    assert clock() == host.wall


def test_a_pause_between_its_two_looks_does_not_put_it_ahead() -> None:
    host = Host()

    def steady() -> float:
        host.wait(3600.0)
        return host.steady

    clock = SteadyClock(lambda: host.wall, steady)
    assert clock() <= host.wall
    clock = SteadyClock(lambda: host.wall, lambda: host.steady)
    assert clock() == host.wall
