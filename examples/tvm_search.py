"""Search one operator with TVM's own `tune_tir`, measured by fleet and ranked by a head of a fleet's model.

Run it with `python examples/tvm_search.py DEVICE VERSION TRIALS`, for instance `x86-64-v3 v000001 64`.
"""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path

import tvm
from tvm.s_tir import meta_schedule as ms

import fleet
from agents.programs.workloads import operator_workload, workload_from_module
from transfer.tvm_cost_model import cost_model, load_scorer


def main() -> None:
    """Search, then print the best latency."""
    device, version, trials = sys.argv[1], sys.argv[2], int(sys.argv[3])
    workload = operator_workload("GMM", (1, 128, 128, 128))  # or any module of yours
    module = tvm.ir.load_json(workload.module_json)
    target = tvm.target.Target({"kind": "llvm", "mcpu": device, "num-cores": 1})
    # Names a module that the search derives and the scorer was not given.
    describe = partial(workload_from_module, name="mine", operator="relax")
    scorer = load_scorer(Path("runs/models", version), device, [workload], describe=describe)
    with fleet.tvm_measure(device) as ours:
        database = ms.tune_tir(
            module,
            target,
            work_dir="runs/tvm_search",
            max_trials_global=trials,
            builder=ours.builder,
            runner=ours.runner,
            cost_model=cost_model(scorer),
        )
    records = database.get_all_tuning_records()
    best = min(float(min(record.run_secs)) for record in records)
    print(f"{len(records)} programs measured; the fastest takes {1e6 * best:.1f} us")


if __name__ == "__main__":
    main()
