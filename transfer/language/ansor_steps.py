"""The form of Ansor's transform steps (record format v0.6), as they are written in JSON.

A step is a list whose first item is one of fourteen tags; what follows is fixed for each tag. Earlier
versions wrote the same steps, some without the last flag. Called by the importer, which must tell a record
from garbage before anything is kept of it, and by the reader and the writer of the dialect. Knows the form
of single steps only: not what they do to loops, nor anything of records, files or features.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from transfer.language.budget import MAX_TEXT, parse_list
from transfer.language.primitives import MAX_NUMBER

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


def _forms(*shapes: tuple[type, ...]) -> frozenset[tuple[type, ...]]:
    return frozenset((str, *shape) for shape in shapes)


_THREE = (int, int, int)
# Flags were written as booleans by some early versions, and left out by the earliest.
_FORMS: dict[str, frozenset[tuple[type, ...]]] = {
    "AN": _forms(_THREE),
    "FU": _forms((int, list)),
    "PR": _forms((int, int, str)),
    "RE": _forms((int, list)),
    "SP": _forms((*_THREE, list, int), (*_THREE, list, bool), (*_THREE, list)),
    "FSP": _forms((int, *_THREE)),
    "FFSP": _forms((int, int, list, int, int), (int, int, list, int, bool), (int, int, list, int)),
    "SA": _forms((int, *_THREE)),
    "CA": _forms(_THREE),
    "CI": _forms((int,)),
    "CR": _forms((int,)),
    "CHR": _forms((int, str, list)),
    "CHW": _forms((int, str)),
    "RF": _forms(_THREE),
}
#: The fourteen tags.
TAGS = frozenset(_FORMS)
_FLAT = frozenset({"AN", "FSP", "SA", "CA", "CI", "CR", "RF"})
_LIST_PLACE = {"FU": 2, "RE": 2, "SP": 4, "FFSP": 3, "CHR": 3}
_TEXT_PLACE = {"PR": 3, "CHR": 2, "CHW": 2}
#: Places of the numbers in steps that hold more than numbers.
_NUMBER_PLACES = {
    "FU": (1,),
    "PR": (1, 2),
    "RE": (1,),
    "SP": (1, 2),
    "FFSP": (1, 2, 4),
    "CHR": (1,),
    "CHW": (1,),
}
_INTEGERS = frozenset({int})
# Regular expressions of the fields: a stage or a loop, a number, a short text, lists of the first two.
_FIELDS = {
    "P": r"\d{1,3}+",
    "N": r"\d{1,18}+",
    "T": r'"[^"\\]{0,256}+"',
    "L": rf"\[(?:\d{{1,3}}+(?:,\d{{1,3}}+){{0,{MAX_ITEMS - 1}}}+)?\]",
    "F": rf"\[\d{{1,18}}+(?:,\d{{1,18}}+){{0,{MAX_ITEMS - 1}}}+\]",
}
# One alternative for each form, the most frequent first.
_CANONICAL_FORMS = (
    '(?:AN|CA|RF)",P,P,P',
    'SP",P,P,N,F,[01]',
    '(?:FU|RE)",P,L',
    'FSP",P,P,P,P',
    'PR",P,P,T',
    'FFSP",P,P,L,P,[01]',
    'C[IR]",P',
    'CHW",P,T',
    'CHR",P,T,L',
    'SA",P,P,N,N',
)


def _canonical() -> re.Pattern[str]:
    forms = "|".join(
        re.sub(",([PNTLF])", lambda match: "," + _FIELDS[match[1]], form) for form in _CANONICAL_FORMS
    )
    step = rf'\["(?:{forms})\]'
    return re.compile(rf"\[(?:{step}(?:,{step})*+)?\]")


_CANONICAL = _canonical()


def parse_steps(trace: str) -> list[Any]:
    """Parse a trace and check its outer form.

    Raises:
        TraceError: It is not a JSON list of at most `MAX_STEPS` steps.
    """
    return parse_list(trace, what="Ansor trace", items="steps", most=MAX_STEPS)


def check_steps(value: object) -> str:
    """Say why a value is no list of transform steps, "" where it plausibly is one.

    Looks at types only, since an importer asks this of every line; `check_text` is faster still where the
    steps are there as canonical text. A step with an unknown tag passes as long as it begins with a name,
    and numbers out of bounds pass: the reader makes unknown steps of both, and counts them.

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


def check_text(text: str) -> bool:
    """Whether a text is a list of well-formed steps in bounds, in canonical JSON (no spaces, flags 0 or 1).

    False says nothing bad yet: the text may hold unknown tags, or be written in another way.
    """
    return len(text) <= MAX_TEXT and _CANONICAL.fullmatch(text) is not None


def is_well_formed(step: Any) -> bool:
    """Whether a value is one of the fourteen steps with fields of the right types, in bounds."""
    try:
        tag = step[0]
        if tuple(map(type, step)) not in _FORMS[tag]:
            return False
    except (TypeError, KeyError, IndexError):
        return False
    if tag in _FLAT:
        # Of a storage alignment the last two numbers are factor and offset.
        places = step[1:3] if tag == "SA" else step[1:]
        return bool(min(step[1:]) >= 0 and max(places) <= MAX_POSITION and max(step[1:]) <= MAX_NUMBER)
    place = _LIST_PLACE.get(tag)
    if place is not None:
        items = step[place]
        if items and (not _INTEGERS.issuperset(map(type, items)) or min(items) < 0 or len(items) > MAX_ITEMS):
            return False
        if tag == "SP":
            return bool(
                0 <= step[1] <= MAX_POSITION
                and 0 <= step[2] <= MAX_POSITION
                and 0 <= step[3] <= MAX_NUMBER
                and items
                and max(items) <= MAX_NUMBER
            )
        if items and max(items) > MAX_POSITION:
            return False
    elif len(step[_TEXT_PLACE[tag]]) > _NAME:
        return False
    return all(0 <= step[number] <= MAX_POSITION for number in _NUMBER_PLACES[tag])


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
