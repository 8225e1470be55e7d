"""Comparisons that go on where they were stopped: the scores of each fit are kept in a folder.

Used by `benchmarks.learning`. The fits and their judgement are those of `transfer.evaluate.compare`.
"""

from __future__ import annotations

import hashlib
import io
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from transfer.checked_folder import put_file
from transfer.data.dataset import Dataset
from transfer.evaluate.compare import Fit, FitScores, run_fits
from transfer.train.state import digest

#: Attributes of rankers that tell how they learn, beside their name.
_SETTINGS = ("config", "grid", "rounds", "share", "by")


def run_kept_fits(fits: Sequence[Fit], dataset: Dataset, folder: Path, workers: int) -> Iterator[FitScores]:
    """As of `run_fits`, but what is kept in the folder is read, and the rest is done and kept."""
    scores = KeptScores(folder, dataset)
    paths = [scores.path(fit) for fit in fits]
    before = [scores.load(path) for path in paths]
    missing = [fit for fit, found in zip(fits, before, strict=True) if found is None]
    made = run_fits(missing, dataset, workers=workers)
    for path, found in zip(paths, before, strict=True):
        if found is None:
            found = next(made)
            scores.save(path, *found)
        yield found


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

    def path(self, fit: Fit) -> Path:
        """Where the scores of a fit belong; ask before the ranker is fitted."""
        ranker, split = fit.ranker, fit.split
        settings = {name: repr(getattr(ranker, name)) for name in _SETTINGS if hasattr(ranker, name)}
        told = repr((self._data, ranker.name, settings, split.sources, split.targets, fit.fit_seed))
        name = hashlib.blake2b(digest_size=12)
        for part in (told, digest(split.train), digest(split.test)):
            name.update(part.encode())
        return self._folder / f"{ranker.name}-{name.hexdigest()}.npz"

    def load(self, path: Path) -> FitScores | None:
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
