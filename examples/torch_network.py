"""List the workloads of a torch network: what `fleet` would measure for it.

Run it with `python examples/torch_network.py`. Replace `SmallNet` by your own module and example input.
"""

from __future__ import annotations

import torch

from agents.programs.workloads import exported_workloads


class SmallNet(torch.nn.Module):
    """Two equal convolutions and a classifier."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = torch.nn.Conv2d(3, 32, 3, stride=2, padding=1)
        self.one = torch.nn.Conv2d(32, 32, 3, padding=1)
        self.two = torch.nn.Conv2d(32, 32, 3, padding=1)
        self.head = torch.nn.Linear(32, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Map images (n, 3, h, w) to logits (n, 10)."""
        x = torch.relu(self.stem(x))
        x = torch.relu(self.two(torch.relu(self.one(x))))
        return self.head(x.mean((2, 3)))


def main() -> None:
    """Print one line for each distinct workload."""
    program = torch.export.export(SmallNet().eval(), (torch.zeros(1, 3, 64, 64),))
    for workload in exported_workloads(program, network="small-net"):
        shapes = " ".join("x".join(map(str, shape)) for shape in workload.arg_shapes)
        print(f"{workload.weight} x {workload.flops / 1e6:8.2f} MFLOP  {workload.name}  {shapes}")


if __name__ == "__main__":
    main()
