from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any, ClassVar

import numpy as np
import pytest

from agents.records import Candidate, Family, Workload
from tests.dataset_fixtures import NRM_TRACE, gmm_trace, gmm_workload
from transfer.errors import TraceError
from transfer.features.blocks import FeatureBlock
from transfer.features.extractor import DEFAULT_SPEC, Extractor
from transfer.features.live_traces import LiveReader
from transfer.language.meta_schedule import MetaScheduleReader

DENSE = ("categories", "numbers", "mask", "workload", "summary")


@dataclass
class FakeTrace:
    """What `LiveReader` uses of a trace: a text with a line an instruction, and JSON, which is counted."""

    insts: list[Any]
    decisions: dict[int, Any]
    asked: ClassVar[int] = 0

    @classmethod
    def of(cls, stored: str) -> FakeTrace:
        instructions, decisions = json.loads(stored)
        insts = [
            SimpleNamespace(kind=SimpleNamespace(name=one[0]), attrs=one[2], json=one) for one in instructions
        ]
        return cls(insts, dict(decisions))

    def __str__(self) -> str:
        lines = ["# from tvm import s_tir", "def apply_trace(sch: s_tir.Schedule) -> None:"]
        for place, inst in enumerate(self.insts):
            kind, inputs, attributes, outputs = inst.json
            call = f"{inputs}, {attributes}"
            if kind == "Unannotate":
                call = f'block_or_loop={inputs[0]}, ann_key="{attributes[0]}"'
            name = {"Unannotate": "unannotate", "EnterPostproc": "enter_postproc"}.get(kind, kind)
            decision = f", decision={self.decisions[place]}" if place in self.decisions else ""
            lines.append(
                f"  {outputs} = sch.{name}({call}{decision})" if outputs else f"  sch.{name}({call})"
            )
        return self.tampered("\n".join(lines))

    def tampered(self, text: str) -> str:
        return text

    def as_json(self) -> Any:
        FakeTrace.asked += 1
        kept = [[place, value] for place, value in self.decisions.items() if place < len(self.insts)]
        return [[inst.json for inst in self.insts], kept]


def steps_of(reader: LiveReader, trace: Any, workload: Workload) -> Any:
    found = reader.read(trace, workload)
    return found.space.fill(found.decisions)


def test_a_space_is_made_json_once() -> None:
    reader, workload = LiveReader(), gmm_workload()
    before = FakeTrace.asked
    for k in (1, 2, 8):
        for unroll in range(4):
            trace = gmm_trace(i=(2, 2, 2, 16), k=(128 // k, k), unroll=unroll)
            found = steps_of(reader, FakeTrace.of(trace), workload)
            assert found == MetaScheduleReader().read(trace, workload)
    assert FakeTrace.asked - before == 1


def test_spaces_do_not_mix() -> None:
    reader, workload = LiveReader(), gmm_workload()
    for trace in (gmm_trace(), NRM_TRACE, gmm_trace(tail=False), NRM_TRACE, gmm_trace(unroll=0)):
        found = steps_of(reader, FakeTrace.of(trace), workload)
        assert found == MetaScheduleReader().read(trace, workload)


def test_a_note_taken_off_before_post_processing_is_no_end() -> None:
    def with_note(key: str) -> str:
        instructions, decisions = json.loads(gmm_trace())
        place = next(place for place, one in enumerate(instructions) if one[0] == "Unannotate")
        instructions.insert(place, ["Unannotate", ["b36"], [key], []])
        return json.dumps([instructions, decisions])

    reader, workload = LiveReader(), gmm_workload()
    plain, noted = gmm_trace(), with_note("meta_schedule.of_the_user")
    assert MetaScheduleReader().read(plain, workload) != MetaScheduleReader().read(noted, workload)
    for trace in (plain, noted, plain):
        found = steps_of(reader, FakeTrace.of(trace), workload)
        assert found == MetaScheduleReader().read(trace, workload)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("decision=[16, 8]", "decision=[8, 16]"),
        ("decision=[16, 8]", "decision=None"),
        ("  sch.Reorder(", "  sch.nothing()\n  sch.Reorder("),
        ("\n", ""),
    ],
)
def test_where_text_and_json_disagree_the_json_counts(old: str, new: str) -> None:
    class Tampered(FakeTrace):
        def tampered(self, text: str) -> str:
            assert old in text
            return text.replace(old, new)

    reader, workload = LiveReader(), gmm_workload()
    for _ in range(2):
        found = steps_of(reader, Tampered.of(gmm_trace()), workload)
        assert found == MetaScheduleReader().read(gmm_trace(), workload)


def test_a_decision_that_cannot_be_read_makes_a_known_space_another() -> None:
    class Tampered(FakeTrace):
        def tampered(self, text: str) -> str:
            return text.replace("decision=[16, 8]", "decision=None")

    reader, workload = LiveReader(), gmm_workload()
    for kind in (FakeTrace, Tampered, FakeTrace):
        found = steps_of(reader, kind.of(gmm_trace()), workload)
        assert found == MetaScheduleReader().read(gmm_trace(), workload)


def test_a_schedule_without_a_trace_is_refused() -> None:
    with pytest.raises(TraceError, match="no trace"):
        LiveReader().read(None, gmm_workload())


def replayed(module: Any, trace: str) -> Any:
    from tvm.s_tir.schedule import Schedule, Trace

    schedule = Schedule(module)
    Trace.apply_json_to_schedule(json.loads(trace), schedule)
    return schedule


def assert_same(first: FeatureBlock, second: FeatureBlock) -> None:
    for name in DENSE:
        np.testing.assert_array_equal(getattr(first, name), getattr(second, name), err_msg=name)


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
    assert_same(Extractor().extract_live(workload, schedules), expected)
    assert_same(extractor.extract_live(workload, schedules), expected)
    # Alone, and out of order.
    assert_same(
        extractor.extract_live(workload, schedules[::-3]), expected.take(np.arange(len(stored))[::-3])
    )


@pytest.mark.tvm
def test_a_search_that_marks_its_post_processing_gives_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
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
    assert_same(extractor.extract_live(workload, schedules), expected)


@pytest.mark.tvm
def test_candidates_of_one_space_are_made_json_once(monkeypatch: pytest.MonkeyPatch) -> None:
    from tvm.s_tir.schedule import Trace

    workload, schedules, _ = live_and_stored("GMM", (1, 32, 32, 32), Family.CPU, 30)
    asked = []
    as_json = Trace.as_json
    monkeypatch.setattr(Trace, "as_json", lambda trace: asked.append(1) or as_json(trace))
    Extractor().extract_live(workload, schedules)
    # Three design spaces: with a write cache in one of two places, and without.
    assert len(asked) == 3


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
    assert_same(extractor.extract_decided(workload, decided), expected)
    assert_same(extractor.extract_decided(workload, decided[::-2]), expected.take(np.arange(17)[::-2]))


def test_decisions_outlive_a_table_that_starts_over(monkeypatch: pytest.MonkeyPatch) -> None:
    workload = gmm_workload()
    extractor = Extractor()
    monkeypatch.setattr(extractor._table, "_limit", 4)
    for k in (1, 2, 8, 1, 2):
        trace = gmm_trace(k=(128 // k, k))
        found = extractor.extract_decided(workload, [extractor.decided(workload, trace)])
        one = Candidate(workload_id=workload.workload_id, trace=trace)
        assert_same(found, Extractor().extract([workload], [one]))
    assert extractor._table.restarts > 1


def test_a_decision_that_is_missing_is_refused() -> None:
    extractor, workload = Extractor(), gmm_workload()
    one = extractor.decided(workload, gmm_trace())
    extractor.extract_decided(workload, [one])
    for place in one.decisions:
        rest = {key: value for key, value in one.decisions.items() if key != place}
        with pytest.raises(TraceError, match=r"decision|tile factors"):
            extractor.extract_decided(workload, [one._replace(decisions=rest)])
