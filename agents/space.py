"""Candidates of a workload: random members of MetaSchedule's design space, made once for a family.

A candidate's trace is complete: sampled decisions and the instructions of the post-processors are in it,
so the same trace gives the same program under any target of the family. Runs in a worker process
(`child.py`); imports TVM when called.
"""

from __future__ import annotations

import random
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

from agents.records import Candidate, CandidateId, Family, Workload, WorkloadId, canonical_json
from agents.tvm_import import load_tensor_intrinsics

#: Targets that design spaces are made for. One a family, not one a device: what a device can do is left to
#: code generation, so every device of the family is asked for the same programs. `num-cores` scales only
#: the extent of the parallel loop (MetaSchedule: 16 jobs a core).
SPACE_TARGETS: dict[Family, dict[str, Any]] = {
    Family.CPU: {"kind": "llvm", "num-cores": 1},
    Family.GPU: {
        "kind": "cuda",
        "arch": "sm_80",
        "max_threads_per_block": 1024,
        "max_shared_memory_per_block": 49152,
        "thread_warp_size": 32,
    },
}

#: Draws allowed for one wanted candidate before the space counts as used up. CPU draws nearly all pass;
#: about one CUDA draw in ten passes the post-processors.
_TRIES_PER_CANDIDATE = {Family.CPU: 4, Family.GPU: 60}


@dataclass(frozen=True, slots=True)
class Proposal:
    """Fresh candidates, and what it took to find them."""

    candidates: tuple[Candidate, ...]
    #: Draws made.
    tries: int
    #: Draws that a post-processor refused.
    refused: int
    #: Draws whose program was known already.
    repeated: int


def plain_json(value: Any) -> Any:
    """Turn the JSON-like value of a TVM object into Python lists, numbers and text."""
    if value is None or isinstance(value, bool | int | float | str):
        # TVM's own str, int and float subclasses become the plain types.
        for kind in (bool, int, float, str):
            if isinstance(value, kind):
                return kind(value)
        return None
    if hasattr(value, "value"):  # IntImm, FloatImm
        return plain_json(value.value)
    if hasattr(value, "items"):
        return {str(key): plain_json(item) for key, item in value.items()}
    return [plain_json(item) for item in value]


class DesignSpace:
    """The design space of one workload for one family.

    Args:
        workload: What to schedule.
        family: Picks the space's target.
    """

    def __init__(self, workload: Workload, family: Family) -> None:
        load_tensor_intrinsics()
        import tvm
        from tvm.s_tir.meta_schedule import TuneContext

        self._workload = workload
        self._family = family
        self._module = tvm.ir.load_json(workload.module_json)
        context = TuneContext(
            mod=self._module,
            target=tvm.target.Target(SPACE_TARGETS[family]),
            space_generator="post-order-apply",
            search_strategy="replay-trace",
            task_name=workload.name,
            num_threads=1,
            rand_state=1,
        )
        self._spaces = [schedule.trace for schedule in context.generate_design_space()]
        self._postprocs = list(context.space_generator.postprocs)
        self._context = context  # post-processors keep a weak view of it

    def sample(self, count: int, *, seed: int, exclude: Collection[CandidateId] = ()) -> Proposal:
        """Draw up to `count` distinct random candidates, none of them in `exclude`.

        Distinct means distinct programs: two traces that give the same scheduled module count once.
        The same seed gives the same draws; `exclude` only filters them.
        """
        import tvm_ffi
        from tvm.s_tir.schedule import Schedule, Trace

        draws = random.Random(f"{seed}/{self._workload.workload_id}")
        found: list[Candidate] = []
        programs: set[int] = set()
        tries = refused = repeated = 0
        limit = count * _TRIES_PER_CANDIDATE[self._family] + 2 * len(exclude)
        while len(found) < count and tries < limit:
            tries += 1
            space = draws.choice(self._spaces)
            schedule = Schedule(self._module, seed=draws.randrange(1, 2**31 - 1), error_render_level="none")
            # Without its decisions the trace samples them afresh from the schedule's seed.
            Trace(space.insts, {}).apply_to_schedule(schedule, remove_postproc=True)
            if not all(postproc.apply(schedule) for postproc in self._postprocs):
                refused += 1
                continue
            program = tvm_ffi.structural_hash(schedule.mod)
            if program in programs:
                repeated += 1
                continue
            programs.add(program)
            candidate = Candidate(
                workload_id=WorkloadId(self._workload.workload_id),
                trace=canonical_json(plain_json(schedule.trace.as_json())),
            )
            if candidate.candidate_id in exclude:
                repeated += 1
                continue
            found.append(candidate)
        return Proposal(tuple(found), tries, refused, repeated)
