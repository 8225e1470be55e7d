"""A head inside TVM's own search: the same scores as offline, and what a search needs of them.

`test_tutorials.py` runs a whole search with one.
"""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from agents.programs.workloads import operator_workload, own_module
from agents.records import Candidate, Family, Workload
from tests.tvm_fixtures import replayed
from transfer.adapt.base import Adapted
from transfer.errors import TransferError
from transfer.features.blocks import CPU_LAYOUT
from transfer.features.extractor import DEFAULT_SPEC, Extractor
from transfer.model.encoder import ModelSizes
from transfer.model.fleet_tlp import FleetTLP, model_config, scoped_seed
from transfer.model.inputs import torch_threads
from transfer.model.mtl_tlp import MtlTLP
from transfer.model.tlp_model import TlpModel
from transfer.tvm_cost_model import (
    LEAST_SCORE,
    Scorer,
    cost_model,
    stored_trace,
)

pytestmark = pytest.mark.tvm

DEVICE = "x86-64-v3"
TARGET = {"kind": "llvm", "num-cores": 1}


@pytest.fixture(scope="module")
def workload() -> Workload:
    return operator_workload("GMM", (1, 64, 64, 64))


@pytest.fixture(scope="module")
def context(workload: Workload) -> Any:
    from agents.programs.tvm_import import load_tensor_intrinsics

    load_tensor_intrinsics(Family.CPU)
    import tvm
    from tvm.s_tir.meta_schedule import TuneContext

    return TuneContext(
        mod=tvm.ir.load_json(workload.module_json),
        target=tvm.target.Target(TARGET),
        space_generator="post-order-apply",
        search_strategy="evolutionary",
        task_name=workload.name,
        num_threads=1,
        rand_state=1,
    )


@pytest.fixture(scope="module")
def schedules(workload: Workload) -> list[Any]:
    from agents.programs.design_space import DesignSpace

    drawn = DesignSpace(workload, Family.CPU).sample(24, seed=0).candidates
    return [replayed(own_module(workload), candidate.trace) for candidate in drawn]


@pytest.fixture(scope="module")
def model(workload: Workload, schedules: list[Any]) -> FleetTLP:
    with scoped_seed(0):
        made = FleetTLP(model_config(DEFAULT_SPEC, ModelSizes()), (DEVICE, "other"))
    made.fit_scaler(Extractor().extract_live(workload, schedules))
    return made.eval()


def scorer_of(model: TlpModel, workload: Workload, *, learns: bool = True) -> Scorer:
    return Scorer(Adapted(device_id=DEVICE, model=model), [workload], learns=learns)


def offline(model: FleetTLP, workload: Workload, schedules: Sequence[Any]) -> np.ndarray:
    """Scores of the stored traces, by the way that evaluation takes."""
    candidates = [Candidate(workload_id=workload.workload_id, trace=stored_trace(one)) for one in schedules]
    block = Extractor().extract(workload, candidates)
    with torch_threads(1):
        return model.score(block, DEVICE)


def predict(served: Any, context: Any, schedules: Sequence[Any]) -> np.ndarray:
    """What TVM gets: through its own call into the plug-in."""
    from tvm.s_tir.meta_schedule import MeasureCandidate
    from tvm.s_tir.meta_schedule.arg_info import ArgInfo

    infos = ArgInfo.from_prim_func(context.mod["main"])
    return served.predict(context, [MeasureCandidate(one, infos) for one in schedules])


def test_served_scores_are_the_offline_scores_bit_for_bit(
    workload: Workload, context: Any, schedules: list[Any], model: FleetTLP
) -> None:
    served = predict(cost_model(scorer_of(model, workload)), context, schedules)
    expected = offline(model, workload, schedules)
    assert served.dtype == expected.dtype == np.float64
    assert served.tobytes() == expected.tobytes()
    assert len(np.unique(served)) > len(schedules) // 2


def test_an_mtl_tlp_is_served_by_the_features_that_it_reads(
    workload: Workload, context: Any, schedules: list[Any]
) -> None:
    with scoped_seed(3):
        model = MtlTLP(CPU_LAYOUT, (DEVICE,)).eval()
    candidates = [Candidate(workload_id=workload.workload_id, trace=stored_trace(one)) for one in schedules]
    block = Extractor().extract(workload, candidates, CPU_LAYOUT)
    served = predict(cost_model(scorer_of(model, workload)), context, schedules)
    assert served.tobytes() == model.score(block, DEVICE).tobytes()
    assert len(np.unique(served)) > len(schedules) // 2


def test_what_a_search_measures_moves_the_scores(
    workload: Workload, context: Any, schedules: list[Any], model: FleetTLP
) -> None:
    from tvm.s_tir.meta_schedule import MeasureCandidate
    from tvm.s_tir.meta_schedule.arg_info import ArgInfo
    from tvm.s_tir.meta_schedule.runner import RunnerResult

    infos = ArgInfo.from_prim_func(context.mod["main"])
    candidates = [MeasureCandidate(one, infos) for one in schedules]
    head = offline(model, workload, schedules)
    # The head has it the wrong way round.
    secs = (1e-4 * (2 + np.argsort(np.argsort(head)))).tolist()
    results = [RunnerResult([2 * one, one], None) for one in secs]
    results[3] = RunnerResult(None, "it broke")
    results[4] = RunnerResult([1e10], None)

    still = cost_model(scorer_of(model, workload, learns=False))
    still.update(context, candidates, results)
    assert predict(still, context, schedules).tobytes() == head.tobytes()

    served = cost_model(scorer_of(model, workload))
    for start in (0, 12):
        part = slice(start, start + 12)
        served.update(context, candidates[part], results[part])
    found = predict(served, context, schedules)
    assert ((found > LEAST_SCORE) & (found < 1)).all()
    ran = np.setdiff1d(np.arange(len(secs)), [3, 4])
    assert np.corrcoef(found[ran], -np.log(np.array(secs)[ran]))[0, 1] > 0.7
    np.testing.assert_allclose(predict(served, context, schedules[:5]), found[:5], rtol=1e-9)


def test_traces_as_texts_get_the_same_scores(
    workload: Workload, schedules: list[Any], model: FleetTLP
) -> None:
    scorer = scorer_of(model, workload)
    texts = [stored_trace(one) for one in schedules]
    assert scorer.score(workload, texts).tobytes() == scorer.score(workload, schedules).tobytes()
    scores = scorer.score(workload, [texts[0], "no trace", texts[1]])
    assert scores[1] == LEAST_SCORE
    assert scores[[0, 2]].tobytes() == scorer.score(workload, schedules[:2]).tobytes()
    broken = SimpleNamespace(trace=None)
    assert scorer.score(workload, [broken, *schedules[:2]]).tolist() == [LEAST_SCORE, *scores[[0, 2]]]
    with pytest.raises(TransferError, match="or the JSON texts of traces, got dict"):
        scorer.score(workload, [{}])
