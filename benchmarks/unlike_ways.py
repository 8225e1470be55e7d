"""Ways to choose a solver for a problem of a new GPU: the simple answers, trees, and ours by product code.

Each gives the judged candidates a cost, lower is better; the candidate of least cost is a problem's choice.
What a way may see is in its `View`: the judged problems' times on the new GPU are never there. Simple answers
fall back on one another where the nearest knows nothing, as a user would.

The data are MIOpen's find databases, read by the product's own dialect and features. Of the problems a share
is taken: whole convolutions with all types and directions, the same on every GPU.

Legend: N candidates, D devices, J judged rows, K kinds (direction and type), Z solvers.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from agents.records import CandidateId, Descriptor, DeviceId, DeviceSpec, Workload, WorkloadId
from fleet.interchange.dialects.miopen import read_find_db
from fleet.interchange.logs.catalog import Catalog
from fleet.interchange.logs.json_values import Rejected
from fleet.interchange.logs.lines import LogLines, Unreadable
from fleet.interchange.logs.targets import device_from_log
from transfer.adapt.source_model import fit_source_model
from transfer.arrays import Floats, Mask, Rows, Singles
from transfer.data.dataset import Dataset, MeasuredRow, build_dataset
from transfer.data.labels import group_min
from transfer.features.hardware import vector_distances
from transfer.model.trees import Trees, pack, tree_inputs
from transfer.train.tree_fit import extended, grow

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


@dataclass(frozen=True, eq=False)
class FindData:
    """Problems of the databases, joined by problem and solver.

    Legend: N candidates, W problems.
    """

    dataset: Dataset
    #: (N,) place of the solver's name in `solvers`.
    solver: Rows
    solvers: tuple[str, ...]
    #: (W,) place of direction and type together, within which solvers are alike.
    kind: Rows
    #: (W,) convolution that the problem is a direction and type of.
    convolution: Rows


def read_databases(folder: Path, one_in: int) -> FindData:
    """Read one convolution in `one_in` of every database of a folder."""
    workloads: dict[WorkloadId, Workload] = {}
    devices: dict[DeviceId, tuple[DeviceSpec, Descriptor]] = {}
    traces: dict[CandidateId, str] = {}
    rows: list[MeasuredRow] = []
    for path in sorted(folder.glob(f"*{SUFFIX}")):
        device_id = DeviceId(path.name.removesuffix(SUFFIX))
        catalog = Catalog()
        for entry in read_find_db(_SampledLines(path, one_in), catalog):
            if isinstance(entry, Rejected):
                continue
            if device_id not in devices:
                devices[device_id] = device_from_log(device_id, entry.environment.machine)
            workload = entry.workload.workload
            workloads[workload.workload_id] = workload
            candidate_id = CandidateId(entry.workload.candidate_id(entry.trace))
            traces[candidate_id] = entry.trace
            rows.append(
                MeasuredRow(
                    str(len(rows)),
                    device_id,
                    workload.workload_id,
                    candidate_id,
                    entry.workload.dialect,
                    entry.trace,
                    entry.result.outcome,
                    entry.result.run_secs,
                )
            )
    dataset = build_dataset(rows, workloads, devices)
    names = [traces[candidate_id] for candidate_id in dataset.candidate_ids]
    solvers, solver = np.unique(names, return_inverse=True)
    listed = [workloads[workload_id] for workload_id in dataset.workload_ids]
    keys = [workload.name.rpartition(" ")[2] for workload in listed]
    _, kind = np.unique([f"{one.operator} {one.arg_dtypes[0]}" for one in listed], return_inverse=True)
    convolutions = np.array([convolution_of(key.encode()) for key in keys], dtype=np.int64)
    return FindData(dataset, solver.ravel(), tuple(solvers.tolist()), kind.ravel(), convolutions)


#: A candidate that is so many times slower than the fastest is as bad as any.
_SLOWEST = 12.0
#: Costs of what a device does not know, behind all that it knows.
_UNKNOWN, _NOWHERE = 10.0, 20.0
#: A candidate counts in trees as its relative speed, this at least.
_LEAST_WEIGHT = 0.1
#: Share of the head beside what sources measured, as `transfer.adapt.source_devices` has it.
_HEAD_SHARE = 0.5
#: Samples of which a tree more is made, and samples below which trees stay as they are.
_SAMPLES_PER_TREE = 8
_LEAST_SAMPLES = 16


@dataclass(frozen=True, eq=False)
class Pool:
    """What all ways share of a target and a regime: flat features, and trees that the sources taught."""

    data: FindData
    target: int
    #: (N, D) what may be seen of the sources; the target's column is False.
    visible: Mask
    #: (N, P) flat features that vary.
    flat: Singles
    #: What the sources taught, from which rows; and how many trees there are.
    trees: Trees
    learnt: Rows
    #: (J,) rows that are judged.
    judged: Rows
    trees_count: int

    @property
    def hardware(self) -> Singles:
        """(H,) data sheet of the target."""
        return np.asarray(self.data.dataset.hardware[self.target])


@dataclass(eq=False)
class View:
    """What a way may see: the sources', and a few samples of the target."""

    pool: Pool
    #: Rows that the target measured.
    samples: Rows
    seed: int

    @property
    def data(self) -> FindData:
        """All candidates."""
        return self.pool.data

    @cached_property
    def logs(self) -> Floats:
        """(N, D) logarithms of seconds over the problem's fastest on the device; NaN where not visible."""
        dataset = self.data.dataset
        visible = self.pool.visible.copy()
        visible[self.samples, self.pool.target] = True
        logs = np.where(visible, np.log(dataset.latency_secs), np.nan)
        least = group_min(logs, dataset.group, len(dataset.workload_ids))
        return np.asarray(np.minimum(logs - least[dataset.group], np.log(_SLOWEST)))

    @cached_property
    def sources(self) -> list[int]:
        """Columns of the sources, the most alike first: by samples, or without one by data sheet."""
        target = self.pool.target
        columns = [column for column in range(self.logs.shape[1]) if column != target]
        apart = vector_distances(self.data.dataset.hardware, target)
        regret = self._regrets(columns) if len(self.samples) else dict.fromkeys(columns, 0.0)
        return sorted(columns, key=lambda column: (regret[column], apart[column]))

    def _regrets(self, columns: list[int]) -> dict[int, float]:
        """Mean logarithm that following each source's order loses on the sampled problems."""
        own = self.logs[self.samples, self.pool.target]
        group = self.data.dataset.group[self.samples]
        regrets = {}
        for column in columns:
            cost = np.nan_to_num(self.logs[self.samples, column], nan=_UNKNOWN)
            regrets[column] = float(own[first_of(cost, group)].mean())
        return regrets

    def wins(self, column: int) -> Floats:
        """(K, Z) how often a solver was the fastest of a problem on a device, by kind."""
        rows = np.flatnonzero(self.logs[:, column] == 0)
        return self._table(rows, np.ones(len(rows)))

    def _table(self, rows: Rows, values: Floats) -> Floats:
        data = self.data
        table = np.zeros((int(data.kind.max()) + 1, len(data.solvers)))
        np.add.at(table, (data.kind[data.dataset.group[rows]], data.solver[rows]), values)
        return table

    def judged_from(self, table: Floats) -> Floats:
        """(J,) entries of a (K, Z) table."""
        rows = self.pool.judged
        return np.asarray(table[self.data.kind[self.data.dataset.group[rows]], self.data.solver[rows]])


def first_of(cost: Floats, group: NDArray[np.integer]) -> Rows:
    """Places of the least cost of each group, groups in ascending order."""
    order = np.lexsort((cost, group))
    starts = np.flatnonzero(np.diff(group[order], prepend=-1))
    return np.asarray(order[starts])


def frequent_winner(view: View) -> Floats:
    """The solver that wins most often: on the samples, and among equals on the sources."""
    own, others = view.wins(view.pool.target), sum(view.wins(column) for column in view.sources)
    return -view.judged_from(own + others / (1 + np.max(others)))


def nearest_gpu(view: View) -> Floats:
    """The order of the most alike GPU; what it lacks by the others' mean, then by its frequent winners."""
    nearest, *_ = view.sources
    rows = view.pool.judged
    own = view.logs[rows, nearest]
    mean = _mean_of(view.logs[rows][:, view.sources])
    wins = view.wins(nearest)
    frequent = _NOWHERE - view.judged_from(wins / (1 + wins.max()))
    return np.where(np.isfinite(own), own, np.where(np.isfinite(mean), _UNKNOWN + mean, frequent))


def mean_rank(view: View) -> Floats:
    """The mean rank over the sources; of problems they do not know the solver's mean rank in its kind."""
    group, logs = view.data.dataset.group, view.logs[:, view.sources]
    summed, counts = np.zeros(len(logs)), np.zeros(len(logs))
    for column in logs.T:
        known = np.flatnonzero(np.isfinite(column))
        order = known[np.lexsort((column[known], group[known]))]
        starts = np.flatnonzero(np.diff(group[order], prepend=-1))
        sizes = np.diff([*starts, len(order)])
        summed[order] += np.arange(len(order)) - np.repeat(starts, sizes)
        counts[order] += 1
    ranks = np.where(counts > 0, summed / np.maximum(1, counts), np.nan)
    known = np.flatnonzero(np.isfinite(ranks))
    mean = view._table(known, ranks[known]) / np.maximum(1, view._table(known, np.ones(len(known))))
    own = ranks[view.pool.judged]
    return np.where(np.isfinite(own), own, _UNKNOWN + view.judged_from(mean))


def portfolio(view: View) -> Floats:
    """The solvers that are together best over all sources and problems, in the order of their choice.

    Each kind has its own.
    """
    data, group = view.data, view.data.dataset.group
    places = np.full((int(data.kind.max()) + 1, len(data.solvers)), float(len(data.solvers)))
    for kind in np.unique(data.kind[group[view.pool.judged]]):
        rows = np.flatnonzero(data.kind[group] == kind)
        problems, row_problem = np.unique(group[rows], return_inverse=True)
        speed = np.zeros((len(data.solvers), len(problems), len(view.sources)))
        speed[data.solver[rows], row_problem] = np.nan_to_num(np.exp(-view.logs[rows][:, view.sources]))
        for place, best in enumerate(together_best(speed)):
            places[kind, best] = place
    return view.judged_from(places)


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
    pool, target = view.pool, view.pool.target
    if len(view.samples) < _LEAST_SAMPLES:
        return np.zeros(len(pool.judged))
    logs = -view.logs[view.samples, target]
    x = tree_inputs(pool.flat[view.samples], pool.hardware)
    raw = grow(x, logs, np.maximum(np.exp(logs), _LEAST_WEIGHT), count=pool.trees_count, seed=view.seed)
    return -Trees(pack(raw)).margins(tree_inputs(pool.flat[pool.judged], pool.hardware))


def pooled_trees(view: View) -> Floats:
    """Trees that the sources taught, which go on with the samples."""
    return -_trees_of(view).margins(tree_inputs(view.pool.flat[view.pool.judged], view.pool.hardware))


def ours(view: View) -> Floats:
    """What sources measured, carried over by `transfer.adapt.source_model`, and the trees, half and half.

    As `source_devices` mixes them; where no source knows a candidate the trees are all.
    """
    pool, dataset = view.pool, view.data.dataset
    rows, group = pool.judged, dataset.group[pool.judged]
    head = pooled_trees(view)
    seen = dataset.where(pool.visible)
    if not np.isfinite(seen.latency_secs[rows]).any():
        return head
    shown = pool.visible.copy()
    shown[view.samples, pool.target] = True
    names = [str(dataset.device_ids[column]) for column in sorted(view.sources)]
    part = dataset.where(shown).take(np.union1d(np.union1d(pool.learnt, view.samples), rows))
    model, _ = fit_source_model(part, str(dataset.device_ids[pool.target]), names, view.seed)
    around, values = model.predict(seen, np.unique(group))
    value = values[np.searchsorted(around, rows)]
    known = np.isfinite(value)
    count = int(group.max()) + 1
    apart = np.bincount(group, np.where(known, value - head, 0.0), count)
    level = (apart / np.maximum(1, np.bincount(group[known], minlength=count)))[group]
    return np.where(known, (1 - _HEAD_SHARE) * value, 0.0) + np.where(known, _HEAD_SHARE, 1.0) * (
        head + level
    )


def _trees_of(view: View) -> Trees:
    """The sources' trees, gone on with the samples."""
    pool = view.pool
    if len(view.samples) < _LEAST_SAMPLES:
        return pool.trees
    x = tree_inputs(pool.flat[view.samples], pool.hardware)
    logs = -view.logs[view.samples, pool.target]
    said = pool.trees.margins(x)
    group = view.data.dataset.group[view.samples]
    level = (np.bincount(group, logs - said) / np.maximum(1, np.bincount(group)))[group]
    count = max(1, len(view.samples) // _SAMPLES_PER_TREE)

    # The level of a problem is nothing that trees could know.
    weight = np.maximum(np.exp(logs), _LEAST_WEIGHT)
    return extended(pool.trees, x, logs - level, weight, count=count, seed=view.seed)


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
#: Those that need nothing learnt.
SIMPLE = ("frequent winner", "nearest GPU", "mean rank", "portfolio")
#: Those that do not look at samples.
WITHOUT_SAMPLES = ("mean rank", "portfolio")
