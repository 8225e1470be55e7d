"""Traces that TVM holds in memory, read without turning each into Python's lists or text.

A search asks for scores of hundreds of candidates at a time, all of a few design spaces: within one, only the
decisions change. TVM's own JSON form of a trace, kept in its own containers, costs a third of printing the
trace, and comparing its instructions costs less than taking them apart. The instructions are compiled once,
as those of a stored trace are, and each further candidate costs its decisions. Called by
`transfer.features.extractor`; of a trace it uses `insts`, `decisions`, and that its class makes another one
of instructions and decisions.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Callable
from functools import cache
from typing import Any, NamedTuple

from agents.records import Workload, canonical_json
from transfer.errors import TraceError
from transfer.features.summary import Decided
from transfer.language.meta_schedule import MetaScheduleReader, begins_postprocessing, compile_plan
from transfer.language.trace_values import CompiledSpace

#: Design spaces kept before starting over, and those of one workload. Without a mark where post-processing
#: begins, each candidate may look like a space of its own.
_SPACE_LIMIT, _OF_WORKLOAD = 4096, 256


class TraceForm(NamedTuple):
    """How TVM's traces are taken apart."""

    #: A trace as `[instructions, decisions]`, decisions as `[instruction, value]`, in any containers.
    parts: Callable[[Any], Any]
    #: One entry of such a container, by its place.
    entry: Callable[[Any, int], Any]
    #: Whether the instructions of two traces are equal.
    is_equal: Callable[[Any, Any], bool]


class LiveReader:
    """Reads traces of schedules in memory; keeps the compiled form of each design space met."""

    def __init__(self) -> None:
        self._reader = MetaScheduleReader()
        #: By workload, instructions and their space, the one met last first.
        self._spaces: dict[str, list[tuple[Any, CompiledSpace]]] = {}
        #: By workload, where post-processing began in traces that had any.
        self._lengths: dict[str, list[int]] = {}

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
        form, owner = _tvm_form(), workload.workload_id
        instructions, decisions = form.parts(self._beginning(trace, owner))
        space = self._compiled(owner, instructions)
        if space is None:
            instructions, decisions = form.parts(self._cut_off(trace, owner))
            space = self._compiled(owner, instructions) or self._new(workload, instructions)
        return Decided(space, dict([_decision(pair, form.entry) for pair in decisions[:]]))

    def _compiled(self, owner: str, instructions: Any) -> CompiledSpace | None:
        # Most comparisons end at the first instruction that differs; a structural hash would read all, and
        # is the same for some instructions that differ in small numbers.
        spaces = self._spaces.get(owner, [])
        for place, (cached, space) in enumerate(spaces):
            if _tvm_form().is_equal(cached, instructions):
                spaces.insert(0, spaces.pop(place))
                return space
        return None

    def _new(self, workload: Workload, instructions: Any) -> CompiledSpace:
        """The space of instructions up to where post-processing would begin."""
        plain = _plain(instructions)
        text_chars = len(canonical_json(plain))
        space = compile_plan(plain, self._reader.program(workload), text_chars)
        if sum(map(len, self._spaces.values())) >= _SPACE_LIMIT:
            self._spaces.clear()
            self._lengths.clear()
        spaces = self._spaces.setdefault(workload.workload_id, [])
        spaces.insert(0, (instructions, space))
        del spaces[_OF_WORKLOAD:]
        return space

    def _beginning(self, trace: Any, owner: str) -> Any:
        """The trace up to post-processing if that begins where it did in an earlier one, else all of it."""
        instructions = trace.insts
        for steps in self._lengths.get(owner, ()):
            if len(instructions) > steps and _is_postprocessing(instructions[steps]):
                return _cut(trace, steps)
        return trace

    def _cut_off(self, trace: Any, owner: str) -> Any:
        """The trace up to post-processing, wherever that begins; later ones are looked at there first."""
        instructions = trace.insts
        steps = _first_postprocessing(instructions)
        if steps == len(instructions):
            return trace
        lengths = self._lengths.setdefault(owner, [])
        if steps not in lengths:
            # The shortest first: a longer one would end inside the post-processing of a shorter space.
            insort(lengths, steps)
        return _cut(trace, steps)


def _decision(pair: Any, entry: Callable[[Any, int], Any]) -> tuple[int, Any]:
    """Place and value of a decision: a number, or a tuple of them.

    TVM's own numbers compare by way of an expression, which dictionaries would make for each look-up.
    """
    value = entry(pair, 1)
    if value is not None and not isinstance(value, int):
        value = tuple([int(entry(value, place)) for place in range(len(value))])
    return int(entry(pair, 0)), value


@cache
def _tvm_form() -> TraceForm:
    from tvm_ffi import get_global_func

    as_json = get_global_func("s_tir.schedule.TraceAsJSON")
    is_equal = get_global_func("ffi.StructuralEqual")
    return TraceForm(
        # `Trace.as_json` would turn all of the result into Python's lists, in thirty times the time.
        parts=lambda trace: as_json(trace, False),
        entry=get_global_func("ffi.ArrayGetItem"),
        is_equal=lambda first, second: is_equal(first, second, False, False),
    )


def _cut(trace: Any, steps: int) -> Any:
    return type(trace)(trace.insts[:steps], trace.decisions)


def _first_postprocessing(instructions: Any) -> int:
    """How many instructions stand before post-processing."""
    places = (place for place, instruction in enumerate(instructions) if _is_postprocessing(instruction))
    return next(places, len(instructions))


def _is_postprocessing(instruction: Any) -> bool:
    return begins_postprocessing(instruction.kind.name, instruction.attrs)


def _plain(value: Any) -> Any:
    """TVM's containers, text and numbers as Python's."""
    if isinstance(value, str):
        return str(value)
    if value is None or isinstance(value, int | float):
        return value
    return _plain(value.value) if hasattr(value, "value") else [_plain(entry) for entry in value[:]]
