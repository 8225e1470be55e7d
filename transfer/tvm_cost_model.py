"""One head of a model as TVM's cost model: what MetaSchedule's search asks for scores.

    from tvm.s_tir import meta_schedule as ms
    scorer = load_scorer(Path("runs/models/v000003"), "x86-64-v3", workloads)
    ms.tune_tir(module, target, work_dir, max_trials_global=64, cost_model=cost_model(scorer))

Before the first measurement the scores are those of `Adapted.score_unseen` for the same traces, bit for bit;
of a head with nothing beside it, those of `TlpModel.score`. What a search measures then moves them: each
round is learnt (`transfer.search.learner`), as in `fleet tune`. MetaSchedule's evolutionary search draws
parents in proportion to max(score, 0): scores are relative speeds above 0, so a candidate that is thought
twice as fast has twice as many children, and there is always one to draw (all scores 0 would make the chances
0 / 0). TLP's own plug-in hands out the sums of a ranking loss, whose zero is anywhere. Imports TVM when
`cost_model` is called; knows nothing of stores.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from msgspec.structs import replace

from agents.records import Candidate, Workload, WorkloadId, canonical_json
from transfer.adapt.base import Adapted
from transfer.adapt.kept import load_adapted
from transfer.arrays import Floats, Ints, Singles
from transfer.errors import TraceError, TransferError
from transfer.features.blocks import FeatureBlock
from transfer.features.extractor import DEFAULT_SPEC, Extractor
from transfer.features.flat import flat_inputs
from transfer.model.inputs import torch_threads
from transfer.model.trees import bounded_scores
from transfer.search.learner import Learner

#: Score of a candidate whose trace cannot be read, and the least score of all: never a parent as long as
#: there are others, yet above 0.
LEAST_SCORE = 1e-9

#: Scores below count as this where a search learns: what is nearly impossible must not rule a fit.
_LEAST_LEARNT = 1e-3
#: TVM writes 1e10 seconds where a candidate failed.
_FAILED_SECS = 1e9


class Scorer:
    """Scores the schedules of known workloads for one device; not safe between threads.

    Args:
        head: The head of the device to tune for.
        workloads: Workloads that may be asked about, as the model was trained on them.
        describe: Makes the `Workload` of a `tvm.IRModule` that is not among `workloads`, such as
            `agents.programs.workloads.workload_from_module` with a name and an operator. Without it those are
            refused.
        learns: Let the rounds of a search move its scores; without it they stay the head's. The model itself
            stays as it is: keep the records, and train or adapt afterwards.
    """

    def __init__(
        self,
        head: Adapted,
        workloads: Iterable[Workload] = (),
        *,
        describe: Callable[[Any], Workload] | None = None,
        learns: bool = True,
    ) -> None:
        self._head = head
        self._learns = learns
        self._learners: dict[WorkloadId, Learner] = {}
        self._describe = describe
        self._workloads = {workload.workload_id: workload for workload in workloads}
        self._extractor = Extractor()

    def workload_of(self, module: Any) -> Workload:
        """The workload of a `tvm.IRModule`, found by its structural hash.

        Raises:
            TransferError: It is not known, and there is nothing to describe it with.
        """
        from tvm_ffi import structural_hash

        workload_id = WorkloadId(f"{structural_hash(module) & (2**64 - 1):016x}")
        found = self._workloads.get(workload_id)
        if found is None:
            if self._describe is None:
                raise TransferError(
                    f"workload {workload_id} is not among the {len(self._workloads)} that the scorer was "
                    "given; add it, or give `describe`"
                )
            # The key is the module's own hash, whatever the description says.
            found = replace(self._describe(module), workload_id=workload_id)
            self._workloads[workload_id] = found
        return found

    def score(self, workload: Workload, schedules: Sequence[Any]) -> Floats:
        """Score schedules of one workload.

        Args:
            workload: What all of them schedule.
            schedules: `tvm.s_tir.Schedule`s with a trace, or the JSON texts of traces; one kind in one call.

        Returns:
            (n,) scores in [`LEAST_SCORE`, 1], higher is faster.

        Raises:
            TransferError: One of them is neither, or both kinds are mixed.
        """
        texts = sum(isinstance(one, str) for one in schedules)
        if texts not in (0, len(schedules)):
            raise TransferError("a scorer takes schedules or JSON texts of traces, and not both in one call")
        if not texts and (strangers := [one for one in schedules if not hasattr(one, "trace")]):
            raise TransferError(
                "a scorer takes schedules of TVM (`tvm.s_tir.Schedule`) or the JSON texts of traces, got "
                f"{type(strangers[0]).__name__}"
            )
        scores = np.full(len(schedules), LEAST_SCORE)
        readable, block = self._read(workload, schedules)
        if len(readable):
            found = self._head_scores(block)
            learner = self._learners.get(workload.workload_id)
            # Of texts the head alone is asked.
            if learner is not None and not texts:
                speeds = learner.log_speeds(self._flat(block), _logarithms(found))
                if learner.is_trusted:
                    found = bounded_scores(speeds - learner.best)
            scores[readable] = found
        result: Floats = np.maximum(scores, LEAST_SCORE)
        return result

    def learn(
        self, workload: Workload, schedules: Sequence[Any], latency_secs: Sequence[float | None]
    ) -> None:
        """Learn what was measured of schedules of one workload.

        Args:
            workload: What all of them schedule.
            schedules: As of `score`.
            latency_secs: The fastest repeat of each; None where it did not run.
        """
        ran = [place for place, secs in enumerate(latency_secs) if secs is not None]
        readable, block = self._read(workload, [schedules[place] for place in ran])
        if self._learns and len(readable):
            latency = np.array([latency_secs[place] for place in ran], dtype=np.float64)[readable]
            learner = self._learners.setdefault(workload.workload_id, Learner())
            learner.learn(self._flat(block), _logarithms(self._head_scores(block)), latency)

    def _read(self, workload: Workload, schedules: Sequence[Any]) -> tuple[Ints, FeatureBlock]:
        """Places of schedules that can be read, and their features."""
        try:
            return np.arange(len(schedules)), self._extract(workload, schedules)
        except TraceError:
            # One that cannot be read must not end the search.
            readable = np.flatnonzero([self._is_readable(workload, one) for one in schedules])
            return readable, self._extract(workload, [schedules[place] for place in readable.tolist()])

    def _head_scores(self, block: FeatureBlock) -> Floats:
        # One thread, as in evaluation: more would add up in another order.
        with torch_threads(1):
            return self._head.score_unseen(block)

    def _flat(self, block: FeatureBlock) -> Singles:
        return flat_inputs(block, self._extractor.spec.category_sizes)

    def _extract(self, workload: Workload, schedules: Sequence[Any]) -> FeatureBlock:
        layout = self._head.model.layout
        if not isinstance(next(iter(schedules), None), str):
            return self._extractor.extract_live(workload, schedules, layout)
        # Traces as records keep them.
        candidates = [Candidate(workload_id=workload.workload_id, trace=trace) for trace in schedules]
        return self._extractor.extract(workload, candidates, layout)

    def _is_readable(self, workload: Workload, schedule: Any) -> bool:
        try:
            self._extract(workload, [schedule])
        except TraceError:
            return False
        return True


def load_scorer(
    folder: Path,
    device_id: str,
    workloads: Iterable[Workload] = (),
    *,
    describe: Callable[[Any], Workload] | None = None,
    learns: bool = True,
) -> Scorer:
    """The scorer of a checkpoint's head; arguments as for `Scorer`.

    Raises:
        CheckpointError: The checkpoint is missing, damaged, or reads other features.
        TransferError: It has no head for the device.
    """
    head = load_adapted(folder, device_id, DEFAULT_SPEC)
    return Scorer(head, workloads, describe=describe, learns=learns)


def cost_model(scorer: Scorer) -> Any:
    """TVM's view of a scorer.

    Args:
        scorer: Gives the scores.

    Returns:
        A `tvm.s_tir.meta_schedule.CostModel`, to be given to `tune_tir`, `tune_relax`, or a `TuneContext`'s
        search strategy as `cost_model`.
    """
    from tvm.ir.utils import derived_object
    from tvm.s_tir.meta_schedule.cost_model import PyCostModel

    @derived_object
    class FleetCostModel(PyCostModel):  # type: ignore[misc]  # tvm publishes no types
        """A head of a fleet's model."""

        def update(self, context: Any, candidates: Sequence[Any], results: Sequence[Any]) -> None:
            """Learn the round."""
            workload = scorer.workload_of(context.mod)
            latency = [_latency_secs(result) for result in results]
            scorer.learn(workload, [candidate.sch for candidate in candidates], latency)

        def predict(self, context: Any, candidates: Sequence[Any]) -> Floats:
            workload = scorer.workload_of(context.mod)
            return scorer.score(workload, [candidate.sch for candidate in candidates])

    return FleetCostModel()


def _latency_secs(result: Any) -> float | None:
    """The fastest repeat of a `RunnerResult`; None where it did not run."""
    secs = [float(one) for one in result.run_secs or ()]
    return min(secs) if secs and result.error_msg is None and 0 < min(secs) < _FAILED_SECS else None


def _logarithms(scores: Floats) -> Floats:
    logarithms: Floats = np.log(np.maximum(scores, _LEAST_LEARNT))
    return logarithms


def stored_trace(schedule: Any) -> str:
    """Trace of a `tvm.s_tir.Schedule` as records keep it: canonical JSON."""

    def plain(value: Any) -> Any:
        return value.value if hasattr(value, "value") else list(value)

    return canonical_json(json.loads(json.dumps(schedule.trace.as_json(), default=plain)))
