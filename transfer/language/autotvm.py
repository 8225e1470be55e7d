"""AutoTVM's config entities (record format 0.2) as primitive sequences.

A trace is the JSON text of the entity: `[["tile_oc","sp",[-1,16]],["ann","an",["none","unroll"]],...]`. The
loop nest that the knobs schedule belongs to the template, so it comes with the workload, whose
`module_json` holds `{"dialect": "autotvm", "name": function, "args": arguments}`. Every knob moves the
operator's main stage, number 0: splits become SP of the tiled stage by axis, reorders RE, annotations AN of
the loop they annotate, other knobs PR. Without a workload, or under an unknown template, extents are 0 and
axes count in the order of the knobs. Called by `transfer.features.extractor`; knows nothing of records and
files.

Some logs hold Ansor's steps as an argument of the function and their factors as knobs (`SP_0_1`): those are
read as Ansor's steps with the factors put in.
"""

from __future__ import annotations

import copy
import json
import re
from typing import Any

from agents.records import Workload
from transfer.language.ansor import read_steps
from transfer.language.ansor_steps import TAGS, check_steps
from transfer.language.autotvm_templates import Template, find_template
from transfer.language.autotvm_walk import MAX_NAME, MAX_VALUES, read_knobs
from transfer.language.primitives import Primitive, parse_list

#: Knobs of one entity read at most; the largest templates have about a dozen.
MAX_KNOBS = 64
#: Workloads kept before starting over.
_CALL_LIMIT = 4096

_STEP_KNOB = re.compile(r"SP_(\d{1,3})_(\d{1,3})")
_INTEGERS = frozenset({int})
_TEXTS = frozenset({str})


def check_entity(value: object) -> str:
    """Say why a value is no config entity, "" where it plausibly is one.

    A knob of an unknown kind passes: the reader makes it an unknown step.

    Args:
        value: What JSON gave: a list of `[name, kind, value]`.

    Returns:
        A short reason, the same for all values with the same fault, or "".
    """
    if type(value) is not list:
        return "entity is not a list"
    if len(value) > MAX_KNOBS:
        return "too many knobs"
    for knob in value:
        if type(knob) is not list or len(knob) != 3:
            return "a knob is not [name, kind, value]"
        name, kind, chosen = knob
        if type(name) is not str or type(kind) is not str or len(name) > MAX_NAME or len(kind) > MAX_NAME:
            return "a knob is not [name, kind, value]"
        if kind == "ot":
            if isinstance(chosen, list | dict):
                return "malformed ot knob"
        elif kind in ("sp", "re", "an"):
            items = _TEXTS if kind == "an" else _INTEGERS
            if (
                type(chosen) is not list
                or len(chosen) > MAX_VALUES
                or not items.issuperset(map(type, chosen))
            ):
                return f"malformed {kind} knob"
    return ""


class AutoTVMReader:
    """Reads config entities; keeps what is known of each workload met.

    Knobs of a kind that nobody knows, or of a value that makes no sense, become UNK.
    """

    def __init__(self) -> None:
        self._calls: dict[str, tuple[Template, list[Any] | None]] = {}

    def read(self, trace: str, workload: Workload | None = None) -> tuple[Primitive, ...]:
        """Read one trace.

        Args:
            trace: JSON text of a config entity.
            workload: What it configures.

        Returns:
            One primitive a knob; of an annotation one for each loop.

        Raises:
            TraceError: The text is no entity, or is larger than any.
        """
        entity = parse_list(trace, what="AutoTVM entity", items="knobs", most=MAX_KNOBS)
        template, steps = self._call(workload.module_json if workload else "")
        if steps is not None:
            filled = _fill_steps(steps, entity)
            if filled is not None:
                return read_steps(filled)
        return read_knobs(entity, template)

    def _call(self, module_json: str) -> tuple[Template, list[Any] | None]:
        """Template of a workload, and the Ansor steps among its arguments if there are any."""
        call = self._calls.get(module_json)
        if call is None:
            name, arguments = _call_of(module_json)
            steps = next((argument for argument in arguments if _holds_steps(argument)), None)
            if len(self._calls) >= _CALL_LIMIT:
                self._calls.clear()
            call = self._calls[module_json] = find_template(name, arguments), steps
        return call


def _call_of(module_json: str) -> tuple[str, list[Any]]:
    """Function and arguments of a workload; empty for one that AutoTVM did not name."""
    try:
        value = json.loads(module_json)
    except (ValueError, RecursionError):
        return "", []
    if not isinstance(value, dict) or value.get("dialect") != "autotvm":
        return "", []
    name, arguments = value.get("name"), value.get("args")
    return (name, arguments) if isinstance(name, str) and isinstance(arguments, list) else ("", [])


def _holds_steps(argument: Any) -> bool:
    return (
        isinstance(argument, list)
        and bool(argument)
        and check_steps(argument) == ""
        and all(step[0] in TAGS for step in argument)
    )


def _fill_steps(steps: list[Any], entity: list[Any]) -> list[Any] | None:
    """Steps with the factors of `SP_i_j` knobs put in; None where there are no such knobs."""
    factors = {
        (int(match[1]), int(match[2])): knob[2]
        for knob in entity
        if isinstance(knob, list) and len(knob) == 3 and type(knob[2]) is int and knob[2] > 0
        if (match := _STEP_KNOB.fullmatch(str(knob[0])))
    }
    if not factors:
        return None
    filled = copy.deepcopy(steps)
    for number, step in enumerate(step for step in filled if step[0] == "SP"):
        step[4] = [factors.get((number, place), length) for place, length in enumerate(step[4])]
    return filled
