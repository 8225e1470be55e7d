from __future__ import annotations

import json
import math
import operator
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from agents.records import Candidate, Family, Workload
from tests.dataset_fixtures import NRM_TRACE, gmm_trace, gmm_workload
from tests.model_fixtures import assert_same_features
from transfer.errors import TraceError
from transfer.features import live_traces
from transfer.features.extractor import DEFAULT_SPEC, Extractor
from transfer.features.live_traces import LiveReader, TraceForm
from transfer.language.meta_schedule import MetaScheduleReader


@dataclass
class FakeTrace:
    """What `LiveReader` uses of a trace."""

    insts: list[Any]
    decisions: dict[int, Any]

    @classmethod
    def of(cls, stored: str) -> FakeTrace:
        instructions, decisions = json.loads(stored)
        insts = [
            SimpleNamespace(kind=SimpleNamespace(name=one[0]), attrs=one[2], json=one) for one in instructions
        ]
        return cls(insts, dict(decisions))


def parts(trace: FakeTrace) -> Any:
    kept = [[place, value] for place, value in trace.decisions.items() if place < len(trace.insts)]
    return [[inst.json for inst in trace.insts], kept]


def counted(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Grows by one with each space that is compiled."""
    found: list[Any] = []
    compile_ = live_traces.compile_plan
    monkeypatch.setattr(live_traces, "compile_plan", lambda *args: found.append(args) or compile_(*args))
    return found


FORM = TraceForm(parts, operator.getitem, operator.eq)


def steps_of(reader: LiveReader, trace: Any, workload: Workload) -> Any:
    found = reader.read(trace, workload)
    return found.space.fill(found.decisions)


def read_alike(traces: Iterable[str]) -> None:
    """One reader says of each live trace what is said of its stored form."""
    reader, workload = LiveReader(FORM), gmm_workload()
    for trace in traces:
        found = steps_of(reader, FakeTrace.of(trace), workload)
        assert found == MetaScheduleReader().read(trace, workload)


def test_a_space_is_compiled_once_and_spaces_do_not_mix(monkeypatch: pytest.MonkeyPatch) -> None:
    compiled = counted(monkeypatch)
    tiles = [
        gmm_trace(i=(2, 2, 2, 16), k=(128 // k, k), unroll=unroll) for k in (1, 2, 8) for unroll in range(4)
    ]
    read_alike(tiles)
    assert len(compiled) == 1
    read_alike([gmm_trace(), NRM_TRACE, gmm_trace(tail=False), NRM_TRACE, gmm_trace(unroll=0)])


def test_a_note_taken_off_before_post_processing_is_no_end() -> None:
    instructions, decisions = json.loads(gmm_trace())
    place = next(place for place, step in enumerate(instructions) if step[0] == "Unannotate")
    instructions.insert(place, ["Unannotate", ["b36"], ["meta_schedule.of_the_user"], []])
    plain, noted = gmm_trace(), json.dumps([instructions, decisions])
    assert MetaScheduleReader().read(plain) != MetaScheduleReader().read(noted)
    read_alike((plain, noted, plain))


def test_a_trace_that_lacks_a_decision_is_refused() -> None:
    reader, workload = LiveReader(FORM), gmm_workload()
    whole = FakeTrace.of(gmm_trace())
    lacking = FakeTrace(whole.insts, dict(list(whole.decisions.items())[1:]))
    for _ in range(2):
        with pytest.raises(TraceError):
            steps_of(reader, lacking, workload)
        assert steps_of(reader, whole, workload) == MetaScheduleReader().read(gmm_trace(), workload)


def test_a_schedule_without_a_trace_is_refused() -> None:
    with pytest.raises(TraceError, match="no trace"):
        LiveReader().read(None, gmm_workload())


def replayed(module: Any, trace: str) -> Any:
    from tvm.s_tir.schedule import Schedule, Trace

    schedule = Schedule(module)
    Trace.apply_json_to_schedule(json.loads(trace), schedule)
    return schedule


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
    ("operator", "args", "family", "count"),
    [
        ("C2D", (1, 14, 14, 16, 32, 3, 1, 1), Family.CPU, 40),
        ("T2D", (1, 4, 4, 64, 32, 4, 2, 1), Family.CPU, 12),
        ("SFM", (64, 64), Family.CPU, 40),
        ("NRM", (1, 64, 64), Family.CPU, 12),
        ("C2D", (1, 14, 14, 16, 32, 3, 1, 1), Family.GPU, 8),
        ("SFM", (64, 64), Family.GPU, 8),
    ],
)
def test_live_features_are_those_of_the_stored_traces(
    operator: str, args: Sequence[int], family: Family, count: int
) -> None:
    workload, schedules, stored = live_and_stored(operator, args, family, count)
    assert len(schedules) >= count // 2
    extractor = Extractor()
    expected = extractor.extract([workload] * len(stored), stored)
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
    for rows, tile in tiles.items():
        workload = operator_workload("GMM", (1, rows, 32, 32))
        [drawn] = DesignSpace(workload, Family.CPU).sample(1, seed=3).candidates
        steps, decisions = json.loads(drawn.trace)
        length = next(place for place, step in enumerate(steps) if step[0] == "Unannotate")
        decisions = [one for one in decisions if one[0] < length]
        changed = next(one for one in decisions if len(one[1]) == 4 and math.prod(one[1]) == rows)
        changed[1] = tile
        trace = json.dumps([steps[:length], decisions])
        schedule = replayed(tvm.ir.load_json(workload.module_json), trace)
        stored = [Candidate(workload_id=workload.workload_id, trace=trace)]
        assert_same_features(
            extractor.extract_live(workload, [schedule]), Extractor().extract([workload], stored)
        )


@pytest.mark.tvm
def test_a_search_that_marks_its_post_processing_gives_the_same() -> None:
    import tvm

    workload, _, stored = live_and_stored("GMM", (1, 32, 32, 32), Family.CPU, 8)
    module = tvm.ir.load_json(workload.module_json)
    schedules = []
    for candidate in stored:
        steps, decisions = json.loads(candidate.trace)
        length = next(
            place - 1
            for place, step in enumerate(steps)
            if step[0] == "Unannotate" and step[2][0].endswith("parallel")
        )
        schedule = replayed(
            module, json.dumps([steps[:length], [one for one in decisions if one[0] < length]])
        )
        schedule.enter_postproc()
        schedule.get_sblock("root")
        schedules.append(schedule)
    extractor = Extractor()
    expected = extractor.extract([workload] * len(stored), stored)
    assert_same_features(extractor.extract_live(workload, schedules), expected)


@pytest.mark.parametrize("max_steps", [40, 9])
def test_decisions_give_the_features_of_their_traces(max_steps: int) -> None:
    workload = gmm_workload()
    traces = [gmm_trace(i=(2, 2, 2, 16), k=(128 // k, k), unroll=u) for k in (1, 2, 8) for u in range(4)]
    traces += [NRM_TRACE, gmm_trace(tail=False), *traces[:3]]
    spec = replace(DEFAULT_SPEC, max_steps=max_steps)
    stored = [Candidate(workload_id=workload.workload_id, trace=trace) for trace in traces]
    expected = Extractor(spec).extract([workload] * len(stored), stored)
    extractor = Extractor(spec)
    decided = [extractor.decided(workload, trace) for trace in traces]
    assert_same_features(extractor.extract_decided(workload, decided), expected)
    assert_same_features(
        extractor.extract_decided(workload, decided[::-2]), expected.take(np.arange(17)[::-2])
    )


def test_decisions_outlive_a_table_that_starts_over(monkeypatch: pytest.MonkeyPatch) -> None:
    workload = gmm_workload()
    extractor = Extractor()
    monkeypatch.setattr(extractor._table, "_limit", 4)
    for k in (1, 2, 8, 1, 2):
        trace = gmm_trace(k=(128 // k, k))
        found = extractor.extract_decided(workload, [extractor.decided(workload, trace)])
        one = Candidate(workload_id=workload.workload_id, trace=trace)
        assert_same_features(found, Extractor().extract([workload], [one]))
    assert extractor._table.restarts > 1


def test_a_decision_that_is_missing_is_refused() -> None:
    extractor, workload = Extractor(), gmm_workload()
    one = extractor.decided(workload, gmm_trace())
    extractor.extract_decided(workload, [one])
    for place in one.decisions:
        rest = {key: value for key, value in one.decisions.items() if key != place}
        with pytest.raises(TraceError, match=r"decision|tile factors"):
            extractor.extract_decided(workload, [one._replace(decisions=rest)])
