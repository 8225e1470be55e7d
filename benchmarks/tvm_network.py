"""TVM's own search of a whole network: `tune_relax` with its XGBoost model, the baseline of `networks.py`.

Run as a process of its own, `python -m benchmarks.tvm_network`, with one JSON object on stdin. It searches
until it is ended; its database lies in the folder that the question names. It gets the same fused tensor
programs as the other side, and measures with the same worker processes: its own builder starts processes anew
for each round, half a minute on two cores, and would see few candidates in the same time.
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


def search(question: dict[str, Any]) -> None:
    """Search a network.

    Args:
        question: `network`, `target`, `work_dir`, `trials`, `per_round`, `seed`, `device`.
    """
    import tvm
    from tvm.s_tir import meta_schedule as ms

    text = question["network"]
    module = fused(relax_module(load(read_network_name(text))), Family.CPU, text)
    with tvm_measure(question["device"]) as ours:
        ms.relax_integration.tune_relax(
            mod=module,
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


def main() -> None:
    """Search until it is done, or until somebody ends it."""
    search(json.load(sys.stdin))


if __name__ == "__main__":
    main()
