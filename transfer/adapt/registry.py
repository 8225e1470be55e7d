"""The strategies by name, best guess first: what the curve compares, and what `auto` chooses from.

Called by onboarding and the benchmarks. A strategy is added here and nowhere else.
"""

from __future__ import annotations

from transfer.adapt.base import Strategy
from transfer.adapt.finetune import FineTuneHead
from transfer.adapt.maml import Maml
from transfer.adapt.momentum import Momentum
from transfer.adapt.multitask import MultiTask, Scratch
from transfer.adapt.nearest import Nearest
from transfer.adapt.source_devices import SourceDevices


def strategies() -> dict[str, Strategy]:
    """All strategies, fresh ones: some keep what they made for given sources."""
    several: tuple[Strategy, ...] = (
        SourceDevices(),
        MultiTask(),
        FineTuneHead(),
        Momentum(),
        Maml(),
        Nearest(),
        Scratch(),
    )
    return {strategy.name: strategy for strategy in several}


#: Strategies that `auto` chooses from. Each further one is tried on every known device first: a minute or so
#: of a core each.
CHOICES = ("siblings", "multitask", "momentum", "nearest", "scratch")

#: All names, for options and settings.
NAMES = tuple(strategies())
