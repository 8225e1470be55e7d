"""What a schedule trace may say: an allow-list of instructions, attributes, annotations and index maps.

A trace is a program for TVM: an index map can call any C function, an annotation can link foreign code, and
text in braces becomes whatever object it describes. So every trace passes here before TVM sees it, whoever
made it. Listed is what MetaSchedule's own design spaces and post-processors write for CPUs and CUDA, in this
version of TVM and in the older ones whose logs are imported. Standard library only; it knows no workload, so
what it lets pass may still not fit one.
"""

from __future__ import annotations

import json
import re
from functools import lru_cache
from typing import Any

from agents.errors import AgentError
from agents.programs.index_maps import IndexMapRefusedError, free_names

#: Characters of a trace at most. MetaSchedule's own have 30,000 and less.
MOST_TEXT = 1 << 20
_MOST_INSTRUCTIONS = 10_000
_MOST_ITEMS = 256
_MOST_INT = 2**31

_BLOCK_NAME = re.compile(r"[^\x00-\x1f\x7f]{1,256}")
_SCOPE = re.compile(
    r"global|shared|shared\.dyn|local|warp|wmma\.(?:matrix_a|matrix_b|accumulator)|m16n8k8\.matrix[ABC]"
)
_THREAD_AXIS = re.compile(r"(?:blockIdx|threadIdx|vthread)\.[xyz]|vthread")
#: Names of TVM's tensor intrinsics; which of them exist is for TVM to know.
_INTRINSIC = re.compile(r"[a-z][a-z0-9_]{0,100}")
_VARIABLE = re.compile(r"[blv]\d{1,6}")

#: By instruction: a regular expression of its inputs, attributes and outputs as letters (`_form`), with
#: slashes between them. `A` stands for an annotation, `0` for a flag that must not be set, letters of
#: `_NAMES` for attributes whose text has a meaning of its own.
_INSTRUCTIONS = {
    "GetSBlock": "/BB/b",
    "GetBlock": "/BB/b",
    "GetLoops": "b//l*",
    "GetChildBlocks": "[bl]//b*",
    "GetProducers": "b//b*",
    "GetConsumers": "b//b*",
    "GetOutputBlocks": "/BB/b*",
    "SamplePerfectTile": "l/ii/v{2,16}",
    "SampleCategorical": "/L[FL]/v",
    "SampleComputeLocation": "b//l",
    "Split": "l[vin]{2,16}/i?0?/l{2,16}",
    "Fuse": "l+/i/l",
    "Reorder": "l+//",
    "AddUnitLoop": "[bl]//l",
    "Parallel": "l//",
    "Vectorize": "l//",
    "Unroll": "l//",
    "Bind": "l/T/",
    "CacheRead": "b[RE]/iS/b",
    "CacheWrite": "b[RE]/iS/b",
    "ReIndex": "b/ii/b",
    "SetScope": "b/iS/",
    "StorageAlign": "b/iiii/",
    "ComputeAt": "bl/ii/",
    "ReverseComputeAt": "bl/ii/",
    "ComputeInline": "b//",
    "ReverseComputeInline": "b//",
    "RFactor": "l/i/b",
    "DecomposeReduction": "bl//b",
    "Blockize": "l/i/b",
    "Tensorize": "[bl]/Ni/",
    "PadEinsum": "b/[LE]/",
    "DecomposePadding": "bl//b",
    "TransformLayout": "bM/iizi/",
    "TransformBlockLayout": "b/M/",
    "Annotate": "[bl][viqLE]/A/",
    "Unannotate": "[bl]/A/",
    "EnterPostproc": "//",
}
_PATTERNS = {kind: re.compile(pattern) for kind, pattern in _INSTRUCTIONS.items()}
#: Names of a block, a thread axis, a storage scope, an intrinsic.
_NAMES = {"B": _BLOCK_NAME, "T": _THREAD_AXIS, "S": _SCOPE, "N": _INTRINSIC}
_INTRINSIC_OR_NONE = re.compile(f'"(?:{_INTRINSIC.pattern})?"')
#: By annotation: the letters that its value may have. Others may neither be set nor removed.
_ANNOTATIONS = {
    "meta_schedule.tiling_structure": "q",
    "meta_schedule.auto_tensorize": "q",
    "meta_schedule.auto_tensorize_init": "q",
    "meta_schedule.parallel": "i",
    "meta_schedule.vectorize": "i",
    "meta_schedule.unroll_explicit": "vi",
    "meta_schedule.unroll_implicit": "vi",
    "meta_schedule.cooperative_fetch": "vi",
    "meta_schedule.thread_extent_low_inclusive": "i",
    "meta_schedule.thread_extent_high_inclusive": "i",
    "meta_schedule.random_compute_producer": "i",
    "meta_schedule.layout_rewrite_preproc": "i",
    "warp_execution": "i",
    "pragma_auto_unroll_max_step": "i",
    "pragma_unroll_explicit": "i",
    "software_pipeline_stage": "LE",
    "software_pipeline_order": "LE",
    "software_pipeline_async_stages": "LE",
    #: Of a workload that names its own schedule rule; taken off, never put on.
    "schedule_rule": "",
}
#: Of annotations that are texts: what the text may be.
_ANNOTATION_TEXTS = {
    "meta_schedule.tiling_structure": re.compile(r'"[SR]{1,16}"'),
    "meta_schedule.auto_tensorize": _INTRINSIC_OR_NONE,
    "meta_schedule.auto_tensorize_init": _INTRINSIC_OR_NONE,
}


class TraceRefusedError(AgentError):
    """A trace that TVM is not to see.

    Attributes:
        reason: Why, one of few texts without anything from the trace itself, so that refusals can be counted.
    """

    def __init__(self, reason: str, detail: str = "") -> None:
        super().__init__(f"{reason}: {detail}" if detail else reason)
        self.reason = reason


def read_trace(text: str) -> list[Any]:
    """Parse a trace and check all of it.

    Args:
        text: `[instructions, decisions]` as JSON.

    Raises:
        TraceRefusedError: It holds anything that is not on the list.
    """
    if len(text) > MOST_TEXT:
        raise TraceRefusedError("the trace is too long", f"{len(text):,} characters")
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        raise TraceRefusedError("the trace is no JSON") from None
    check_trace(value)
    assert isinstance(value, list)
    return value


def replay_fault(dialect: str, trace: str) -> str:
    """Why a trace is not handed to people who may replay it in TVM; empty if it may be.

    The rule of scripts and of exports. The text itself may be shown to anybody.
    """
    if dialect != "meta_schedule":
        return f"dialect {dialect}, which this version of TVM does not build"
    try:
        read_trace(trace)
    except TraceRefusedError as error:
        return f"TVM is not to see its trace: {error.reason}"
    return ""


def check_trace(value: Any) -> None:
    """Check a parsed trace: `[instructions, decisions]`.

    Raises:
        TraceRefusedError: It holds anything that is not on the list.
    """
    if type(value) is not list or len(value) != 2 or {type(part) for part in value} != {list}:
        raise TraceRefusedError("the trace is not [instructions, decisions]")
    steps, decisions = value
    if max(len(steps), len(decisions)) > _MOST_INSTRUCTIONS:
        raise TraceRefusedError("the trace has too many instructions", str(len(steps)))
    sampled: set[str] = set()
    for place, step in enumerate(steps):
        try:
            _check_step(step, sampled)
        except TraceRefusedError as error:
            raise TraceRefusedError(error.reason, f"instruction {place}, {_quoted_kind(step)}") from None
        except IndexMapRefusedError as error:
            raise TraceRefusedError(
                "an index map is no integer arithmetic", f"instruction {place}: {error}"
            ) from None
    for decision in decisions:
        _check_decision(decision, steps)


def _check_step(step: Any, sampled: set[str]) -> None:
    """Check one instruction; `sampled` gets the numbers that it draws."""
    if type(step) is not list or list(map(type, step)) != [str, list, list, list]:
        raise TraceRefusedError("an instruction is not [kind, inputs, attributes, outputs]")
    kind, inputs, attrs, outputs = step
    if kind not in _INSTRUCTIONS:
        raise TraceRefusedError("the instruction is not on the list")
    if max(len(inputs), len(attrs), len(outputs)) > _MOST_ITEMS:
        raise TraceRefusedError("the instruction's inputs or attributes are not on the list")
    input_forms = "".join(map(_form, inputs))
    named = list(map(_form, attrs))
    letters = _INSTRUCTIONS[kind].split("/")[1]
    for place, (letter, text) in enumerate(zip(letters, attrs, strict=False)):
        if letter in _NAMES and type(text) is str and _NAMES[letter].fullmatch(text):
            named[place] = letter
    if kind == "Split" and len(attrs) == 2 and attrs[1] in (False, 0):
        # Its second flag drops the check that a program stays inside its buffers.
        named[1] = "0"
    elif kind in ("Annotate", "Unannotate"):
        named = ["A"] if len(attrs) == 1 and _is_annotation(kind, attrs[0], inputs, input_forms) else ["-"]
    output_forms = "".join(_form(output) if type(output) is str else "-" for output in outputs)
    if not _fits(kind, f"{input_forms}/{''.join(named)}/{output_forms}"):
        raise TraceRefusedError("the instruction's inputs or attributes are not on the list")
    if "M" in input_forms or "M" in named:
        for value in (*inputs, *attrs):
            if type(value) is str and value[:1] == "{" and not free_names(value) <= sampled:
                raise TraceRefusedError("an index map names a variable that is not sampled")
    sampled.update(output for output in outputs if output[0] == "v")


@lru_cache(maxsize=8192)
def _fits(kind: str, form: str) -> bool:
    return _PATTERNS[kind].fullmatch(form) is not None


def _form(value: Any) -> str:
    """What an input, attribute or output is, as one letter; `-` for what no instruction may have.

    `b`, `l`, `v`: a block, loop or sampled number by its name; `n` None; `q` quoted text; `M` text in braces;
    `i` a number; `z` null; lists: `E` empty, `L` of numbers, `F` of fractions, `R` of blocks.
    """
    kind = type(value)
    if kind is str:
        return _text_form(value)
    if kind is int or kind is bool:
        return "i" if -_MOST_INT < value < _MOST_INT else "-"
    if kind is list:
        return _list_form(value)
    return "z" if value is None else "-"


def _text_form(text: str) -> str:
    if _VARIABLE.fullmatch(text):
        return text[0]
    if text == "None":
        return "n"
    if len(text) >= 2 and text[0] == text[-1] == '"':
        return "q"
    return "M" if text[:1] == "{" and text[-1:] == "}" else "-"


def _list_form(values: list[Any]) -> str:
    if not values:
        return "E"
    if len(values) > _MOST_ITEMS:
        return "-"
    kinds = {type(value) for value in values}
    if kinds <= {int, bool}:
        return "L" if all(-_MOST_INT < value < _MOST_INT for value in values) else "-"
    if kinds <= {int, float}:
        return "F" if all(0 <= value <= 1 for value in values) else "-"
    return "R" if kinds == {str} and all(_text_form(value) == "b" for value in values) else "-"


def _is_annotation(kind: str, key: Any, inputs: list[Any], input_forms: str) -> bool:
    if type(key) is not str or key not in _ANNOTATIONS:
        return False
    if kind == "Unannotate":
        return True
    if input_forms[1:] not in tuple(_ANNOTATIONS[key]):
        return False
    pattern = _ANNOTATION_TEXTS.get(key)
    return pattern is None or bool(pattern.fullmatch(inputs[1]))


def _check_decision(decision: Any, steps: list[Any]) -> None:
    """A decision is the place of a sampling instruction, and a number, or factors of one and more."""
    if type(decision) is not list or len(decision) != 2:
        raise TraceRefusedError("a decision is not [instruction, value]")
    place, value = decision
    if type(place) is not int or not 0 <= place < len(steps):
        raise TraceRefusedError("a decision is not [instruction, value]")
    kind, _, attrs, outputs = steps[place]
    if kind == "SamplePerfectTile":
        is_fine = (
            type(value) is list
            and len(value) == len(outputs)
            and all(type(each) is int and 0 < each < _MOST_INT for each in value)
        )
    elif kind == "SampleCategorical":
        is_fine = type(value) is int and 0 <= value < len(attrs[0])
    else:
        is_fine = kind == "SampleComputeLocation" and type(value) is int and -3 < value < _MOST_INSTRUCTIONS
    if not is_fine:
        raise TraceRefusedError("a decision does not fit its instruction", f"instruction {place}")


def _quoted_kind(step: Any) -> str:
    kind = step[0] if type(step) is list and step else step
    return repr(str(kind)[:60])
