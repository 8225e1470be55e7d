"""The features of published TLP (ASPLOS'23, section 4.2), which MTL-TLP reads.

A schedule becomes a matrix of raw integers: each of Ansor's steps a row of an 11-wide one-hot of its tag
and its fields one behind the other, rows and fields cut off at fixed sizes, no scaling. Two layouts, for CPUs
and for GPUs, with vocabularies of their own. What they lack shows here as in the paper: a field behind a list
floats, a real zero looks like padding, the end of long schedules is lost. Called by the extractor for models
that read them.

One thing is done otherwise. Where TLP meets a tag or a word outside its vocabulary, its training scripts
crash and its search drops the one-hot, so that all fields shift by eleven; here the one-hot, or the word's
number, is zero and everything else keeps its place.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from agents.records import Family, canonical_json, content_hash
from transfer.arrays import Singles
from transfer.language.primitives import Primitive
from transfer.language.to_ansor import to_ansor_steps

#: Where a step holds a word, by tag; every other field is a number or a list of numbers.
_WORD_PLACE = {"PR": 3, "CHW": 2, "CHR": 2}
#: Largest magnitude of a number: no loop of a real program is longer. Readers take what 64 bits hold; two of
#: those multiplied, as attention does, overflow.
_BOUND = 2.0**31


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishedLayout:
    """One of TLP's two layouts."""

    #: The family of devices that it is for.
    family: str
    #: Rows of the matrix (L); later steps are lost.
    steps: int
    #: Columns (E), those of the one-hot included; later fields are lost.
    width: int
    #: Tags in the order of their one-hot slots.
    tags: tuple[str, ...]
    #: Number of each word of a tag.
    words: Mapping[str, Mapping[str, int]]

    @property
    def hash(self) -> str:
        """Identifies sizes and vocabularies: a model is bound to that of the layout it was trained with."""
        return content_hash(canonical_json(asdict(self)), "published")


def _unrolling(*limits: int) -> dict[str, int]:
    """Numbers of the pragmas, from 1, by the unrolling limits that they name."""
    return {f"auto_unroll_max_step${limit}": number for number, limit in enumerate(limits, start=1)}


_WRITE_SCOPES = {"local": 1, "shared": 2, "global": 3}

CPU_LAYOUT = PublishedLayout(
    family=Family.CPU,
    steps=25,
    width=22,
    tags=("CI", "RE", "AN", "RF", "CHW", "SP", "CR", "CA", "FU", "FSP", "PR"),
    words={"PR": _unrolling(16, 0, 512, 64), "CHW": _WRITE_SCOPES},
)
GPU_LAYOUT = PublishedLayout(
    family=Family.GPU,
    steps=40,
    width=20,
    tags=("AN", "CHR", "CHW", "CI", "CA", "FFSP", "SP", "FU", "RE", "PR", "FSP"),
    words={"PR": _unrolling(0, 16, 64, 1024, 512), "CHW": _WRITE_SCOPES, "CHR": {"shared": 1}},
)

#: The layout of each family.
LAYOUTS: Mapping[str, PublishedLayout] = {layout.family: layout for layout in (CPU_LAYOUT, GPU_LAYOUT)}


def published_features(sequences: Sequence[Sequence[Primitive]], layout: PublishedLayout) -> Singles:
    """Features of some schedules of any dialect, by way of Ansor's steps.

    Args:
        sequences: N schedules.
        layout: Which of the two.

    Returns:
        (N, L, E) numbers, zero where there is no step or field, and those of no real program cut to a bound.
        What Ansor's steps cannot say gives no row.
    """
    features = np.zeros((len(sequences), layout.steps, layout.width), dtype=np.float32)
    for schedule, sequence in enumerate(sequences):
        for place, step in enumerate(to_ansor_steps(sequence)[: layout.steps]):
            row = step_vector(step, layout)[: layout.width]
            features[schedule, place, : len(row)] = row
    return np.clip(features, -_BOUND, _BOUND, out=features)


def step_vector(step: Sequence[Any], layout: PublishedLayout) -> list[int]:
    """The uncut row of one step: one-hot of the tag, then the fields in their order, lists flattened.

    Args:
        step: A step in Ansor's form, `[tag, stage, ...]`.
        layout: Which of the two.
    """
    tag = str(step[0])
    row = [int(tag == layout_tag) for layout_tag in layout.tags]
    for place, field in enumerate(step[1:], start=1):
        if place == _WORD_PLACE.get(tag):
            row.append(layout.words.get(tag, {}).get(field, 0))
        elif isinstance(field, list):
            row += field
        else:
            row.append(int(field))
    return row
