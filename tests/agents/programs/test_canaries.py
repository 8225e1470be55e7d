from __future__ import annotations

import functools
import json
import os

import pytest

from agents.programs.build import build
from agents.programs.canaries import Canary, is_same_roofline, make_canaries, roofline
from agents.programs.design_space import SPACE_TARGETS
from agents.records import Family
from tests.conftest import run_code
from tests.tvm_fixtures import wrong_outputs

pytestmark = [pytest.mark.tvm, pytest.mark.filterwarnings("ignore:build is deprecated")]


#: Those of a family are made once: TVM takes seconds for them.
canaries_of = functools.cache(make_canaries)


@pytest.fixture
def cpu_canaries() -> dict[str, Canary]:
    return {canary.name: canary for canary in canaries_of(Family.CPU)}


def test_a_family_has_three_canaries_which_are_the_same_in_every_process() -> None:
    source = (
        "import json\n"
        "from agents.programs.canaries import make_canaries\n"
        "from agents.records import Family\n"
        "print(json.dumps([[c.name, c.workload.workload_id, c.candidate.candidate_id]\n"
        "                  for family in Family for c in make_canaries(family)]))\n"
    )
    elsewhere = run_code(source, env={**os.environ, "PYTHONHASHSEED": "5"})
    canaries = [canary for family in Family for canary in canaries_of(family)]
    here = [[one.name, one.workload.workload_id, one.candidate.candidate_id] for one in canaries]
    assert json.loads(elsewhere.splitlines()[-1]) == here
    assert [one.name for one in canaries] == ["compute", "memory", "latency"] * 2
    assert len({one.candidate.candidate_id for one in canaries}) == 6
    assert {one.candidate.origin for one in canaries} == {"canary"}
    assert all(one.candidate.workload_id == one.workload.workload_id for one in canaries)


@pytest.mark.parametrize("name", ["compute", "memory", "latency"])
def test_cpu_canaries_compute_what_their_plain_loops_do(cpu_canaries: dict[str, Canary], name: str) -> None:
    canary = cpu_canaries[name]
    assert wrong_outputs(canary.workload, canary.candidate.trace) == ""


def test_each_cpu_canary_has_the_working_set_of_its_kind(cpu_canaries: dict[str, Canary]) -> None:
    moved = {name: canary.workload.bytes_moved for name, canary in cpu_canaries.items()}
    assert moved["compute"] <= 64 << 10
    assert cpu_canaries["compute"].workload.flops / moved["compute"] > 1000
    assert moved["memory"] >= 64 << 20
    assert 256 << 10 < moved["latency"] <= 1 << 20


def test_gpu_canaries_are_bound_to_threads_exceed_their_caches_and_compile_without_a_gpu() -> None:
    import tvm

    compute, memory, latency = made = canaries_of(Family.GPU)
    target = tvm.target.Target(SPACE_TARGETS[Family.GPU])
    for canary in made:
        built = build(tvm.ir.load_json(canary.workload.module_json), canary.candidate.trace, target)
        source = built.module.imports[0].inspect_source()
        assert "__global__" in source
        if canary is not latency:  # that one is a single thread
            assert all(one in source for one in ("__launch_bounds__(256)", "blockIdx.x", "threadIdx.x"))
    assert compute.workload.flops / compute.workload.bytes_moved > 400
    assert memory.workload.bytes_moved > 256 << 20
    assert latency.workload.bytes_moved > 8 << 20


@pytest.mark.parametrize("family", Family)
def test_a_roofline_counts_what_the_canaries_do(family: Family) -> None:
    """By TVM's own count of operations, and by the sizes of the arguments."""
    import tvm

    by_name = {canary.name: canary.workload for canary in canaries_of(family)}
    found = dict(roofline(family, {"compute": 0.5, "memory": 0.25, "latency": 2.0}))
    assert found["flops_per_sec"] == pytest.approx(by_name["compute"].flops / 0.5, rel=1e-3)
    assert found["bytes_per_sec"] == pytest.approx(by_name["memory"].bytes_moved / 0.25, rel=1e-5)
    script = tvm.ir.load_json(by_name["latency"].module_json).script()
    assert f"range({found['loads_per_sec'] * 2:.0f})" in script
    assert list(found) == sorted(found)


@pytest.mark.parametrize("secs", [{}, {"compute": 0.0}, {"compute": float("inf")}, {"another": 1.0}])
def test_without_times_there_is_no_roofline(secs: dict[str, float]) -> None:
    assert roofline(Family.CPU, secs) == ()


def test_rooflines_are_the_same_within_the_scatter_of_a_steady_device() -> None:
    one = roofline(Family.CPU, {"compute": 1.0, "memory": 1.0})
    assert is_same_roofline(one, roofline(Family.CPU, {"compute": 1.03, "memory": 0.97}))
    assert not is_same_roofline(one, roofline(Family.CPU, {"compute": 1.1, "memory": 1.0}))
    assert not is_same_roofline(one, roofline(Family.CPU, {"compute": 1.0}))
    assert is_same_roofline((), ())
