"""The steps of live candidates give the loops of TVM's scheduled program, in CPU and CUDA spaces."""

from __future__ import annotations

import base64
import gzip
import itertools
import json

import pytest
from msgspec.structs import replace

from agents.programs.design_space import DesignSpace
from agents.programs.workloads import operator_workload
from agents.records import Family, WorkloadId, canonical_json
from tests.log_fixtures import ANSOR_LOGS
from tests.program_fixtures import program_workload
from tests.transfer.language.loop_nests import LoopNest, compare, replay_steps, scheduled_paths
from transfer.language.meta_schedule import MetaScheduleReader
from transfer.language.primitives import Kind, Primitive
from transfer.language.program import program_stages

pytestmark = pytest.mark.tvm
LOG = ANSOR_LOGS / "results" / "ms" / "meta_cuda_a100_resnet34_10k"


def interpreted(module_json: str, steps: tuple[Primitive, ...]) -> LoopNest:
    nest = LoopNest(program_stages(module_json))
    for one in steps:
        nest.apply(one)
    return nest


@pytest.mark.parametrize(
    ("operator", "shape", "family", "count"),
    [
        # A tiled block with padding and caches, factored reductions, sampled locations that depend on each
        # other, inlining both ways.
        ("C2D", 0, Family.CPU, 8),
        ("CBR", 0, Family.CPU, 8),
        ("NRM", 0, Family.CPU, 12),
        ("SFM", 1, Family.CPU, 24),
        ("C1D", 0, Family.GPU, 4),
        ("SFM", 0, Family.GPU, 4),
    ],
)
def test_every_loop_agrees(operator: str, shape: int, family: Family, count: int) -> None:
    import tvm
    from tvm.s_tir.meta_schedule.testing import te_workload

    workload = operator_workload(operator, te_workload.CONFIGS[operator][1][shape])
    module, reader = tvm.ir.load_json(workload.module_json), MetaScheduleReader()
    candidates = DesignSpace(workload, family).sample(count, seed=5).candidates
    assert len(candidates) == count
    determined = total = 0
    for one in candidates:
        schedule, made = replay_steps(module, one.trace)
        nest = interpreted(workload.module_json, reader.read(one.trace, workload))
        wrong, *counts = compare(nest, scheduled_paths(schedule.mod), made)
        assert not wrong, one.trace
        determined, total = determined + counts[0], total + counts[1]
    assert determined > total / 2


@pytest.mark.data
@pytest.mark.skipif(
    not LOG.is_dir(), reason="the logs of other people's devices do not lie beside the checkout"
)
def test_traces_of_an_a100_read_without_unknowns_or_contradictions() -> None:
    with gzip.open(LOG / "database_workload.json.gz", "rt") as lines:
        texts = [base64.b64decode(json.loads(line)[1])[8:].decode() for line in lines]
    workloads = [
        replace(program_workload(text), workload_id=WorkloadId(f"{number:016x}"))
        for number, text in enumerate(texts)
    ]
    reader, splits = MetaScheduleReader(), 0
    with gzip.open(LOG / "database_tuning_record.json.gz", "rt") as lines:
        for line in itertools.islice(lines, 0, None, 40):
            index, (trace, *_) = json.loads(line)
            steps = reader.read(canonical_json(trace), workloads[index])
            assert interpreted(texts[index], steps).stages
            splits += sum(step.kind is Kind.SP for step in steps)
    assert splits > 1000
