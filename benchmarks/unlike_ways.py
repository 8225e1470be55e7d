"""Ways to choose a solver for a problem of a new GPU: the simple answers, trees, and ours by product code.

Each scores the judged candidates, higher is faster. What a way may see is in its `View`: the judged problems'
times on the new GPU are never there. Simple answers fall back on one another where the nearest knows nothing,
as a user would.

The data are MIOpen's find databases, read by the product's own dialect and features. Of the problems a share
is taken: whole convolutions with all types and directions, the same on every GPU.

Legend: N candidates, W problems, D devices, J judged rows.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from agents.records import CandidateId, Descriptor, DeviceId, DeviceSpec, Workload, WorkloadId
from benchmarks.onboarding_baselines import nearest_sources
from benchmarks.onboarding_cases import FewShotSet, Situation, with_few_shot
from benchmarks.rivals.base import flat_of, places_of, sources_measured_test
from fleet.interchange.dialects.miopen import read_find_db
from fleet.interchange.logs.catalog import Catalog
from fleet.interchange.logs.json_values import Rejected
from fleet.interchange.logs.lines import LogLines, Unreadable
from fleet.interchange.logs.targets import device_from_log
from transfer.adapt.source_devices import SourceCorrection
from transfer.adapt.source_model import fit_source_model
from transfer.arrays import Floats, Groups, Rows, Singles
from transfer.data.dataset import Dataset, MeasuredRow, build_dataset
from transfer.model.trees import Trees, pack, tree_inputs
from transfer.train.tree_fit import extended, grow

if TYPE_CHECKING:
    from benchmarks.unlike import Options

SUFFIX = ".HIP.fdb.txt.bz2"


class _SampledLines(LogLines):
    """The lines of one convolution in so many."""

    def __init__(self, path: Path, one_in: int) -> None:
        super().__init__(path)
        self._one_in = one_in

    def __iter__(self) -> Iterator[bytes | Unreadable]:
        for line in super().__iter__():
            if isinstance(line, bytes) and convolution_of(line) % self._one_in == 0:
                yield line


def convolution_of(line: bytes) -> int:
    """A number for the sizes of a key, the same for all types and directions."""
    sizes = line.partition(b"=")[0].rsplit(b"-", 2)[0]
    return zlib.crc32(b"-".join(sorted(sizes.split(b"-"))))


class FindData(NamedTuple):
    """Problems of the databases, joined by problem and solver."""

    dataset: Dataset
    #: (W,) direction and type of the problem, within which solvers are alike.
    kind: Groups
    #: (N,) kind of the problem and solver together.
    alike: Rows
    #: (W,) convolution that the problem is a direction and type of.
    convolution: Rows


def read_databases(folder: Path, one_in: int) -> FindData:
    """Read one convolution in `one_in` of every database of a folder."""
    workloads: dict[WorkloadId, Workload] = {}
    devices: dict[DeviceId, tuple[DeviceSpec, Descriptor]] = {}
    rows: dict[CandidateId, list[MeasuredRow]] = {}
    for path in sorted(folder.glob(f"*{SUFFIX}")):
        device_id = DeviceId(path.name.removesuffix(SUFFIX))
        for entry in read_find_db(_SampledLines(path, one_in), Catalog()):
            if isinstance(entry, Rejected):
                continue
            if device_id not in devices:
                devices[device_id] = device_from_log(device_id, entry.environment.machine)
            source, result = entry.workload, entry.result
            workload = source.workload
            workloads[workload.workload_id] = workload
            candidate_id = CandidateId(source.candidate_id(entry.trace))
            where = (device_id, workload.workload_id, candidate_id, source.dialect, entry.trace)
            row = MeasuredRow(f"{device_id} {candidate_id}", *where, result.outcome, result.run_secs)
            rows.setdefault(candidate_id, []).append(row)
    dataset = build_dataset([row for several in rows.values() for row in several], workloads, devices)
    listed = [workloads[workload_id] for workload_id in dataset.workload_ids]
    kinds = [f"{workload.operator} {workload.arg_dtypes[0]}" for workload in listed]
    kind = np.unique(kinds, return_inverse=True)[1].astype(np.int32)
    pairs = zip(kind[dataset.group].tolist(), dataset.candidate_ids, strict=True)
    names = [f"{number} {rows[candidate_id][0].trace}" for number, candidate_id in pairs]
    alike = np.unique(names, return_inverse=True)[1].astype(np.int64)
    keys = [workload.name.rpartition(" ")[2].encode() for workload in listed]
    return FindData(dataset, kind, alike, np.array([convolution_of(key) for key in keys], dtype=np.int64))


#: A candidate that is so many times slower than the fastest is as bad as any.
_SLOWEST = 12.0
#: Behind all that a device knows, and that any knows.
_UNKNOWN, _NOWHERE = -10.0, -20.0
#: A candidate counts in trees as its relative speed, this at least.
_LEAST_WEIGHT = 0.1
#: Share of the head beside what sources measured, as `transfer.adapt.source_devices` has it.
_HEAD_SHARE = 0.5
#: Samples of which a tree more is made, and samples below which trees stay as they are.
_SAMPLES_PER_TREE, _LEAST_SAMPLES = 8, 16


@dataclass(eq=False)
class View:
    """What a way may see: what the sources measured, and a few samples of the target."""

    data: FindData
    situation: Situation
    few_shot: FewShotSet
    seed: int
    options: Options

    def __post_init__(self) -> None:
        self.test, self.target = self.situation.test, self.data.dataset.column(self.situation.target)
        self.group = self.data.dataset.group

    @cached_property
    def seen(self) -> Dataset:
        """All candidates, with what may be seen."""
        return with_few_shot(self.situation.dataset, self.situation.target, self.few_shot)

    @cached_property
    def log_speeds(self) -> Floats:
        """(N, D) logarithms of speeds over that of the problem's fastest; NaN where nothing is seen."""
        return np.asarray(np.log(np.maximum(self.seen.labels(), 1 / _SLOWEST)))

    @cached_property
    def sources(self) -> list[int]:
        """Columns of the sources, the most alike first."""
        return [self.seen.column(source) for source in nearest_sources(self.situation, self.few_shot)]

    def by_solver(self, rows: Rows, values: Floats | None = None) -> Floats:
        """(J,) sums of values over rows of the same solver and kind; without values their number."""
        sums = np.bincount(self.data.alike[rows], values, len(self.group))
        return sums[self.data.alike[self.test]].astype(np.float64)

    def wins(self, column: int) -> Floats:
        """(J,) how often a solver was the fastest of a problem on a device, by kind."""
        return self.by_solver(np.flatnonzero(self.log_speeds[:, column] == 0))

    def inputs(self, rows: Rows, columns: Rows | int) -> tuple[Singles, Floats, Floats]:
        """What trees read of some rows on devices, their logarithmic speeds, and their weights."""
        x = tree_inputs(flat_of(self.situation)[rows], self.seen.hardware[columns])
        speeds = self.log_speeds[rows, columns]
        return x, speeds, np.maximum(np.exp(speeds), _LEAST_WEIGHT)

    @cached_property
    def trees(self) -> Trees:
        """Trees that the sources taught by other problems than the judged ones, gone on with the samples."""
        trees = self.situation.once("trees of sources", self._of_sources)
        rows = self.few_shot.rows
        if len(rows) < _LEAST_SAMPLES:
            return trees
        x, speeds, weight = self.inputs(rows, self.target)
        said, count = trees.margins(x), max(1, len(rows) // _SAMPLES_PER_TREE)
        # The level of a problem is nothing that trees could know.
        target = said + _centred(speeds - said, self.group[rows])
        return extended(trees, x, target, weight, count=count, seed=self.seed)

    def _of_sources(self) -> Trees:
        is_shown = np.isfinite(self.log_speeds) & ~np.isin(self.group, self.group[self.test])[:, None]
        is_shown[:, self.target] = False
        rows, columns = np.nonzero(is_shown)
        chosen = np.random.default_rng(self.target).permutation(len(rows))[: self.options.learnt]
        rows, columns = rows[np.sort(chosen)], columns[np.sort(chosen)]
        x, speeds, weight = self.inputs(rows, columns)
        target = _centred(speeds, self.group[rows] * np.int64(is_shown.shape[1]) + columns)
        return Trees(pack(grow(x, target, weight, count=self.options.trees, seed=0)))


def _centred(values: Floats, place: Groups | Rows) -> Floats:
    """Values less the mean of their place."""
    _, at = np.unique(place, return_inverse=True)
    return np.asarray(values - (np.bincount(at, values) / np.bincount(at))[at])


def frequent_winner(view: View) -> Floats:
    """The solver that wins most often: on the samples, and among equals on the sources."""
    others = np.sum([view.wins(column) for column in view.sources], axis=0)
    return np.asarray(view.wins(view.target) + others / (1 + np.max(others)))


def nearest_gpu(view: View) -> Floats:
    """The order of the most alike GPU; what it lacks by the others' mean, then by its frequent winners."""
    nearest, *_ = view.sources
    own, mean = view.log_speeds[view.test, nearest], _mean_of(view.log_speeds[view.test][:, view.sources])
    wins = view.wins(nearest)
    frequent = _NOWHERE + wins / (1 + wins.max())
    return np.where(np.isfinite(own), own, np.where(np.isfinite(mean), _UNKNOWN + mean, frequent))


def mean_rank(view: View) -> Floats:
    """The mean place on the sources; of problems they do not know the solver's mean place in its kind."""
    places = _mean_of(places_of(view.situation))
    known = np.flatnonzero(np.isfinite(places))
    alike = view.by_solver(known, places[known]) / np.maximum(1, view.by_solver(known))
    return np.where(np.isfinite(places[view.test]), places[view.test], _UNKNOWN + alike)


def portfolio(view: View) -> Floats:
    """The solvers of each kind that are together best over all sources and problems, as they are chosen."""
    kind, scores = view.data.kind[view.group], np.full(len(view.group), _NOWHERE)
    for number in np.unique(kind[view.test]):
        rows = np.flatnonzero(kind == number)
        _, problem = np.unique(view.group[rows], return_inverse=True)
        choices, choice = np.unique(view.data.alike[rows], return_inverse=True)
        speed = np.zeros((len(choices), int(problem.max()) + 1, len(view.sources)))
        speed[choice, problem] = np.nan_to_num(np.exp(view.log_speeds[rows][:, view.sources]))
        for place, best in enumerate(together_best(speed)):
            scores[rows[choice == best]] = -place
    return np.asarray(scores[view.test])


def together_best(speed: Floats) -> list[int]:
    """Choices that are together best, in their order: next is that with which most speed is kept.

    Args:
        speed: (choices, ...) of each, relative to the fastest.
    """
    reached, chosen = np.zeros(speed.shape[1:]), list[int]()
    while len(chosen) < len(speed):
        gains = np.maximum(speed, reached).reshape(len(speed), -1).sum(axis=1) - reached.sum()
        best = int(np.argmax(gains))
        if gains[best] <= 0:
            break
        chosen.append(best)
        reached = np.maximum(reached, speed[best])
    return chosen


def trees_from_scratch(view: View) -> Floats:
    """Trees that the samples alone taught; without any, no opinion."""
    if len(view.few_shot.rows) < _LEAST_SAMPLES:
        return np.zeros(len(view.test))
    raw = grow(*view.inputs(view.few_shot.rows, view.target), count=view.options.trees, seed=view.seed)
    return Trees(pack(raw)).margins(view.inputs(view.test, view.target)[0])


def pooled_trees(view: View) -> Floats:
    """Trees that the sources taught, which go on with the samples."""
    return view.trees.margins(view.inputs(view.test, view.target)[0])


def ours(view: View) -> Floats:
    """What sources measured and the trees, half and half, as `transfer.adapt.source_devices` mixes them.

    Where no source knows a judged problem the trees are all.
    """
    if not sources_measured_test(view.situation):
        return pooled_trees(view)
    target = view.situation.target
    is_known = np.isfinite(view.log_speeds[:, view.sources]).any(axis=1)
    rows = np.flatnonzero(is_known & np.isin(view.group, view.group[view.test]))
    # The head is asked about all that a source measured of the judged problems.
    said = np.exp(view.trees.margins(view.inputs(rows, view.target)[0]))
    head: Any = SimpleNamespace(score=lambda block, device_id: said, trees=None)
    sources = sorted(view.situation.sources)
    model, _ = fit_source_model(view.seen, target, sources, view.seed)
    return SourceCorrection(target, model, head_share=_HEAD_SHARE).score(head, view.seen, view.test)


def _mean_of(values: Floats) -> Floats:
    """Means of rows without what is unknown; NaN where nothing is known."""
    known = np.isfinite(values)
    summed = np.where(known, values, 0.0).sum(axis=1)
    return np.where(known.any(axis=1), summed / np.maximum(1, known.sum(axis=1)), np.nan)


OURS = "ours"
WAYS: dict[str, Callable[[View], Floats]] = {
    "frequent winner": frequent_winner,
    "nearest GPU": nearest_gpu,
    "mean rank": mean_rank,
    "portfolio": portfolio,
    "trees from scratch": trees_from_scratch,
    "pooled trees": pooled_trees,
    OURS: ours,
}
#: Those that learn; the others are simple answers, of which two look at no samples.
LEARNING = ("trees from scratch", "pooled trees", OURS)
WITHOUT_SAMPLES = ("mean rank", "portfolio")
