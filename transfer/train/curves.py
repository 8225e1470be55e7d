"""Curves of a training run: a file of JSON lines always, and TensorBoard's events where it is installed.

Called by `transfer.train.training`. Show them with `tensorboard --logdir` on a folder of runs.
"""

from __future__ import annotations

import json
from dataclasses import asdict
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from transfer.train import CURVES_NAME
from transfer.train.config import EpochReport


class Curves:
    """Writes one point of every curve after each epoch.

    Args:
        folder: The run's folder; made as needed.
        history: Epochs that were done before: what the file holds of later ones is dropped.
    """

    def __init__(self, folder: Path, history: list[EpochReport]) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        # Written afresh, since a kill may have left half a line, or an epoch of which no state was kept.
        self._file = (folder / CURVES_NAME).open("w", encoding="utf-8")
        for report in history:
            self._write(report)
        self._board = _board(folder, purge_step=len(history) + 1)

    def __enter__(self) -> Curves:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()
        if self._board is not None:
            self._board.close()

    def add(self, report: EpochReport) -> None:
        """Add the points of one epoch."""
        self._write(report)
        if self._board is None:
            return
        points = {
            "loss/train": report.train_loss,
            "loss/validation": report.validation_loss,
            "learning_rate": report.learning_rate,
            "samples_per_s": _speed(report),
        }
        for name, value in points.items():
            if value is not None:
                self._board.add_scalar(name, value, report.epoch)
        self._board.flush()

    def _write(self, report: EpochReport) -> None:
        self._file.write(json.dumps({**asdict(report), "samples_per_s": _speed(report)}) + "\n")
        self._file.flush()


def _speed(report: EpochReport) -> float:
    return report.samples / max(1e-9, report.seconds)


def _board(folder: Path, purge_step: int) -> Any:
    """A writer of TensorBoard's events, or None where the package is not installed."""
    if find_spec("tensorboard") is None:
        return None
    from torch.utils.tensorboard import SummaryWriter

    return SummaryWriter(str(folder), purge_step=purge_step)
