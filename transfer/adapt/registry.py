"""The strategies by name, best guess first: what `auto` chooses from and the curve compares.

Called by onboarding and the benchmarks. A strategy is added here and nowhere else.
"""

from __future__ import annotations

from transfer.adapt.base import Strategy
from transfer.adapt.finetune import FineTune
from transfer.adapt.masked import Masked
from transfer.adapt.momentum import Momentum
from transfer.adapt.multitask import MultiTask
from transfer.adapt.nearest import Nearest
from transfer.adapt.scratch import Scratch
from transfer.adapt.siblings import Siblings
from transfer.adapt.zero_shot import ZeroShot

STRATEGIES: dict[str, Strategy] = {
    one.name: one
    for one in (
        Siblings(),
        MultiTask(),
        FineTune("whole"),
        FineTune("head"),
        Masked(),
        Momentum(),
        ZeroShot(),
        Nearest(),
        Scratch(),
    )
}
