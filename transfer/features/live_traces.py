"""Traces that TVM holds in memory, read without turning each into JSON.

A search asks for scores of hundreds of candidates at a time, all of a few design spaces: within one, only the
decisions change. TVM prints a trace ten times as fast as it turns it into JSON, and what it prints is
complete. So the printed text, its decisions taken out, is the key of a design space; its instructions are
compiled once, as those of a stored trace are, and each further candidate costs the decisions read out of its
text. Called by `transfer.features.extractor`; imports no TVM: of a trace it uses `insts`, `decisions`,
`as_json()`, its text, and that its class makes another one of instructions and decisions.
"""

from __future__ import annotations

import json
import re
from bisect import insort
from typing import Any, NamedTuple

from agents.records import Workload, canonical_json
from transfer.errors import TraceError
from transfer.features.step_rows import Decided
from transfer.language.compile_trace import POSTPROCESSED_KEYS, POSTPROCESSED_PATTERN, compile_plan
from transfer.language.meta_schedule import MetaScheduleReader
from transfer.language.trace_values import CompiledSpace

#: Design spaces kept before starting over. Without a mark where post-processing begins, each candidate
#: may look like a space of its own.
_SPACE_LIMIT = 4096
#: Texts of decisions kept before starting over; a tile is drawn from some hundreds.
_DECISION_LIMIT = 65536

#: How each instruction begins in what TVM prints.
_LINE = "\n  "
# Where post-processing begins.
_POSTPROCESSING = re.compile(
    rf'{_LINE}(?:sch\.enter_postproc\(|sch\.unannotate\(block_or_loop=b\d+, ann_key="'
    rf'(?:{POSTPROCESSED_PATTERN})")'
)
_DECISION = ", decision="
_VALUE = re.compile(r"\[[-\d, ]*\]|-?\d+")


class _Space(NamedTuple):
    """A design space: its compiled instructions, and which instruction made each decision."""

    plan: CompiledSpace
    sampled: tuple[int, ...]


class LiveReader:
    """Reads traces of schedules in memory; keeps the compiled form of each design space met."""

    def __init__(self) -> None:
        self._reader = MetaScheduleReader()
        #: By workload and text; None where the text does not tell what the JSON does.
        self._spaces: dict[tuple[str, ...], _Space | None] = {}
        #: By workload, how many instructions of a known space stand before post-processing.
        self._lengths: dict[str, list[int]] = {}
        self._decisions: dict[str, Any] = {}

    def read(self, trace: Any, workload: Workload) -> Decided:
        """Read the trace of one schedule (`tvm.s_tir.Schedule.trace`).

        Args:
            trace: TVM's trace.
            workload: What it schedules.

        Returns:
            Its design space and decisions, of which `MetaScheduleReader.read` makes the same steps.

        Raises:
            TraceError: There is no trace, or it cannot be read.
        """
        if trace is None:
            raise TraceError("a schedule has no trace; make it with tracing on, as MetaSchedule does")
        text = str(self._beginning(trace, workload))
        # Mostly it ends where post-processing begins, and its space is known.
        values, rest = self._parted(text)
        space = self._spaces.get((workload.workload_id, *rest))
        if space is None:
            end = _POSTPROCESSING.search(text)
            values, rest = self._parted(text[: end.start()] if end else text)
            key = (workload.workload_id, *rest)
            if key not in self._spaces:
                if len(self._spaces) >= _SPACE_LIMIT:
                    self._spaces.clear()
                    self._lengths.clear()
                steps = text.count(_LINE, 0, end.start() if end else len(text))
                self._spaces[key] = self._compile(trace, workload, steps, values)
            space = self._spaces[key]
        if space is None:
            return Decided(*self._reader.space(_stored_form(trace), workload))
        return Decided(space.plan, dict(zip(space.sampled, values, strict=True)))

    def _parted(self, text: str) -> tuple[list[Any], list[str]]:
        """The decisions in a text, and what is left of it between them."""
        first, *others = text.split(_DECISION)
        values, rest = [], [first]
        for one in others:
            # A decision is the last argument of its call, and holds no bracket of that kind.
            text, closing, after = one.partition(")")
            value = self._decision(text)
            if value is None:
                rest[-1] += _DECISION + one
            else:
                values.append(value)
                rest.append(closing + after)
        return values, rest

    def _beginning(self, trace: Any, workload: Workload) -> Any:
        """The trace up to post-processing if that begins where it does in a known space, else all of it."""
        instructions = trace.insts
        for steps in self._lengths.get(workload.workload_id, ()):
            if len(instructions) > steps and _begins_postprocessing(instructions[steps]):
                return type(trace)(instructions[:steps], trace.decisions)
        return trace

    def _decision(self, text: str) -> Any:
        """A number or a tuple of them, None where it is neither; equal texts give the same object."""
        if text not in self._decisions:
            if len(self._decisions) >= _DECISION_LIMIT:
                self._decisions.clear()
            value = json.loads(text) if _VALUE.fullmatch(text) else None
            self._decisions[text] = tuple(value) if isinstance(value, list) else value
        return self._decisions[text]

    def _compile(self, trace: Any, workload: Workload, steps: int, values: list[Any]) -> _Space | None:
        """The space of a trace, or None where its text and its JSON do not tell the same.

        Args:
            trace: One of the space.
            workload: What it schedules.
            steps: Instructions that its text shows before post-processing.
            values: Decisions among them.
        """
        beginning = type(trace)(trace.insts[:steps], trace.decisions)
        text = _stored_form(beginning)
        instructions, decisions = json.loads(text)
        sampled = [
            (place, tuple(value) if isinstance(value, list) else value)
            for place, value in decisions
            if place < steps
        ]
        ends_there = len(trace.insts) == steps or _begins_postprocessing(trace.insts[steps])
        if len(instructions) != steps or not ends_there or [value for _, value in sampled] != values:
            return None
        lengths = self._lengths.setdefault(workload.workload_id, [])
        if steps not in lengths:
            # The shortest first: a longer one would end inside the post-processing of a shorter space.
            insort(lengths, steps)
        plan = compile_plan(instructions, self._reader.program(workload), len(text))
        return _Space(plan, tuple(place for place, _ in sampled))


def _begins_postprocessing(instruction: Any) -> bool:
    """Whether an instruction is one that only post-processors make."""
    kind = instruction.kind.name
    if kind == "Unannotate":
        return str(instruction.attrs[0]) in POSTPROCESSED_KEYS
    return bool(kind == "EnterPostproc")


def _stored_form(trace: Any) -> str:
    """The trace as it is stored: canonical JSON."""
    return canonical_json(json.loads(json.dumps(trace.as_json(), default=_plain)))


def _plain(value: Any) -> Any:
    """A TVM number or list as Python's."""
    return value.value if hasattr(value, "value") else list(value)
