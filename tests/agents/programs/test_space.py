from __future__ import annotations

import json
import os
from typing import Any

import pytest

from agents.programs.build import scheduled
from agents.programs.design_space import DesignSpace
from agents.programs.workloads import operator_workload
from agents.records import Family, Workload
from tests.conftest import run_code
from tests.tvm_fixtures import wrong_outputs

pytestmark = [pytest.mark.tvm, pytest.mark.filterwarnings("ignore:build is deprecated")]


@pytest.fixture(scope="module")
def product() -> Workload:
    return operator_workload("GMM", (1, 64, 64, 64))


@pytest.fixture(scope="module")
def cpu_space(product: Workload) -> DesignSpace:
    return DesignSpace(product, Family.CPU)


@pytest.fixture(scope="module")
def gpu_space(product: Workload) -> DesignSpace:
    return DesignSpace(product, Family.GPU)


@pytest.fixture(scope="module")
def small_space() -> DesignSpace:
    return DesignSpace(operator_workload("SFM", (16, 64)), Family.CPU)


@pytest.fixture(scope="module")
def parents(cpu_space: DesignSpace) -> list[str]:
    return [candidate.trace for candidate in cpu_space.sample(3, seed=1).candidates]


def sampled(trace: str) -> list[tuple[Any, Any]]:
    """The sampling steps of a trace's design space, with their decisions."""
    steps, decisions = json.loads(trace)
    return [
        (steps[place][0], json.dumps(value))
        for place, value in decisions
        if steps[place][0].startswith("Sample")
    ]


def changes(one: str, other: str) -> int:
    """How many decisions tell two traces apart; many if they are of different design spaces."""
    left, right = sampled(one), sampled(other)
    if [step for step, _ in left] != [step for step, _ in right]:
        return len(left) + len(right)
    return sum(a != b for a, b in zip(left, right, strict=True))


def test_evolved_candidates_are_one_mutation_from_a_parent_and_compute_the_right_thing(
    product: Workload, cpu_space: DesignSpace, parents: list[str]
) -> None:
    proposal = cpu_space.evolve(parents, 12, seed=4)
    assert len(proposal.candidates) == 12
    assert len({candidate.candidate_id for candidate in proposal.candidates}) == 12
    assert {candidate.origin for candidate in proposal.candidates} == {"evolved"}
    assert not {candidate.trace for candidate in proposal.candidates} & set(parents)
    assert proposal.tries == 12 + proposal.refused + proposal.repeated

    for candidate in proposal.candidates:
        assert min(changes(candidate.trace, parent) for parent in parents) == 1
        assert wrong_outputs(product, candidate.trace) == ""


def test_proposals_are_the_same_in_every_process(cpu_space: DesignSpace, parents: list[str]) -> None:
    source = (
        "import json, sys\n"
        "from agents.records import Family\n"
        "from agents.programs.design_space import DesignSpace\n"
        "from agents.programs.workloads import operator_workload\n"
        "space = DesignSpace(operator_workload('GMM', (1, 64, 64, 64)), Family.CPU)\n"
        "parents = [one.trace for one in space.sample(3, seed=1).candidates]\n"
        "print(json.dumps([parents, [one.trace for one in space.evolve(parents, 8, seed=4).candidates]]))\n"
    )
    elsewhere = run_code(source, env={**os.environ, "PYTHONHASHSEED": "7"})
    here = [candidate.trace for candidate in cpu_space.evolve(parents, 8, seed=4).candidates]
    assert json.loads(elsewhere.splitlines()[-1]) == [parents, here]
    other_seed = [candidate.trace for candidate in cpu_space.evolve(parents, 8, seed=5).candidates]
    assert other_seed != here


def test_better_parents_have_more_children(cpu_space: DesignSpace) -> None:
    one, other = (cpu_space.sample(1, seed=seed).candidates[0].trace for seed in (11, 12))
    assert changes(one, other) > 2  # no child is near to both

    def children_of_the_first(order: list[str]) -> int:
        found = cpu_space.evolve(order, 30, seed=1).candidates
        return sum(changes(candidate.trace, order[0]) == 1 for candidate in found)

    assert children_of_the_first([one, other]) > 15
    assert children_of_the_first([other, one]) > 15


def test_parents_that_do_not_replay_are_skipped_and_counted(
    cpu_space: DesignSpace, small_space: DesignSpace, parents: list[str]
) -> None:
    softmax = small_space.sample(1, seed=1).candidates[0].trace
    steps, decisions = json.loads(parents[0])
    unknown_step = json.dumps([[["NoSuchStep", [], [], []], *steps], decisions])
    wrong_tile = json.dumps([steps, [[place, [3, 5, 7, 11]] for place, _ in decisions]])
    bad = ["{", "[]", "7", "[[],[]]", softmax, unknown_step, wrong_tile]
    for nobody in (bad, []):
        alone = cpu_space.evolve(nobody, 5, seed=1)
        assert alone.candidates == []
        assert (alone.tries, alone.refused, alone.repeated) == (len(nobody), len(nobody), 0)
    mixed = cpu_space.evolve([*bad, parents[0]], 5, seed=1)
    assert len(mixed.candidates) == 5
    assert mixed.refused >= len(bad)
    assert all(changes(candidate.trace, parents[0]) == 1 for candidate in mixed.candidates)


def test_gpu_candidates_evolve_without_a_gpu(product: Workload, gpu_space: DesignSpace) -> None:
    import tvm

    parents = [candidate.trace for candidate in gpu_space.sample(2, seed=1).candidates]
    children = gpu_space.evolve(parents, 6, seed=1).candidates
    assert len(children) == 6
    module = tvm.ir.load_json(product.module_json)
    for child in children:
        assert min(changes(child.trace, parent) for parent in parents) == 1
        assert "threadIdx.x" in scheduled(module, child.trace).mod.script()


def test_a_gpu_space_is_not_used_up_by_the_candidates_that_are_known(gpu_space: DesignSpace) -> None:
    drawn = gpu_space.sample(45, seed=0)
    assert drawn.tries < 45 * 8, "of TVM's own draws one in ten or twenty has threads that fit"
    known = {candidate.candidate_id for candidate in drawn.candidates}
    # The same seed draws the known ones first.
    more = gpu_space.sample(2, seed=0, exclude=known)
    assert len(more.candidates) == 2
    assert not known & {candidate.candidate_id for candidate in more.candidates}
    assert more.repeated == 45


def test_a_space_is_used_up_when_draws_show_nothing_new(monkeypatch: pytest.MonkeyPatch) -> None:
    space = DesignSpace(operator_workload("SFM", (1, 4)), Family.GPU)  # some 200 programs
    monkeypatch.setattr("agents.programs.design_space._BARREN_SAMPLES", 8)
    every = space.sample(500, seed=0)
    assert 0 < len(every.candidates) < 200
    assert every.tries == len(every.candidates) + every.repeated + every.refused
    known = {candidate.candidate_id for candidate in every.candidates}
    assert space.sample(500, seed=0, exclude=known).candidates == []
    monkeypatch.setattr("agents.programs.design_space._MOST_TRIES", 20)
    assert space.sample(500, seed=0).tries == 20
