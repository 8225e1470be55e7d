"""Boosted trees in an ensemble with the network: what they read, how they are kept, their share of a score.

They read the flat features of a candidate (`transfer.features.flat`) and the hardware vector of a device, so
one set of trees serves every head, one of a device without a measurement included. Used by
`transfer.model.fleet_tlp`, taught by `transfer.train.tree_fit`. Kept as XGBoost's own binary JSON, packed to
two fifths by zlib, in a tensor: nothing is unpickled. XGBoost is imported at the first score.

Legend: N candidates, P flat features, H hardware slots.
"""

from __future__ import annotations

import zlib
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor, nn

from transfer.arrays import Floats, Singles
from transfer.errors import TransferError
from transfer.features.hardware import fitted_hardware

#: How sharply a logarithm of a score is bent where it nears 0: below -1 it stays what it is to within 0.2 %.
_BEND = 5.0
#: Bytes of unpacked trees at most; 500 of them have some five million.
_MOST_BYTES = 1 << 30


class Trees(nn.Module):
    """Trees as a part of a model that is stored and copied with it.

    Args:
        raw: The booster as XGBoost saves it (UBJSON), packed by `pack`.
        offset: Mean logarithm of the labels, which the trees learnt the distance to.
        weight: What their opinion counts beside the network's 1.
    """

    raw: Tensor
    offset: Tensor
    weight: Tensor

    def __init__(self, raw: bytes = b"", offset: float = 0.0, weight: float = 1.0) -> None:
        super().__init__()
        self.register_buffer("raw", torch.tensor(np.frombuffer(raw, dtype=np.uint8)))
        self.register_buffer("offset", torch.tensor(offset, dtype=torch.float64))
        self.register_buffer("weight", torch.tensor(weight, dtype=torch.float64))
        self._booster: Any = None

    def __deepcopy__(self, memo: dict[int, Any]) -> Trees:
        twin = Trees()
        twin.raw, twin.offset, twin.weight = self.raw.clone(), self.offset.clone(), self.weight.clone()
        twin.training = self.training
        # Nobody changes a booster once it is made, and making one again takes milliseconds that add up.
        twin._booster = self._booster
        return twin

    def log_speeds(self, flat: Singles, hardware: Singles) -> Floats:
        """Estimate logarithms of best latency / latency.

        Args:
            flat: (N, P) flat features.
            hardware: (H,) hardware vector of the device.

        Returns:
            (N,) estimates, some above 0. None depends on what stands beside it.

        Raises:
            TransferError: The trees are damaged, or read other inputs.
        """
        x = tree_inputs(flat, fitted_hardware(hardware, self.input_count() - flat.shape[1]))
        if self.input_count() != x.shape[1]:
            raise TransferError(
                f"the model's trees read {self.input_count()} numbers a candidate, this program has "
                f"{x.shape[1]}; train the model again"
            )
        return self.margins(x) + float(self.offset)

    def input_count(self) -> int:
        """Numbers of a candidate and of its device that the trees read."""
        return int(self._loaded().num_features())

    def margins(self, x: Singles) -> Floats:
        """(N,) sums of the trees, without the offset, for (N, P + H) of `tree_inputs`."""
        if not len(x):
            return np.zeros(0)
        return np.asarray(self._loaded().inplace_predict(x, predict_type="margin"), dtype=np.float64)

    def booster(self) -> bytes:
        """The booster as XGBoost saves it.

        Raises:
            zlib.error: It is damaged, or larger than any trees.
        """
        reader = zlib.decompressobj()
        unpacked = reader.decompress(self.raw.numpy().tobytes(), _MOST_BYTES)
        if not reader.eof:
            raise zlib.error("they end too soon, or are larger than any trees")
        return unpacked

    def _loaded(self) -> Any:
        if self._booster is None:
            import xgboost

            booster = xgboost.Booster()
            try:
                booster.load_model(bytearray(self.booster()))
            except (xgboost.core.XGBoostError, zlib.error) as error:
                raise TransferError(
                    f"the model's trees cannot be read: {str(error).splitlines()[0]}; restore the model or "
                    "train it again"
                ) from error
            # Several threads gain nothing on a few hundred rows, and wait where others hold the cores.
            booster.set_param({"nthread": 1})
            self._booster = booster
        return self._booster


class HardwareOf(nn.Module):
    """The hardware vector that the trees are told for a head."""

    values: Tensor

    def __init__(self, values: Tensor) -> None:
        super().__init__()
        self.register_buffer("values", values)


def pack(raw: bytes) -> bytes:
    """Make a booster as XGBoost saves it smaller."""
    return zlib.compress(raw)


def tree_inputs(flat: Singles, hardware: Singles) -> Singles:
    """(N, P + H): a candidate's flat features, then the device; (H,) or (N, H) of them."""
    beside = np.broadcast_to(np.asarray(hardware, dtype=np.float32), (len(flat), hardware.shape[-1]))
    return np.concatenate([np.asarray(flat, dtype=np.float32), beside], axis=1)


def joint_scores(network: Floats, trees: Floats, weight: float = 1.0) -> Floats:
    """Scores in (0, 1) from logarithms of relative speeds by both.

    What lies above 0 (faster than the best) is bent to just below it, in the order it had.

    Args:
        network: (N,) logarithms, at most 0.
        trees: (N,) logarithms.
        weight: What trees count beside the network's 1.
    """
    return bounded_scores((network + weight * trees) / (1 + weight))


def bounded_scores(log_speeds: Floats) -> Floats:
    """Scores in (0, 1) from logarithms of relative speeds; what lies above 0 is bent to just below it."""
    bent: Floats = -np.logaddexp(0.0, -_BEND * log_speeds) / _BEND
    return cast(Floats, np.exp(bent))
