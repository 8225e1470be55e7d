"""Several rankers on the same held-out rows: fit, score, judge.

Called by `fleet eval` and the scripts of the results. What is held out is hidden before a ranker sees the
dataset, so a ranker that peeks finds nothing. Knows rankers by their protocol only.
"""

from __future__ import annotations

import hashlib
import io
import time
import zipfile
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from transfer.checked_folder import put_file
from transfer.data.dataset import Dataset
from transfer.data.metrics import Metrics, merge
from transfer.data.ranking import places_in
from transfer.data.splits import Split
from transfer.errors import DatasetError
from transfer.evaluate.comparison import Comparison
from transfer.evaluate.evaluator import judge
from transfer.model.inputs import torch_threads
from transfer.processes import run_each
from transfer.train.rows import trainable_devices
from transfer.train.state import digest

if TYPE_CHECKING:
    from transfer.baselines.base import Ranker

#: Splits of each seed; the same for all seeds where they are given as a list.
Splits = Sequence[Split] | Callable[[int], Sequence[Split]]

#: A workload is judged where this many of its held-out candidates were measured: of one alone, any ranker
#: finds the best.
LEAST_CANDIDATES = 2
#: Attributes of rankers that tell how they learn, beside their name.
_SETTINGS = ("config", "grid", "rounds", "share", "by")


@dataclass(frozen=True, slots=True, kw_only=True)
class Finished:
    """One ranker was fitted and has scored the test rows of one split."""

    ranker: str
    split: str
    seed: int
    seconds: float
    #: Parts finished so far, and in all.
    done: int
    total: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Fitting:
    """How the fits of a comparison are done.

    Attributes:
        workers: Processes that fit. The result does not depend on it: each fit runs on one thread.
        keep: Folder for the scores of each fit (`KeptScores`); those found there are not
            made again.
        seeds_of: For rankers that are slow to fit, how many of the seeds they get: the first ones.
        learnt: Devices that all rankers have learnt before, whatever a split has to learn from; kept models.
    """

    workers: int = 1
    keep: Path | None = None
    seeds_of: Mapping[str, int] = field(default_factory=dict)
    learnt: tuple[str, ...] = ()


_HERE = Fitting()


@dataclass(frozen=True, slots=True)
class _Job:
    ranker: Ranker
    split: Split
    seed: int
    #: Place of the split among those of its seed.
    place: int

    @property
    def fit_seed(self) -> int:
        """Unlike for every seed and split, and inside what every library takes."""
        return int(np.random.SeedSequence([self.seed, self.place]).generate_state(1)[0] >> 1)


#: What one fitted ranker says of the test rows, (rows of the split,) by device, and the seconds that it took.
_Scores = tuple[Mapping[str, NDArray[np.float64]], float]


def compare(
    rankers: Sequence[Ranker],
    dataset: Dataset,
    splits: Splits,
    seeds: Sequence[int],
    *,
    noise_floors: Mapping[str, float] | None = None,
    fitting: Fitting = _HERE,
    on_progress: Callable[[Finished], None] | None = None,
) -> Comparison:
    """Fit every ranker on every split with every seed, and judge it on the rows held out.

    Where a ranker did not learn the device that a split holds out (`Split.targets`), a candidate's score is
    its place in its workload, averaged over the learnt devices: one rule for all rankers.

    Args:
        rankers: What to compare, by unlike names; fitted again and again.
        dataset: Candidates of all devices.
        splits: What to hold out, for all seeds or made by seed.
        seeds: One run each; intervals need several to say something of initial weights.
        noise_floors: Relative difference of two measurements of one program, by device.
        fitting: How fits are done.
        on_progress: Told of each fit that ended.

    Raises:
        DatasetError: There is nothing to compare, or no device can be judged.
        TransferError: A ranker cannot be fitted, or a process died.
    """
    names = tuple(ranker.name for ranker in rankers)
    if not names or len(set(names)) < len(names) or not seeds:
        raise DatasetError(f"a comparison needs seeds and rankers of unlike names, got {seeds} and {names}")
    splits_of = {seed: list(splits(seed) if callable(splits) else splits) for seed in seeds}
    jobs = [
        _Job(ranker, split, seed, place)
        for seed, several in splits_of.items()
        for place, split in enumerate(several)
        for ranker in rankers
        if seed in seeds[: fitting.seeds_of.get(ranker.name, len(seeds))]
    ]
    if not jobs:
        raise DatasetError("there is no split to judge anything by")
    floors = dict(noise_floors or {})
    runs: dict[tuple[str, str], dict[int, list[Metrics]]] = defaultdict(lambda: defaultdict(list))
    seconds: dict[str, list[float]] = {name: [] for name in names}
    judged_in: dict[str, set[tuple[int, int]]] = defaultdict(set)
    for done, (job, (scores, took)) in enumerate(_each(jobs, dataset, fitting), start=1):
        seconds[job.ranker.name].append(took)
        for device_id, values in scores.items():
            floor = floors.get(device_id, 0.0)
            metrics = judge(
                dataset, device_id, job.split.test, values, noise_floor=floor, least=LEAST_CANDIDATES
            )
            if metrics is not None:
                judged_in[device_id].add((job.seed, job.place))
                runs[job.ranker.name, device_id][job.seed].append(metrics)
        if on_progress is not None:
            on_progress(
                Finished(
                    ranker=job.ranker.name,
                    split=job.split.name,
                    seed=job.seed,
                    seconds=took,
                    done=done,
                    total=len(jobs),
                )
            )
    left_out = _left_out(dataset, splits_of, judged_in)
    kept = tuple(str(device_id) for device_id in dataset.device_ids if device_id not in left_out)
    if not kept:
        raise DatasetError(
            "no device can be judged: " + "; ".join(f"{d}: {why}" for d, why in left_out.items())
        )
    return Comparison(
        rankers=names,
        device_ids=kept,
        seeds=tuple(seeds),
        splits=tuple(split.name for split in splits_of[seeds[0]]),
        workload_ids=dataset.workload_ids,
        metrics=dict(_aligned({key: runs[key] for key in ((n, d) for n in names for d in kept)}, kept)),
        left_out=left_out,
        seconds={name: float(np.mean(values)) for name, values in seconds.items()},
        noise_floors={device_id: floors[device_id] for device_id in kept if device_id in floors},
    )


def _left_out(
    dataset: Dataset, splits_of: Mapping[int, Sequence[Split]], judged_in: Mapping[str, set[tuple[int, int]]]
) -> dict[str, str]:
    """Devices that not every split could judge where it should have, with the reason."""
    found = {}
    for column, device_id in enumerate(map(str, dataset.device_ids)):
        wanted = set()
        for seed, several in splits_of.items():
            for place, split in enumerate(several):
                asked = split.targets is None or device_id in split.targets
                counts = np.bincount(
                    dataset.group[split.test][np.isfinite(dataset.latency_secs[split.test, column])]
                )
                if asked and counts.max(initial=0) >= LEAST_CANDIDATES:
                    wanted.add((seed, place))
        if not wanted:
            found[device_id] = (
                f"no held-out workload has {LEAST_CANDIDATES} measured candidates there; measure more"
            )
        elif wanted - judged_in[device_id]:
            found[device_id] = (
                "a split leaves no workload with two measured candidates there to learn from; measure more"
            )
    return found


def _aligned(
    runs: Mapping[tuple[str, str], Mapping[int, list[Metrics]]], device_ids: Sequence[str]
) -> Iterator[tuple[tuple[str, str], tuple[Metrics, ...]]]:
    """Metrics by seed, over the workloads that every seed judged."""
    merged = {key: [merge(parts) for parts in by_seed.values()] for key, by_seed in runs.items()}
    for device_id in device_ids:
        mine = {key: several for key, several in merged.items() if key[1] == device_id}
        shared = set.intersection(*(set(one.groups.tolist()) for several in mine.values() for one in several))
        if not shared:
            raise DatasetError(
                f"no workload was judged on {device_id!r} with every seed; give more data or fewer seeds"
            )
        for key, several in mine.items():
            yield (
                key,
                tuple(one.take(np.flatnonzero(np.isin(one.groups, list(shared)))) for one in several),
            )


def _each(jobs: Sequence[_Job], dataset: Dataset, fitting: Fitting) -> Iterator[tuple[_Job, _Scores]]:
    """Every job with its result: what is kept is read, the rest is done and kept."""
    if fitting.keep is None:
        yield from _run(jobs, dataset, fitting)
        return
    kept = KeptScores(fitting.keep, dataset)
    paths = [kept.path(job.ranker, job.split, job.fit_seed) for job in jobs]
    found: list[_Scores | None] = [kept.load(path) for path in paths]
    made = _run([job for job, one in zip(jobs, found, strict=True) if one is None], dataset, fitting)
    for job, path, one in zip(jobs, paths, found, strict=True):
        if one is None:
            _, one = next(made)
            kept.save(path, *one)
        yield job, one


def _run(jobs: Sequence[_Job], dataset: Dataset, fitting: Fitting) -> Iterator[tuple[_Job, _Scores]]:
    """Do every job, here or in processes, and give each with its result in the order of the jobs."""
    run = partial(_fit_and_score, whole=dataset, known=fitting.learnt)
    yield from zip(
        jobs, run_each(run, jobs, fitting.workers, of="the comparison", pieces="fits"), strict=True
    )


def _fit_and_score(job: _Job, whole: Dataset, known: tuple[str, ...]) -> _Scores:
    """Fit on what the split shows and score its test rows for every device that it judges, on one thread."""
    split, ranker = job.split, job.ranker
    started = time.perf_counter()
    seen = split.visible(whole)
    shown = whole.where(seen)
    learnt = known or trainable_devices(shown, split.train)
    scores = {}
    with torch_threads(1):
        ranker.fit(shown, split.train, learnt, job.fit_seed)
        for device_id in map(str, whole.device_ids) if split.targets is None else split.targets:
            column = whole.column(device_id)
            # A ranker may look at what source devices say of a held-out candidate, not at the device itself.
            beside = np.ones_like(seen)
            beside[:, column] = seen[:, column]
            view = whole.where(beside)
            if device_id in learnt:
                scores[device_id] = ranker.score(view, split.test, device_id)
            elif split.targets is not None and learnt:
                places = [
                    places_in(ranker.score(view, split.test, one), whole.group[split.test]) for one in learnt
                ]
                scores[device_id] = np.mean(places, axis=0)
    return scores, time.perf_counter() - started


class KeptScores:
    """A folder of scores for comparisons on one dataset, so that a long one goes on where it was stopped.

    A file holds what one ranker said of the test rows of one split with one seed. Its name follows from
    everything that scores follow from (dataset, rows, ranker, settings, seed) but the code: delete the folder
    when a ranker was changed.

    Args:
        folder: Made as needed.
        dataset: What rankers learn from and are judged on.
    """

    def __init__(self, folder: Path, dataset: Dataset) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._folder = folder
        self._devices = tuple(map(str, dataset.device_ids))
        self._data = digest(
            np.array(dataset.candidate_ids),
            np.array(dataset.device_ids),
            dataset.group,
            dataset.latency_secs,
            dataset.failed,
            dataset.hardware,
            *dataset.features.arrays().values(),
        )

    def path(self, ranker: Any, split: Split, fit_seed: int) -> Path:
        """Where the scores of a ranker on a split belong; ask before the ranker is fitted."""
        settings = {name: repr(getattr(ranker, name)) for name in _SETTINGS if hasattr(ranker, name)}
        told = repr((self._data, ranker.name, settings, split.sources, split.targets, fit_seed))
        name = hashlib.blake2b(digest_size=12)
        for part in (told, digest(split.train), digest(split.test)):
            name.update(part.encode())
        return self._folder / f"{ranker.name}-{name.hexdigest()}.npz"

    def load(self, path: Path) -> tuple[dict[str, NDArray[np.float64]], float] | None:
        """Scores by device and the seconds they took; None where nothing is kept, or the file is damaged."""
        try:
            # An own file, which is closed whatever is wrong with what is in it.
            with path.open("rb") as file, np.load(file, allow_pickle=False) as kept:
                scores = {self._devices[int(name)]: kept[name] for name in kept.files if name != "seconds"}
                return scores, float(kept["seconds"])
        except (OSError, EOFError, ValueError, TypeError, KeyError, IndexError, zipfile.BadZipFile):
            return None  # they are made again

    def save(self, path: Path, scores: Mapping[str, NDArray[np.float64]], seconds: float) -> None:
        """Keep scores by device; the file appears whole or not at all."""
        arrays: dict[str, Any] = {str(self._devices.index(d)): values for d, values in scores.items()}
        file = io.BytesIO()
        np.savez(file, seconds=np.float64(seconds), **arrays)
        put_file(path, file.getvalue())
