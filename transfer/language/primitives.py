"""The canonical schedule step and its vocabulary, shared by every dialect.

The readers of this folder turn the schedule language of one compiler into sequences of `Primitive`;
`transfer.features.extractor` turns sequences into arrays. The canonical kinds are Ansor's fourteen transform
steps (record format v0.6, which TLP reads) plus the few that a MetaSchedule trace adds. This
module knows nothing of JSON, files, devices or learning.

What the fields of a primitive hold, by kind (`names` is always `(block, role, detail)`, each may be ""):

| kind | numbers | detail |
|---|---|---|
| SP, FSP, FFSP | axis position (-1 unknown), extent, factors outer to inner (0 unknown) | axis kind |
| FU | loops fused, extent of the result (0 unknown) | |
| RE | loops reordered | |
| CA | depth of the loop (-1 unknown), iterations around it, iterations inside it (0 unknown) | target block |
| CHR, CHW | index of the buffer | memory scope |
| AN | axis position (-1: the whole block), value | annotation |
| PR | value | pragma |
| RF | axis position, factor axis | |
| others | the numbers as written | |

Encoders read those three fields only. The rest says which loops a step moves, as
`test_loop_nests_live.py` holds them against those of TVM:

- `stage`: stable number of the stage the step changes. The program's own stages count 0, 1, ... in its order;
  stages that steps make (CHR, CHW, RF) are `CREATED`, `CREATED + 1`, ... in the order they are made. The
  computing stage keeps its number: a cache write makes the copy-out, a cache read the cache, a factored
  reduction the partial result. -1: unknown.
- `loops`: positions among the stage's own loops (those it does not share with the nest it is computed at)
  when the step is applied. SP, FSP, FFSP, RF `(position,)`; FU `(first, ..., last)`; RE the whole permutation
  (the old position for each new place); AN and PR `(position,)`, or `()` for a whole stage; CA `(position,)`
  in the target's own loops; AU the place of the new loop. `()` where unknown.
- `targets`: other stages: CA `(target,)`, CHR the readers.

`stage` of a CHR is the one that its dialect names: a reader in MetaSchedule, the cached stage in Ansor.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from enum import StrEnum
from typing import Any, NamedTuple, Protocol

from agents.records import Workload, content_hash
from transfer.errors import BudgetError, TraceError

# How much work a text from a stranger may cause: its length, its items, the steps of a walk over it.
#
# A few kilobytes can describe a graph whose walk never ends, or a list that is looked through once an item.
# So every walk over such a text has a budget that grows with the text, and gives up beyond it. Real
# programs take less than a fifth of theirs. Used by all readers of this folder and by
# `transfer.features.access`.

#: Visits that any text may cause, however short, and those that each of its characters adds.
_LEAST_VISITS = 10_000
_VISITS_A_CHARACTER = 1


class WalkBudget:
    """Visits that one walk may still make.

    Args:
        text_chars: Length of the text that is walked.
        what: What it is, for the message.
    """

    __slots__ = ("_remaining", "_what")

    def __init__(self, text_chars: int, what: str) -> None:
        self._remaining = _LEAST_VISITS + _VISITS_A_CHARACTER * text_chars
        self._what = what

    def spend(self, visits: int) -> None:
        """Take some visits off; to look at one item of a list is one.

        Raises:
            BudgetError: That many are not left.
        """
        self._remaining -= visits
        if self._remaining < 0:
            raise BudgetError(f"{self._what} takes more work to read than any real one of its size")


#: Longest text that is read; the longest trace of the logs at hand takes 10 KB.
MAX_TEXT = 1 << 20


def parse_json(text: str, what: str) -> Any:
    """Parse the JSON of a schedule; `what` it is, is for the message.

    Raises:
        TraceError: It is not JSON, or is larger than any schedule.
    """
    if len(text) > MAX_TEXT:
        raise TraceError(f"{what} has {len(text)} characters, at most {MAX_TEXT} are read")
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise TraceError(f"{what} is not JSON ({error}); it begins {text[:60]!r}") from error


def parse_list(text: str, *, what: str, items: str, most: int) -> list[Any]:
    """Parse a list.

    Args:
        text: JSON.
        what: What it is, and ...
        items: ... what it lists, for the message.
        most: Items at most.

    Raises:
        TraceError: It is not a JSON list of at most `most` items.
    """
    value = parse_json(text, what)
    if not isinstance(value, list):
        raise TraceError(f"{what} must be a list of {items}, begins {text[:60]!r}")
    if len(value) > most:
        raise TraceError(f"{what} has {len(value)} {items}, at most {most} are read")
    return value


#: Version of the meaning of `Primitive`; raise it when a field changes without a change of the vocabulary.
LANGUAGE_VERSION = 2

#: Number of the first stage that a step makes; the stages of the program itself count from 0.
CREATED = 1000

#: Largest extent or factor that a reader takes: extents are 64-bit.
MAX_NUMBER = 2**63 - 1

#: Numbers that are multiplied at once.
_FEW_NUMBERS = 32

#: Index of anything outside the vocabulary in every categorical slot; 0 is that of a padding step.
UNKNOWN = 1


class Kind(StrEnum):
    """Kinds of schedule steps: Ansor's fourteen, then those of MetaSchedule that fit none of them."""

    UNK = "UNK"
    AN = "AN"
    FU = "FU"
    PR = "PR"
    RE = "RE"
    SP = "SP"
    FSP = "FSP"
    FFSP = "FFSP"
    SA = "SA"
    CA = "CA"
    CI = "CI"
    CR = "CR"
    CHR = "CHR"
    CHW = "CHW"
    RF = "RF"
    BLOCKIZE = "BZ"
    TENSORIZE = "TZ"
    LAYOUT = "TL"
    REINDEX = "RX"
    DECOMPOSE = "DR"
    SCOPE = "SS"
    UNIT_LOOP = "AU"
    UNANNOTATE = "UA"
    PAD_EINSUM = "PE"


class Role(StrEnum):
    """What a block is in the schedule; names of blocks differ between networks, roles do not."""

    NONE = ""
    ROOT = "root"
    #: The block whose loops get the multi-level tiling.
    TILED = "tiled"
    #: Made by a cache write of the tiled block.
    WRITE_CACHE = "write_cache"
    #: Made by a cache read.
    READ_CACHE = "read_cache"
    #: The partial-result block of a factored reduction.
    RFACTOR = "rfactor"
    #: Any other block of the program: padding, element-wise, transpose...
    OTHER = "other"


SPATIAL = "spatial"
REDUCTION = "reduction"

#: Words a `detail` may be; the rest is hashed by name where it is a block, else unknown.
DETAILS: tuple[str, ...] = (
    "",
    SPATIAL,
    REDUCTION,
    "none",
    "unroll",
    "vectorize",
    "parallel",
    "vthread",
    "tensorize",
    "blockIdx.x",
    "blockIdx.y",
    "blockIdx.z",
    "threadIdx.x",
    "threadIdx.y",
    "threadIdx.z",
    "vthread.x",
    "vthread.y",
    "vthread.z",
    "auto_unroll_max_step",
    "unroll_explicit",
    "unroll_implicit",
    "tiling_structure",
    "SSRSRS",
    "SSSRRSRS",
    "SRS",
    "cooperative_fetch",
    "thread_extent_low_inclusive",
    "thread_extent_high_inclusive",
    "random_compute_producer",
    "cache_type",
    "software_pipeline_stage",
    "software_pipeline_order",
    "software_pipeline_async_stages",
    "inline_rule",
    "layout_rewrite_preproc",
    "auto_tensorize",
    "auto_tensorize_init",
    "tensor_core_enabled",
    "global",
    "local",
    "shared",
    "shared.dyn",
    "wmma.matrix_a",
    "wmma.matrix_b",
    "wmma.accumulator",
    "m16n8k8.matrixA",
    "m16n8k8.matrixB",
    "m16n8k8.matrixC",
)

_KIND_INDEX = {kind: index + 1 for index, kind in enumerate(Kind)}
_ROLE_INDEX = {role: index + 2 for index, role in enumerate(Role)}
_DETAIL_INDEX = {word: index + 2 for index, word in enumerate(DETAILS)}

#: Sizes of the vocabularies, padding and unknown included.
KIND_COUNT = len(Kind) + 1
ROLE_COUNT = len(Role) + 2
DETAIL_COUNT = len(DETAILS) + 2


class Primitive(NamedTuple):
    """One schedule step. A named tuple, since millions are made, hashed and compared."""

    kind: Kind
    numbers: tuple[int, ...] = ()
    #: `(block, role, detail)`.
    names: tuple[str, str, str] = ("", "", "")
    #: Stable number of the stage, -1 unknown.
    stage: int = -1
    #: Positions among the stage's own loops.
    loops: tuple[int, ...] = ()
    #: Stable numbers of other stages.
    targets: tuple[int, ...] = ()


class Reader(Protocol):
    """Turns the text of one dialect's schedules into primitives; what nobody knows becomes an UNK one."""

    def read(self, trace: str, workload: Workload | None = None) -> tuple[Primitive, ...]:
        """Read one schedule.

        Args:
            trace: Text of the schedule, in this dialect.
            workload: What it schedules; stages and extents that the text does not tell come from it.

        Returns:
            The steps in their order.

        Raises:
            transfer.errors.TraceError: The text is not a schedule of this dialect.
        """
        ...


def extent_product(numbers: Sequence[int]) -> int:
    """Product of extents, none below 0; 0 where one is unknown, cut to 64 bits."""
    if len(numbers) <= _FEW_NUMBERS:
        return min(math.prod(numbers), MAX_NUMBER)
    # The whole product of thousands of numbers would take minutes.
    result = 0 if 0 in numbers else 1
    for number in numbers:
        result = min(result * number, MAX_NUMBER)
    return result


def kind_index(kind: str) -> int:
    """Index of a kind, `UNKNOWN` outside the vocabulary."""
    return _KIND_INDEX.get(kind, UNKNOWN)  # type: ignore[call-overload, no-any-return]


def role_index(role: str) -> int:
    """Index of a role, `UNKNOWN` outside the vocabulary."""
    return _ROLE_INDEX.get(role, UNKNOWN)  # type: ignore[call-overload, no-any-return]


def detail_index(word: str) -> int:
    """Index of a detail, `UNKNOWN` outside the vocabulary."""
    return _DETAIL_INDEX.get(word, UNKNOWN)


def vocabulary_hash() -> str:
    """Identify the vocabulary: a model trained under another one must not be used."""
    return content_hash(str(LANGUAGE_VERSION), *Kind, "|", *Role, "|", *DETAILS)
