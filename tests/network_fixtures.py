"""Small networks as files, for tests of whole networks."""

from __future__ import annotations

import warnings
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from agents.networks.network_name import read_network_name
from agents.networks.sources import load


def small_network() -> Any:
    """A module with what is folded and fused: a convolution with bias, normalisation and clip, and twins."""
    import torch

    class Small(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.stem = torch.nn.Conv2d(3, 16, 3, padding=1)
            self.norm = torch.nn.BatchNorm2d(16)
            self.depthwise = torch.nn.Conv2d(16, 16, 3, padding=1, groups=16, bias=False)
            self.second_norm = torch.nn.BatchNorm2d(16)
            self.one = torch.nn.Conv2d(16, 16, 3, padding=1)
            self.two = torch.nn.Conv2d(16, 16, 3, padding=1)
            self.head = torch.nn.Linear(16, 10)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            x = torch.nn.functional.relu6(self.norm(self.stem(x)))
            x = torch.relu(self.second_norm(self.depthwise(x)))
            x = torch.relu(self.two(torch.relu(self.one(x))))
            return torch.softmax(self.head(x.mean((2, 3))), -1)

    torch.manual_seed(0)
    made = Small()
    with torch.no_grad():
        for norm in (made.norm, made.second_norm):
            norm.running_mean.normal_()
            norm.running_var.uniform_(0.5, 2.0)
            norm.weight.uniform_(0.5, 2.0)
            norm.bias.normal_()
    return made.eval()


def save_network(path: Path) -> Path:
    """Export the small network into a `.pt2` file."""
    import torch

    return save_program(small_network(), (torch.randn(2, 3, 16, 16),), path)


def save_program(module: Any, inputs: tuple[Any, ...], path: Path) -> Path:
    """Export a module into a `.pt2` file."""
    import torch

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of torch about itself
        torch.export.save(torch.export.export(module.eval(), inputs), str(path))
    return path


def exported(module: Any, inputs: tuple[Any, ...], folder: Path) -> Any:
    """A module as it is read from the `.pt2` file that it was exported into."""
    return load(read_network_name(str(save_program(module, inputs, folder / "net.pt2"))))


def rewritten(source: Path, path: Path, change: Callable[[str, bytes], bytes]) -> Path:
    """Copy a `.pt2` file, each entry changed by its name without the archive's folder."""
    with zipfile.ZipFile(source) as old, zipfile.ZipFile(path, "w", zipfile.ZIP_STORED) as new:
        for entry in old.infolist():
            new.writestr(entry.filename, change(entry.filename.partition("/")[2], old.read(entry)))
    return path
