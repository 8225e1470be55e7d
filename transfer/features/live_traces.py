"""Traces that TVM holds in memory, read without turning each into Python's lists or text.

A search asks for scores of hundreds of candidates at a time, all of a few design spaces: within one, only the
decisions change. TVM's own JSON form of a trace, kept in its own containers, costs a third of printing the
trace; a structural hash of its instructions is the key of a design space. The instructions are compiled once,
as those of a stored trace are, and each further candidate costs its decisions. Called by
`transfer.features.extractor`; of a trace it uses `insts`, `decisions`, and that its class makes another one
of instructions and decisions.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Callable
from typing import Any, NamedTuple

from agents.records import Workload, canonical_json
from transfer.errors import TraceError
from transfer.features.step_rows import Decided
from transfer.language.compile_trace import begins_postprocessing, compile_plan
from transfer.language.meta_schedule import MetaScheduleReader
from transfer.language.trace_values import CompiledSpace

#: Design spaces kept before starting over. Without a mark where post-processing begins, each candidate
#: may look like a space of its own.
_SPACE_LIMIT = 4096
#: Decisions kept before starting over; a tile is drawn from some hundreds.
_DECISION_LIMIT = 65536


class TraceForm(NamedTuple):
    """How traces are taken apart."""

    #: A trace as `[instructions, decisions]`, decisions as `[instruction, value]`, in any containers.
    parts: Callable[[Any], Any]
    #: A number that is equal for equal containers, and for no others: 64 bits of a hash.
    key: Callable[[Any], int]


class LiveReader:
    """Reads traces of schedules in memory; keeps the compiled form of each design space met.

    Args:
        form: How traces are taken apart; TVM's own way where None.
    """

    def __init__(self, form: TraceForm | None = None) -> None:
        self._form = form
        self._reader = MetaScheduleReader()
        #: By workload and the key of the instructions.
        self._spaces: dict[tuple[str, int], CompiledSpace] = {}
        #: By workload, how many instructions of a known space stand before post-processing.
        self._lengths: dict[str, list[int]] = {}
        #: By key: lists as tuples.
        self._decisions: dict[int, Any] = {}

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
        if self._form is None:
            self._form = _tvm_form()
        instructions, decisions = self._form.parts(self._beginning(trace, workload))
        space = self._spaces.get((workload.workload_id, self._form.key(instructions)))
        if space is None:
            beginning = _cut(trace, _first_postprocessing(trace.insts))
            instructions, decisions = self._form.parts(beginning)
            if len(self._spaces) >= _SPACE_LIMIT:
                self._spaces.clear()
                self._lengths.clear()
            key = workload.workload_id, self._form.key(instructions)
            space = self._spaces[key] = self._compile(instructions, workload)
        pairs = [one[:] for one in decisions[:]]
        # TVM's own numbers compare by way of an expression, which dictionaries would make for each look-up.
        return Decided(space, {int(place): self._value(value, self._form.key) for place, value in pairs})

    def _beginning(self, trace: Any, workload: Workload) -> Any:
        """The trace up to post-processing if that begins where it does in a known space, else all of it."""
        instructions = trace.insts
        for steps in self._lengths.get(workload.workload_id, ()):
            if len(instructions) > steps and _is_postprocessing(instructions[steps]):
                return _cut(trace, steps)
        return trace

    def _value(self, value: Any, key_of: Callable[[Any], int]) -> Any:
        """A decision: a number, or a tuple of them; equal ones are the same object."""
        if value is None or isinstance(value, int):
            return value
        key = key_of(value)
        found = self._decisions.get(key)
        if found is None:
            if len(self._decisions) >= _DECISION_LIMIT:
                self._decisions.clear()
            found = self._decisions[key] = tuple(map(int, value))
        return found

    def _compile(self, parts: Any, workload: Workload) -> CompiledSpace:
        """The space of instructions up to where post-processing would begin."""
        instructions = _plain(parts)
        lengths = self._lengths.setdefault(workload.workload_id, [])
        if len(instructions) not in lengths:
            # The shortest first: a longer one would end inside the post-processing of a shorter space.
            insort(lengths, len(instructions))
        text_chars = len(canonical_json(instructions))
        return compile_plan(instructions, self._reader.program(workload), text_chars)


def _tvm_form() -> TraceForm:
    from tvm_ffi import get_global_func, structural_hash

    as_json = get_global_func("s_tir.schedule.TraceAsJSON")
    # `Trace.as_json` would turn all of the result into Python's lists, in thirty times the time.
    return TraceForm(lambda trace: as_json(trace, False), structural_hash)


def _cut(trace: Any, steps: int) -> Any:
    return type(trace)(trace.insts[:steps], trace.decisions)


def _first_postprocessing(instructions: Any) -> int:
    """How many instructions stand before post-processing."""
    places = (place for place, one in enumerate(instructions) if _is_postprocessing(one))
    return next(places, len(instructions))


def _is_postprocessing(instruction: Any) -> bool:
    return begins_postprocessing(instruction.kind.name, instruction.attrs)


def _plain(value: Any) -> Any:
    """TVM's containers, text and numbers as Python's."""
    if isinstance(value, str):
        return str(value)
    if value is None or isinstance(value, int | float):
        return value
    return _plain(value.value) if hasattr(value, "value") else [_plain(one) for one in value[:]]
