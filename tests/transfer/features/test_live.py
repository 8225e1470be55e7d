from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from agents.records import Candidate, Family, Workload
from tests.dataset_fixtures import NRM_TRACE, gmm_trace, gmm_workload
from tests.model_fixtures import assert_same_features
from tests.table_fixtures import rows
from tests.tvm_fixtures import replayed
from transfer.features.extractor import DEFAULT_SPEC, Extractor


def live_and_stored(
    operator: str, args: Sequence[int], family: Family, count: int
) -> tuple[Workload, list[Any], list[Candidate]]:
    import tvm

    from agents.programs.design_space import DesignSpace
    from agents.programs.workloads import operator_workload

    workload = operator_workload(operator, args)
    stored = list(DesignSpace(workload, family).sample(count, seed=3).candidates)
    module = tvm.ir.load_json(workload.module_json)
    return workload, [replayed(module, one.trace) for one in stored], stored


@pytest.mark.tvm
@pytest.mark.parametrize(
    ("program", "space"),
    rows("""
        C2D 1 14 14 16 32 3 1 1 -> cpu 12
        T2D 1 4 4 64 32 4 2 1   -> cpu 12
        SFM 64 64               -> cpu 16
        NRM 1 64 64             -> cpu 8
        SFM 64 64               -> gpu 8
    """),
)
def test_live_features_are_those_of_the_stored_traces(program: str, space: str) -> None:
    operator, *args = program.split()
    family, count = space.split()
    workload, schedules, stored = live_and_stored(operator, [*map(int, args)], Family(family), int(count))
    assert len(schedules) >= int(count) // 2
    extractor = Extractor()
    expected = extractor.extract(workload, stored)
    assert_same_features(Extractor().extract_live(workload, schedules), expected)
    assert_same_features(extractor.extract_live(workload, schedules), expected)
    # Alone, and out of order.
    assert_same_features(
        extractor.extract_live(workload, schedules[::-3]), expected.take(np.arange(len(stored))[::-3])
    )


@pytest.mark.tvm
def test_tiles_with_the_same_structural_hash_do_not_mix() -> None:
    import tvm
    from tvm_ffi import convert, structural_hash

    from agents.programs.design_space import DesignSpace
    from agents.programs.workloads import operator_workload

    tiles = {28: [2, 7, 1, 2], 3136: [4, 392, 1, 2]}
    assert len({structural_hash(convert(tile)) for tile in tiles.values()}) == 1
    extractor = Extractor()
    for extent, tile in tiles.items():
        workload = operator_workload("GMM", (1, extent, 32, 32))
        [drawn] = DesignSpace(workload, Family.CPU).sample(1, seed=3).candidates
        steps, decisions = json.loads(drawn.trace)
        length = next(place for place, step in enumerate(steps) if step[0] == "Unannotate")
        decisions = [one for one in decisions if one[0] < length]
        changed = next(one for one in decisions if len(one[1]) == 4 and math.prod(one[1]) == extent)
        changed[1] = tile
        trace = json.dumps([steps[:length], decisions])
        schedule = replayed(tvm.ir.load_json(workload.module_json), trace)
        stored = [Candidate(workload_id=workload.workload_id, trace=trace)]
        assert_same_features(
            extractor.extract_live(workload, [schedule]), Extractor().extract(workload, stored)
        )


@pytest.mark.parametrize("max_steps", [40, 9])
def test_decisions_give_the_features_of_their_traces(max_steps: int) -> None:
    workload = gmm_workload()
    traces = [gmm_trace(i=(2, 2, 2, 16), k=(128 // k, k), unroll=u) for k in (1, 2, 8) for u in range(4)]
    traces += [NRM_TRACE, gmm_trace(tail=False), *traces[:3]]
    spec = replace(DEFAULT_SPEC, max_steps=max_steps)
    stored = [Candidate(workload_id=workload.workload_id, trace=trace) for trace in traces]
    expected = Extractor(spec).extract(workload, stored)
    extractor = Extractor(spec)
    decided = [extractor.decided(workload, trace) for trace in traces]
    assert_same_features(extractor.extract_decided(workload, decided), expected)
    assert_same_features(
        extractor.extract_decided(workload, decided[::-2]), expected.take(np.arange(17)[::-2])
    )
