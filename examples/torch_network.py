"""Export a torch network, and have `fleet` tune it.

Run it with `python examples/torch_network.py`; it prints the next command. Replace `SmallNet` by your own
module and example input.
"""

from __future__ import annotations

import torch


class SmallNet(torch.nn.Module):
    """Convolutions with batch normalisation, and a classifier."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = torch.nn.Conv2d(3, 32, 3, stride=2, padding=1)
        self.norm = torch.nn.BatchNorm2d(32)
        self.one = torch.nn.Conv2d(32, 32, 3, padding=1)
        self.two = torch.nn.Conv2d(32, 32, 3, padding=1)
        self.head = torch.nn.Linear(32, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Map images (n, 3, h, w) to logits (n, 10)."""
        x = torch.relu(self.norm(self.stem(x)))
        x = torch.relu(self.two(torch.relu(self.one(x))))
        return self.head(x.mean((2, 3)))


def main() -> None:
    """Write `small-net.pt2` into the present folder."""
    program = torch.export.export(SmallNet().eval(), (torch.zeros(1, 3, 64, 64),))
    torch.export.save(program, "small-net.pt2")
    print("small-net.pt2 is written; tune it: fleet tune DEVICE small-net.pt2 --trials 200")


if __name__ == "__main__":
    main()
