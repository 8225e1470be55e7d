"""The form of Ansor's transform steps (record format v0.6), as they are written in JSON.

A step is a list whose first item is one of fourteen tags; what follows is fixed for each tag. Earlier
versions wrote the same steps, some without the last flag. Called by the importer, which must tell a record
from garbage before anything is kept of it, and by the reader and the writer of the dialect. Knows the form
of single steps only: not what they do to loops, nor anything of records, files or features.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from transfer.language.primitives import MAX_NUMBER, parse_list

#: Annotations in the order of Ansor's enumeration; blocks and threads alternate.
ANNOTATIONS = (
    "none",
    "unroll",
    "vectorize",
    "parallel",
    "vthread",
    "blockIdx.x",
    "threadIdx.x",
    "blockIdx.y",
    "threadIdx.y",
    "blockIdx.z",
    "threadIdx.z",
    "tensorize",
)

#: Steps of one schedule read at most; the longest published ones have 69.
MAX_STEPS = 512
#: Largest number of a stage or a loop: a network's largest graph has a few hundred stages.
MAX_POSITION = 999
#: Items of one list of loops, factors or steps.
MAX_ITEMS = 256

#: Factors inside the outermost one from which on a split is a multi-level tiling (four levels).
TILED_LENGTHS = 3

_NAME = 256

#: Fields of each step behind its tag, the most frequent steps first: P position of a stage or a loop, N
#: number, T short text, L list of positions, F list of numbers, B flag.
_FIELDS = {
    "AN": "PPP",
    "CA": "PPP",
    "RF": "PPP",
    "SP": "PPNFB",
    "FU": "PL",
    "RE": "PL",
    "FSP": "PPPP",
    "PR": "PPT",
    "FFSP": "PPLPB",
    "CI": "P",
    "CR": "P",
    "CHW": "PT",
    "CHR": "PTL",
    "SA": "PPNN",
}
#: The fourteen tags.
TAGS = frozenset(_FIELDS)
_TYPES = {"P": int, "N": int, "T": str, "L": list, "F": list, "B": int}
_LIST_PLACE = {
    tag: place
    for tag, fields in _FIELDS.items()
    for place, field in enumerate(fields, start=1)
    if field in "LF"
}
_INTEGERS = frozenset({int})
_MOST = {"P": MAX_POSITION, "L": MAX_POSITION, "N": MAX_NUMBER, "F": MAX_NUMBER}


def _forms(fields: str) -> frozenset[tuple[type, ...]]:
    """Types of a step's items; early versions wrote a flag as a boolean, the earliest left it out."""
    whole = (str, *(_TYPES[field] for field in fields))
    return frozenset({whole, (*whole[:-1], bool), whole[:-1]} if fields[-1] == "B" else {whole})


_FORMS = {tag: _forms(fields) for tag, fields in _FIELDS.items()}


def parse_steps(trace: str) -> list[Any]:
    """Parse a trace and check its outer form.

    Raises:
        TraceError: It is not a JSON list of at most `MAX_STEPS` steps.
    """
    return parse_list(trace, what="Ansor trace", items="steps", most=MAX_STEPS)


def check_steps(value: object) -> str:
    """Say why a value is no list of transform steps, "" where it plausibly is one.

    Looks at types only, since an importer asks this of every line. A step with an unknown tag passes as
    long as it begins with a name, and numbers out of bounds pass: the reader makes unknown steps of both,
    and counts them.

    Args:
        value: What JSON gave.

    Returns:
        A short reason, the same for all values with the same fault, or "".
    """
    if type(value) is not list:
        return "steps are not a list"
    if len(value) > MAX_STEPS:
        return "too many steps"
    forms, places, integers = _FORMS, _LIST_PLACE, _INTEGERS
    for step in value:
        try:
            tag = step[0]
            if tuple(map(type, step)) in forms[tag]:
                if tag in places and not integers.issuperset(map(type, step[places[tag]])):
                    return f"malformed {tag} step"
                continue
        except (TypeError, KeyError, IndexError):
            pass
        if type(step) is not list or not step or type(step[0]) is not str or len(step[0]) > _NAME:
            return "a step is not a list that begins with a tag"
        if step[0] in TAGS:
            return f"malformed {step[0]} step"
    return ""


def is_well_formed(step: Any) -> bool:
    """Whether a value is one of the fourteen steps with fields of the right types, in bounds."""
    try:
        tag = step[0]
        if tuple(map(type, step)) not in _FORMS[tag]:
            return False
    except (TypeError, KeyError, IndexError):
        return False
    # A flag has no bounds.
    return all(map(_is_in_bounds, _FIELDS[tag].removesuffix("B"), step[1:]))


def _is_in_bounds(field: str, value: Any) -> bool:
    """Whether a field of the right type holds no more than any real one."""
    if field == "T":
        return len(value) <= _NAME
    if field in "PN":
        return bool(0 <= value <= _MOST[field])
    if not value:
        return field == "L"
    are_integers = len(value) <= MAX_ITEMS and _INTEGERS.issuperset(map(type, value))
    return bool(are_integers and min(value) >= 0 and max(value) <= _MOST[field])


def main_stage_flops(steps: Sequence[Sequence[Any]]) -> float:
    """Estimate the floating-point operations of one run from the tiling of the main stage.

    The stage with the multi-level tiling has every axis split once, extents recorded: their product is its
    iterations, and each multiplies and adds. Other stages (padding, element-wise) are left out.

    Args:
        steps: Steps that pass `check_steps`.

    Returns:
        Twice the iterations of the largest tiled stage; 0.0 where no stage is tiled or an extent is unknown.
    """
    iterations: dict[int, int] = {}
    done: set[int] = set()
    tiled: set[int] = set()
    for step in steps:
        tag = step[0] if step else ""
        if tag == "SP" and is_well_formed(step):
            stage = step[1]
            if stage not in done:
                iterations[stage] = iterations.get(stage, 1) * step[3]
                if len(step[4]) >= TILED_LENGTHS:
                    tiled.add(stage)
        elif tag in ("RE", "FU") and is_well_formed(step):
            # What is split from here on are pieces of axes, and positions of stages may be others.
            done.add(step[1])
        elif tag in ("CHW", "CHR", "RF") and tiled:
            break
    return 2.0 * min(max((iterations[stage] for stage in tiled), default=0), MAX_NUMBER)
