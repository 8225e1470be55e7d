"""Features of many candidates, kept small: rows of shared tables instead of one dense array for each.

Most steps of a million candidates are the same few thousand, and most workload vectors the same few hundred.
So a block keeps each distinct step and workload once, and for each candidate the row numbers: about 0.6 KB
instead of 4.4 KB, and dense arrays are made for one batch at a time. Made by `transfer.features.extractor`,
read by every model; knows nothing of schedules, records or latencies.

Legend: N candidates, L steps, C category slots, F number slots, V workload slots, S summary slots; T distinct
steps, W distinct workloads.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from agents.records import Family, canonical_json, content_hash
from transfer.arrays import Groups, Ints, Mask, Singles
from transfer.language.primitives import Primitive
from transfer.language.to_ansor import to_ansor_steps

#: Rows looked at in one go where a whole block is checked.
_CHUNK = 65536


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class FeatureBlock:
    """Features of N candidates. The properties make dense arrays: ask them of batches, not of millions."""

    #: (N, L) rows of the two step tables; 0 is padding.
    steps: Groups
    #: (T, C) indexes into the vocabularies; row 0 is all 0.
    step_categories: NDArray[np.int16]
    #: (T, F) numbers; row 0 is all 0.
    step_numbers: Singles
    #: (N,) rows of `workload_vectors`.
    workload_rows: Groups
    #: (W, V) one vector a workload.
    workload_vectors: Singles
    #: (N, S) derived numbers of each whole candidate.
    summary: Singles
    #: (N, L', E) features of published TLP, L' and E those of its layout; None where no model wants them, for
    #: they take four times as much as all else.
    published: Singles | None = None

    def __len__(self) -> int:
        """Number of candidates."""
        return len(self.steps)

    @property
    def categories(self) -> NDArray[np.int16]:
        """(N, L, C) indexes into the vocabularies; 0 at padding steps."""
        return self.step_categories[self.steps]

    @property
    def numbers(self) -> Singles:
        """(N, L, F) numbers; 0 at padding steps."""
        return self.step_numbers[self.steps]

    @property
    def mask(self) -> Mask:
        """(N, L) True at real steps."""
        return np.asarray(self.steps > 0)

    @property
    def workload(self) -> Singles:
        """(N, V) the workload of each candidate."""
        return self.workload_vectors[self.workload_rows]

    def take(self, rows: NDArray[Any]) -> FeatureBlock:
        """Features of some rows (indexes or mask), in the order given; the tables are shared."""
        return replace(
            self,
            steps=self.steps[rows],
            workload_rows=self.workload_rows[rows],
            summary=self.summary[rows],
            published=None if self.published is None else self.published[rows],
        )

    def step_counts(self) -> Ints:
        """(T,) how often each row of the step tables occurs; 0 for padding."""
        counts = np.zeros(len(self.step_numbers), dtype=np.int64)
        for start in range(0, len(self), _CHUNK):
            counts += np.bincount(self.steps[start : start + _CHUNK].ravel(), minlength=len(counts))
        counts[0] = 0
        return counts

    def not_finite(self) -> tuple[str, ...]:
        """Which of `numbers`, `workload` and `summary` hold NaN or infinity; only what rows use counts."""
        names = []
        if not np.isfinite(self.step_numbers[self.step_counts() > 0]).all():
            names.append("numbers")
        if not np.isfinite(self.workload_vectors[np.unique(self.workload_rows)]).all():
            names.append("workload")
        if not all(
            np.isfinite(self.summary[start : start + _CHUNK]).all() for start in range(0, len(self), _CHUNK)
        ):
            names.append("summary")
        return tuple(names)


# The features of published TLP (ASPLOS'23, section 4.2), which MTL-TLP reads.
#
# A schedule becomes a matrix of raw integers: each of Ansor's steps a row of an 11-wide one-hot of its tag
# and its fields one behind the other, rows and fields cut off at fixed sizes, no scaling. Two layouts, for
# CPUs and for GPUs, with vocabularies of their own. What they lack shows here as in the paper: a field
# behind a list floats, a real zero looks like padding, the end of long schedules is lost. Called by the
# extractor for models that read them.
#
# One thing is done otherwise. Where TLP meets a tag or a word outside its vocabulary, its training scripts
# crash and its search drops the one-hot, so that all fields shift by eleven; here the one-hot, or the
# word's number, is zero and everything else keeps its place.

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
