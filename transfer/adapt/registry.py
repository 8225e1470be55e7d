"""The strategies by name, best guess first: what the curve compares, and what `auto` takes and is checked by.

Called by onboarding and the benchmarks. A strategy is added here and nowhere else.
"""

from __future__ import annotations

from pathlib import Path

from transfer.adapt.base import Regime, Strategy
from transfer.adapt.guard import Auto
from transfer.adapt.maml import Maml
from transfer.adapt.multitask import MultiTask, Scratch
from transfer.adapt.nearest import Nearest
from transfer.adapt.source_devices import SourceDevices
from transfer.adapt.tuned_heads import Boosted, FineTuneHead, Momentum

#: What `auto` takes first, and what that is checked against.
GUARDED = ("source_devices", "multitask", "maml", "scratch")
#: The same where nothing is known of source devices but their heads.
GUARDED_ALONE = ("boosted", "nearest", "scratch")


def strategies(starts: Path | None = None) -> dict[str, Strategy]:
    """All strategies, fresh ones: some keep what they made for given sources.

    Args:
        starts: Folder of the source model's version, where its meta-trained start is kept; None for nowhere.
    """
    several: tuple[Strategy, ...] = (
        SourceDevices(),
        Boosted(),
        MultiTask(),
        FineTuneHead(),
        Momentum(),
        Maml(starts=starts),
        Nearest(),
        Scratch(),
    )
    return {strategy.name: strategy for strategy in several}


def auto(regime: Regime, by_name: dict[str, Strategy], guarded: tuple[str, ...] = GUARDED) -> Auto:
    """The strategy that users get, made of some of those in `by_name`."""
    return Auto(strategies=tuple(by_name[name] for name in guarded), regime=regime)


#: All names, for options and settings.
NAMES = tuple(strategies())
