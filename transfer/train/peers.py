"""Several workers on one training run: who they are, and how they add up what each found.

Called by the training loop. Each batch is dealt to the workers by workload; their gradients are summed, so
that all hold the same weights after every step. It must not know who started the workers: that is
`fleet.models.ray_train`, or nobody where there is one worker.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch import distributed as dist

from transfer.errors import TransferError


@dataclass(frozen=True, slots=True)
class Peers:
    """A worker among all of a run. More than one needs an initialised `torch.distributed`."""

    rank: int = 0
    world_size: int = 1

    def __post_init__(self) -> None:
        if not 0 <= self.rank < self.world_size:
            raise ValueError(f"rank must be in [0, {self.world_size}), got {self.rank}")

    @property
    def is_first(self) -> bool:
        """Whether this worker is the one that writes files and reports."""
        return self.rank == 0

    def share(self, parts: Sequence[Any]) -> list[Any]:
        """The parts of a batch that are this worker's."""
        return list(parts[self.rank :: self.world_size])

    def add_up(self, tensor: Tensor) -> Tensor:
        """Sum a tensor over all workers, in place."""
        if self.world_size > 1:
            dist.all_reduce(tensor)
        return tensor

    def add_up_gradients(self, parameters: Sequence[nn.Parameter], loss: Tensor) -> Tensor:
        """Sum the gradients of some parameters, and a loss, over all workers in one exchange.

        A parameter without a gradient here counts as zero and has one afterwards, so all workers must name
        the same parameters: those that some worker has a gradient of. Gives the sum of the losses.
        """
        if self.world_size == 1:
            return loss.detach()
        flat = [torch.zeros_like(p).view(-1) if p.grad is None else p.grad.view(-1) for p in parameters]
        summed = self.add_up(torch.cat([*flat, loss.detach().view(1).to(parameters[0].dtype)]))
        start = 0
        for parameter in parameters:
            size = parameter.numel()
            parameter.grad = summed[start : start + size].view_as(parameter)
            start += size
        return summed[-1]

    def check_equal(self, number: int, what: str) -> None:
        """Refuse to go on where the workers do not agree.

        Raises:
            TransferError: They have different numbers.
        """
        found = torch.zeros(self.world_size, dtype=torch.float64)
        found[self.rank] = number
        found = self.add_up(found.to(_transport_device(self)))
        if len(set(found.tolist())) > 1:
            raise TransferError(
                f"the {self.world_size} workers disagree on the {what}: {[int(n) for n in found.tolist()]}; "
                "give all of them the same dataset and a run folder that all of them see"
            )


#: A run with one worker.
ALONE = Peers()


def _transport_device(peers: Peers) -> torch.device:
    """Where tensors must lie to be exchanged: NCCL moves those of GPUs only."""
    if peers.world_size > 1 and dist.get_backend() == "nccl":
        return torch.device("cuda", torch.cuda.current_device())
    return torch.device("cpu")
