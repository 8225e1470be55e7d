"""Workloads of architectures that were read before: reading one takes some ten seconds each time.

A name with the versions of everything that makes its workloads tells them, this project's code among them. So
nothing is ever stale: other versions look in another place. Files (`.pt2`, `.onnx`) are always read anew. The
folder may be deleted at any time. It belongs to the user alone, since what lies in it is built and run.
"""

from __future__ import annotations

import gzip
import importlib.metadata
import os
import zlib
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

import msgspec

from agents.files import code_hash, write_durably
from agents.networks.network_name import NetworkName
from agents.records import Family, Workload, canonical_json, content_hash

#: Folders of `agents` whose code makes the workloads of a network, and describes them.
_CODE: Final = ("networks", "programs")
_PACKAGES: Final = ("apache-tvm", "torch", "torchvision", "transformers")
#: Keys are written as so many hexadecimal digits.
_KEY_CHARS: Final = 32


def cache_folder() -> Path:
    """Where it is: below `XDG_CACHE_HOME`, which is `~/.cache` unless it is set."""
    setting = Path(os.environ.get("XDG_CACHE_HOME", ""))
    return (setting if setting.is_absolute() else Path.home() / ".cache") / "tensor-fleet" / "networks"


def kept_workloads(network: NetworkName, family: Family) -> list[Workload] | None:
    """The workloads that were read before; None where there are none, or the file is damaged."""
    path = _path(network, family)
    if path is None:
        return None
    try:
        if path.stat().st_uid != os.getuid():
            return None
        return msgspec.json.decode(gzip.decompress(path.read_bytes()), type=list[Workload])
    except (OSError, EOFError, zlib.error, msgspec.MsgspecError):
        return None


def keep(network: NetworkName, family: Family, workloads: Sequence[Workload]) -> None:
    """Keep what was read; a folder that cannot be written keeps nothing."""
    path = _path(network, family)
    if path is None:
        return
    content = msgspec.json.encode(workloads)
    with suppress(OSError):
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        write_durably(path, gzip.compress(content, mtime=0), mode=0o600)


def _path(network: NetworkName, family: Family) -> Path | None:
    """The file of an architecture; None for networks that are files, and where there is no home."""
    if network.path is not None:
        return None
    versions = {name: _version(name) for name in _PACKAGES}
    key = content_hash("network", code_hash(_CODE), family, network.text, canonical_json(versions))
    try:
        return cache_folder() / f"{key[:_KEY_CHARS]}.json.gz"
    except RuntimeError:  # no home folder
        return None


def _version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return ""
