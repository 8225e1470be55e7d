"""What is kept of a training run after each epoch, so that it can go on after a kill.

Called by `transfer.train.training`. A state is a folder `epoch-NNNNNN` with tensors (weights, averages of the
optimiser, best weights) and a manifest; it appears whole or not at all, and only then is the one before it
removed. Random states need no place: they follow from the seed and the number of the epoch. Nothing is
unpickled. Beside the states stand the curves of the run: show them with `tensorboard --logdir` on a folder of
runs.
"""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load as load_tensors
from safetensors.torch import save as save_tensors
from torch import Tensor

from transfer.checked_folder import (
    MANIFEST_NAME,
    MOST_MANIFEST_BYTES,
    CheckpointError,
    put_folder,
    read_checked,
    read_file,
    sha256,
)
from transfer.train import CURVES_NAME
from transfer.train.rows import EpochReport, TrainConfig
from transfer.train.step import Stepper

#: Version of the layout of a state.
STATE_VERSION = 1
_TENSORS_NAME = "state.safetensors"


@dataclass(slots=True)
class TrainingProgress:
    """How far a run has come, beside the weights and the optimiser's averages."""

    #: One report for each epoch that is over.
    history: list[EpochReport] = field(default_factory=list)
    #: Steps done.
    steps: int = 0
    #: Lowest validation loss, its epoch, and the weights of then; None without validation.
    best: tuple[float, int, dict[str, Tensor]] | None = None

    def is_over(self, config: TrainConfig) -> bool:
        """Whether all epochs are done, or the last ones brought nothing."""
        epoch = len(self.history)
        stalled = self.best is not None and epoch - self.best[1] >= config.patience
        return epoch >= config.epochs or stalled


def save_state(folder: Path, run: Mapping[str, Any], stepper: Stepper, progress: TrainingProgress) -> None:
    """Keep a run as it is after its last epoch; states of earlier epochs are removed.

    `run` is everything that its result follows from, as JSON.

    Raises:
        CheckpointError: The state cannot be written.
    """
    tensors = {f"model.{name}": value for name, value in stepper.model.state_dict().items()}
    if progress.best is not None:
        tensors |= {f"best.{name}": value for name, value in progress.best[2].items()}
    for place, averages in stepper.optimizer.state_dict()["state"].items():
        tensors |= {f"optimizer.{place}.{name}": value for name, value in averages.items()}
    raw = save_tensors({name: value.detach().cpu().contiguous() for name, value in tensors.items()})
    manifest = {
        "state_version": STATE_VERSION,
        "run": dict(run),
        "steps": progress.steps,
        "history": [asdict(report) for report in progress.history],
        "best": None if progress.best is None else list(progress.best[:2]),
        "tensors_sha256": sha256(raw),
    }
    text = json.dumps(manifest, indent=2, sort_keys=True, allow_nan=False)
    name = f"epoch-{len(progress.history):06d}"
    if not (folder / name).exists():
        put_folder(folder / name, {_TENSORS_NAME: raw, MANIFEST_NAME: text.encode()})
    for older in _states(folder)[:-1]:
        shutil.rmtree(older, ignore_errors=True)


@contextmanager
def recording(
    folder: Path, run: Mapping[str, Any], stepper: Stepper, progress: TrainingProgress
) -> Iterator[Callable[[EpochReport], None]]:
    """Keep state and curves of a run: gives what is to be called after each epoch.

    Curves are a file of JSON lines, and TensorBoard's events where it is installed.
    """
    folder.mkdir(parents=True, exist_ok=True)
    # Written afresh, since a kill may have left half a line, or an epoch of which no state was kept.
    with (folder / CURVES_NAME).open("w", encoding="utf-8") as file:

        def write(report: EpochReport) -> None:
            file.write(json.dumps({**asdict(report), "samples_per_s": _speed(report)}) + "\n")
            file.flush()

        for report in progress.history:
            write(report)
        board = _board(folder, purge_step=len(progress.history) + 1)

        def keep(report: EpochReport) -> None:
            save_state(folder, run, stepper, progress)
            write(report)
            if board is None:
                return
            points = {
                "loss/train": report.train_loss,
                "loss/validation": report.validation_loss,
                "learning_rate": report.learning_rate,
                "samples_per_s": _speed(report),
            }
            for name, value in points.items():
                if value is not None:
                    board.add_scalar(name, value, report.epoch)
            board.flush()

        try:
            yield keep
        finally:
            if board is not None:
                board.close()


def _speed(report: EpochReport) -> float:
    return report.samples / max(1e-9, report.seconds)


def _board(folder: Path, purge_step: int) -> Any:
    """A writer of TensorBoard's events, or None where the package is not installed."""
    if find_spec("tensorboard") is None:
        return None
    from torch.utils.tensorboard import SummaryWriter

    return SummaryWriter(str(folder), purge_step=purge_step)


def load_state(folder: Path, run: Mapping[str, Any], stepper: Stepper) -> TrainingProgress:
    """Bring a fresh model and optimiser to where a run was; nothing is done where nothing was kept.

    Raises:
        CheckpointError: The state is of another run, damaged, or of another version.
    """
    states = _states(folder)
    if not states:
        return TrainingProgress()
    path = states[-1]
    cure = f"delete {folder} to start over, or give another run folder"
    try:
        manifest = json.loads(read_file(path, MANIFEST_NAME, MOST_MANIFEST_BYTES))
        if manifest["state_version"] != STATE_VERSION:
            raise CheckpointError(
                f"{path}: state of layout {manifest['state_version']}, this program reads "
                f"{STATE_VERSION}; {cure}"
            )
        differing = sorted(
            key for key in {*run, *manifest["run"]} if manifest["run"].get(key) != _as_json(run.get(key))
        )
        if differing:
            raise CheckpointError(
                f"{path}: state of another training run ({', '.join(differing)} differ); {cure}"
            )
        raw = read_checked(path, _TENSORS_NAME, str(manifest["tensors_sha256"]), cure)
        return _restore(stepper, manifest, load_tensors(raw))
    except CheckpointError:
        raise
    except (KeyError, TypeError, ValueError, RuntimeError, SafetensorError, AttributeError) as error:
        raise CheckpointError(f"{path}: damaged: {str(error).splitlines()[0]}; {cure}") from error


def remove_states(folder: Path) -> None:
    """Remove what was kept of a run that is over."""
    for path in _states(folder):
        shutil.rmtree(path, ignore_errors=True)


def _restore(
    stepper: Stepper, manifest: Mapping[str, Any], tensors: Mapping[str, Tensor]
) -> TrainingProgress:
    stepper.model.load_state_dict(_under("model.", tensors))
    averages: dict[int, dict[str, Tensor]] = {}
    for name, value in _under("optimizer.", tensors).items():
        place, _, kind = name.partition(".")
        averages.setdefault(int(place), {})[kind] = value
    stepper.optimizer.load_state_dict(
        {"state": averages, "param_groups": stepper.optimizer.state_dict()["param_groups"]}
    )
    device = next(stepper.model.parameters()).device
    best = None
    if manifest["best"] is not None:
        weights = {name: value.to(device) for name, value in _under("best.", tensors).items()}
        best = float(manifest["best"][0]), int(manifest["best"][1]), weights
    return TrainingProgress(
        history=[EpochReport(**report) for report in manifest["history"]],
        steps=int(manifest["steps"]),
        best=best,
    )


def _under(prefix: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {n.removeprefix(prefix): value for n, value in tensors.items() if n.startswith(prefix)}


def _as_json(value: Any) -> Any:
    """A value as it comes back from JSON: tuples are lists there."""
    return json.loads(json.dumps(value))


def _states(folder: Path) -> list[Path]:
    """States kept in a folder, oldest first."""
    return sorted(folder.glob("epoch-" + "[0-9]" * 6))


def digest(*tensors: Any) -> str:
    """Short digest of arrays or tensors, to tell one run's data from another's."""
    state = hashlib.blake2b(digest_size=16)
    for tensor in tensors:
        array = tensor.detach().cpu().numpy() if isinstance(tensor, torch.Tensor) else tensor
        state.update(str((array.shape, str(array.dtype))).encode())
        state.update(array.tobytes())
    return state.hexdigest()
