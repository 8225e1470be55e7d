"""TVM's own search of a whole network: `tune_relax` with its XGBoost model, the baseline of `networks.py`.

Run as a process of its own, `python -m benchmarks.tvm_network`, with one JSON object on stdin. It searches
until it is ended; its database lies in the folder that the question names. It measures with the same worker
processes as the other side: its own builder starts processes anew for each round, half a minute on two cores,
and would see few candidates in the same time. Asked to compile, it makes the library of that database.
"""

from __future__ import annotations

import json
import sys
from typing import Any

from agents.networks.graph import fused, relax_module
from agents.networks.network_name import read_network_name
from agents.networks.sources import load
from agents.records import Family
from fleet import tvm_measure


def programs(question: dict[str, Any]) -> Any:
    """The network as tensor programs: those of the other side, or as TVM's own pipeline makes them.

    Args:
        question: `network`, `target`, `own_programs`.
    """
    import tvm
    from tvm import relax

    text = question["network"]
    module = relax_module(load(read_network_name(text)))
    if not question["own_programs"]:
        return fused(module, Family.CPU, text)
    # As `relax.pipeline.static_shape_tuning_pipeline` begins.
    passes = [relax.transform.DecomposeOpsForInference(), relax.transform.CanonicalizeBindings()]
    with tvm.target.Target(question["target"]):
        return tvm.transform.Sequential([*passes, relax.get_pipeline("zero")])(module)


def search(question: dict[str, Any]) -> None:
    """Search a network.

    Args:
        question: As of `programs`, and `work_dir`, `trials`, `per_round`, `seed`, `device`.
    """
    import tvm
    from tvm.s_tir import meta_schedule as ms

    with tvm_measure(question["device"]) as ours:
        ms.relax_integration.tune_relax(
            mod=programs(question),
            params={},
            target=tvm.target.Target(question["target"]),
            work_dir=question["work_dir"],
            max_trials_global=question["trials"],
            num_trials_per_iter=question["per_round"],
            builder=ours.builder,
            runner=ours.runner,
            cost_model="xgb",
            seed=question["seed"],
        )


def compile_found(question: dict[str, Any]) -> None:
    """Compile the network with the schedules of a search.

    Args:
        question: As of `programs`, and `work_dir`, `library` (path of what is made).
    """
    import tvm
    from tvm import relax
    from tvm.s_tir import meta_schedule as ms

    target = tvm.target.Target(question["target"])
    database = ms.database.JSONDatabase(work_dir=question["work_dir"])
    # `compile_relax` would fuse the fused programs once more, and find no schedule for them.
    with target, database:
        made = relax.transform.MetaScheduleApplyDatabase(enable_warning=True)(programs(question))
    relax.build(made, target).export_library(question["library"])


def main() -> None:
    """Search until it is done, or until somebody ends it; or compile."""
    question = json.load(sys.stdin)
    (compile_found if "library" in question else search)(question)


if __name__ == "__main__":
    main()
