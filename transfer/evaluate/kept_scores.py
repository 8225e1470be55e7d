"""Scores of fitted rankers, kept so that a long comparison goes on where it was stopped.

Called by `transfer.evaluate.compare` where a folder is given. A file holds what one ranker said of the test
rows of one split with one seed. Its name follows from everything that scores follow from (dataset, rows,
ranker, settings, seed) but the code: delete the folder when a ranker was changed.
"""

from __future__ import annotations

import hashlib
import io
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from transfer.checked_folder import put_file
from transfer.data.dataset import Dataset
from transfer.data.splits import Split
from transfer.train.state import digest

#: Attributes of rankers that tell how they learn, beside their name.
_SETTINGS = ("config", "grid", "rounds", "share", "by")


class KeptScores:
    """A folder of scores for comparisons on one dataset.

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
