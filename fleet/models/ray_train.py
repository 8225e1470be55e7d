"""Train with several workers: Ray Train starts them, `transfer.train.training` does the work in each.

Called by `fleet.models.training`. One of the modules that import Ray (the others are
`agents.device.ray_actors` and `fleet.transport.ray_session`). Ray Train gives each worker its rank and a
process group, and starts all of them again where one dies; training then goes on from the run folder. No word
of Ray gets into the loop itself.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from agents.errors import last_line
from fleet.errors import FleetError
from fleet.transport.ray_session import start_ray

if TYPE_CHECKING:
    from transfer.data.dataset import Dataset
    from transfer.train.config import TrainConfig
    from transfer.train.training import TrainResult

#: Folders inside the run folder: the dataset, which the workers map instead of copying it; what the first of
#: them leaves for the caller; and Ray Train's own notes.
_DATA, _RESULT, _NOTES = "data", "result", "ray"
#: Times that the workers are started again after one of them died.
_RESTARTS = 2


def train_with_workers(
    dataset: Dataset,
    rows: np.ndarray,
    *,
    config: TrainConfig,
    seed: int,
    workers: int,
    run_folder: Path,
    devices: Sequence[str] | None = None,
    validation_rows: np.ndarray | None = None,
) -> TrainResult:
    """Train one model with several workers on this host; arguments as in `transfer.train.training.train`.

    Each of the `workers` processes maps the same copy of the dataset's arrays, and a batch is dealt to them.
    On a GPU there is one for each card. Curves and what is kept of the run go into `run_folder`.

    Raises:
        FleetError: Ray Train is not installed whole, does not start, or a worker failed.
    """
    if find_spec("pandas") is None:
        raise FleetError(
            "training with several workers needs Ray Train, which needs the package pandas: "
            "pip install 'tensor-fleet[workers]', or train with one worker"
        )
    from transfer.model import checkpoint
    from transfer.train.config import torch_device
    from transfer.train.training import result_from_json

    folder = run_folder.absolute()
    shutil.rmtree(folder / _RESULT, ignore_errors=True)
    shutil.rmtree(folder / _DATA, ignore_errors=True)
    dataset.save(folder / _DATA)
    ray_folder = start_ray(max(len(os.sched_getaffinity(0)), workers))
    # Imported only here: Ray reads its confinement when it is first imported.
    import ray

    try:
        settings = {
            "rows": rows,
            "config": config,
            "seed": seed,
            "devices": devices,
            "validation_rows": validation_rows,
            "run_folder": folder,
        }
        _run(settings, workers, folder, use_gpu=torch_device(config.device).type == "cuda")
    finally:
        ray.shutdown()
        ray_folder.close()
        shutil.rmtree(folder / _DATA, ignore_errors=True)
    model, manifest = checkpoint.load_fleet_tlp(folder / _RESULT)
    shutil.rmtree(folder / _RESULT, ignore_errors=True)
    return result_from_json(model, manifest["training"])


def _run(settings: dict[str, Any], workers: int, folder: Path, *, use_gpu: bool) -> None:
    from ray.train import FailureConfig, RunConfig, ScalingConfig
    from ray.train.torch import TorchConfig, TorchTrainer

    trainer = TorchTrainer(
        _work,
        train_loop_config=settings,
        torch_config=TorchConfig(backend="nccl" if use_gpu else "gloo"),
        scaling_config=ScalingConfig(num_workers=workers, use_gpu=use_gpu),
        run_config=RunConfig(
            name="run",
            storage_path=str(folder / _NOTES),
            failure_config=FailureConfig(max_failures=_RESTARTS),
        ),
    )
    try:
        trainer.fit()
    except Exception as error:
        raise FleetError(
            f"training with {workers} workers failed: {last_line(error, None)}; the same command goes on "
            f"from the last epoch kept in {folder}"
        ) from error
    finally:
        shutil.rmtree(folder / _NOTES, ignore_errors=True)


def _work(settings: dict[str, Any]) -> None:
    """What each worker does."""
    import ray.train

    from transfer.data.dataset import Dataset
    from transfer.model import checkpoint
    from transfer.train.peers import Peers
    from transfer.train.training import TrainRun, result_to_json, train

    context = ray.train.get_context()
    peers = Peers(rank=context.get_world_rank(), world_size=context.get_world_size())
    result = train(
        Dataset.open(settings["run_folder"] / _DATA),
        settings["rows"],
        config=settings["config"],
        seed=settings["seed"],
        devices=settings["devices"],
        validation_rows=settings["validation_rows"],
        run=TrainRun(folder=settings["run_folder"], peers=peers),
    )
    if peers.is_first:
        folder = settings["run_folder"] / _RESULT
        checkpoint.save(folder, result.model, {"training": result_to_json(result)})
