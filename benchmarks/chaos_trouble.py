"""What happens to a whole coordinator while it runs, beside kills: for `benchmarks.chaos_fleet`.

Agents die and freeze, the clock is set forwards and back, the training is killed or stands still, a person
takes a champion back. `Host` is the host that the coordinator believes to be on.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any

from agents.records import DeviceId
from benchmarks.chaos_life import Load
from fleet.models.registry import Registry
from fleet.refresh.refresher import Refresher
from fleet.transport.local import LocalTransport

#: Seconds by which a clock is set, forwards or back: by hand, by a time server, by a dead battery.
_CLOCK_STEPS = (120.0, 3700.0, 86_400.0, 30 * 86_400.0)
#: Seconds that pass while the process is stopped by a signal, however short that is here: beyond any lease.
_PAUSE_SECS = (30.0, 90.0, 5000.0)
#: Turns that a stopped training stands still.
_STILL_TURNS = 30
#: Files of a history: which training was stopped, and what every training holds locked while it lives.
STILL, ALIVE = "still", "alive"


def wake_training(still: Path) -> None:
    """Let a training go on that was stopped, if it is there still; one of a life before ends then.

    Args:
        still: File that remembers it.
    """
    if not still.exists():
        return
    with contextlib.suppress(OSError):  # it may have ended
        pid = int(still.read_text())
        if Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2].startswith("T"):
            os.kill(pid, signal.SIGCONT)
    still.unlink()


class Host:
    """The clocks of a host. They go on from life to life, and faster than ours.

    Args:
        load: Its history is told of pauses and of clock steps, its dice say how long a pause takes.

    Attributes:
        wall: Unix seconds.
        steady: Seconds since the host began.
    """

    def __init__(self, load: Load) -> None:
        self._path, self._log, self._rng = load.root / "clock", load.log, load.rng
        self.wall = float(self._path.read_text()) if self._path.exists() else time.time()
        self.steady = 1000.0
        signal.signal(signal.SIGCONT, self._woken)

    def go_on(self, secs: float) -> None:
        """Let time pass."""
        self.wall += secs
        self.steady += secs
        # In one step: a kill may come at any moment.
        fresh = self._path.with_suffix(".new")
        fresh.write_text(str(self.wall))
        fresh.replace(self._path)

    def set_clock(self) -> None:
        """Set the time of day."""
        secs = self._rng.choice(_CLOCK_STEPS) * self._rng.choice((-1, 1))
        self.wall += secs
        self._log.add("trouble", by="clock step")

    def _woken(self, _number: int, _frame: FrameType | None) -> None:
        secs = self._rng.choice(_PAUSE_SECS)
        self.wall += secs
        self.steady += secs
        self._log.add("trouble", by="pause")


@dataclass(eq=False)
class Trouble:
    """Hurts somebody now and then.

    Attributes:
        load: Whose history is told of what is no kill, and whose dice decide.
        transport: To the agents.
        host: Whose clock is set.
        refresher: Whose training is killed and stopped.
        is_guilty: Whether agents die of what they do; else only of what is done to them.
        often: Times as often as usual.
    """

    load: Load
    transport: LocalTransport
    host: Host
    refresher: Refresher
    is_guilty: bool
    often: float
    _frozen: set[tuple[DeviceId, int]] = field(default_factory=set)
    _still_turns: int = 0

    def __post_init__(self) -> None:
        self._rng, self._registry = self.load.rng, Registry(self.load.disk / "models")
        #: Remembers which training was stopped.
        self._still = self.load.root / STILL
        wake_training(self._still)  # of the life before
        if self.is_guilty:
            self.load.log.add("guilty")

    def somebody(self, view: Mapping[str, Any]) -> None:
        """Perhaps hurt somebody; to be called between two turns."""
        self._still_turns -= 1
        if not self._still_turns:
            wake_training(self._still)
        device_id = DeviceId(self._rng.choice(sorted(view["devices"])))
        name = (device_id, view["devices"][device_id]["incarnation"])
        chances: list[tuple[float, Callable[[], None]]] = [
            (0.02, lambda: self._crash(*name)),
            (0.04, lambda: self._freeze(*name)),
            (0.04, self._thaw),
            (0.02, self.host.set_clock),
            (0.02, self._stop_training),
            (0.01, self._kill_training),
            (0.01, lambda: self._take_back(device_id)),
        ]
        dice = self._rng.random() / self.often
        for chance, happens in chances:
            dice -= chance
            if dice < 0:
                happens()
                return

    def _crash(self, device_id: DeviceId, incarnation: int) -> None:
        if (device_id, incarnation) not in self._frozen:
            is_blameless = not self.is_guilty or self._rng.random() < 0.5
            is_done = self._rng.random() < 0.5
            self.transport.crash(device_id, incarnation, is_done=is_done, is_blameless=is_blameless)

    def _freeze(self, device_id: DeviceId, incarnation: int) -> None:
        if (device_id, incarnation) not in self._frozen:
            self.transport.freeze(device_id, incarnation)
            self._frozen.add((device_id, incarnation))

    def _thaw(self) -> None:
        for name in self._frozen:
            with contextlib.suppress(KeyError):
                self.transport.thaw(*name)
        self._frozen.clear()

    def _stop_training(self) -> None:
        pid = self._training_pid()
        if pid is not None and not self._still.exists():
            self._still.write_text(str(pid))
            os.kill(pid, signal.SIGSTOP)
            self._still_turns = _STILL_TURNS
            self.load.log.add("trouble", by="pause")

    def _kill_training(self) -> None:
        if (pid := self._training_pid()) is not None:
            os.kill(pid, signal.SIGKILL)

    def _take_back(self, device_id: DeviceId) -> None:
        wake_training(self._still)  # it may hold the registry's lock
        champion = self._registry.champions().get(device_id)
        if champion is not None and set(champion.before) & set(self._registry.versions()):
            with contextlib.suppress(
                OSError
            ):  # whoever asked on a full disk is told so, and nothing has changed
                self._registry.use(device_id, self._registry.before(device_id), reason="by hand")

    def _training_pid(self) -> int | None:
        child = self.refresher._child
        return None if child is None or child.has_ended else child.pid
