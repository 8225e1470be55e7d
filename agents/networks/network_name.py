"""How a network is named: one of ours, an exported program, an ONNX file, or an architecture by name.

    resnet-50                                      one of `agents.programs.networks`
    nets/mine.pt2                                  saved by `torch.export.save`
    nets/mine.onnx                                 an ONNX model
    transformers:mobilenet_v2,image_size=128       an architecture with random weights; nothing is downloaded
    torchvision:resnet18,batch=4,dtype=float16
    transformers:resnet,depths=1/1/2/1            a list of whole numbers has slashes between them
    corpus                                         a set: all architectures of `agents.networks.corpus`

Standard library only: settings and command lines are read with it. It opens no network file but to name it.
"""

from __future__ import annotations

import difflib
import hashlib
import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from io import BufferedReader
from pathlib import Path
from typing import Any, Final, Literal

from agents.errors import AgentError
from agents.networks.corpus import CORPUS, CORPUS_NAME
from agents.programs.networks import NETWORKS

Source = Literal["ours", "pt2", "onnx", "transformers", "torchvision", "corpus"]

#: Ends of the names of files, and prefixes of architectures.
_SUFFIXES: Final[dict[str, Source]] = {".pt2": "pt2", ".onnx": "onnx"}
_LIBRARIES: Final[dict[str, Source]] = {"transformers": "transformers", "torchvision": "torchvision"}
_DTYPES = ("float32", "float16", "bfloat16")
#: What a spelling may say of any architecture; other keys go to its configuration.
_COMMON = {"batch", "dtype", "tokens"}
_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_-]{0,63}")
_KEY = re.compile(r"[a-z][a-z0-9_]{0,63}")
_LIST = re.compile(r"\d{1,9}(/\d{1,9})+")
_LABEL_CHARS = 8


class NetworkRefusedError(AgentError):
    """A network that cannot be read, exported or compiled, with one line that says why."""


def why_value_shaped(operators: str) -> str:
    """The reason to refuse a network in which operators give tensors whose size depends on values."""
    return (
        f"the shape of what {operators} gives depends on values, and TVM schedules fixed shapes; end the "
        "network before it, or use an operator of fixed shape"
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class NetworkName:
    """One network as a person names it."""

    text: str
    source: Source
    #: File, architecture, or name of one of ours.
    name: str
    #: Images or texts that run at once.
    batch: int = 1
    dtype: str = "float32"
    #: Length of a text; architectures for images have none.
    tokens: int = 128
    #: What the architecture's configuration says beyond its defaults.
    options: tuple[tuple[str, Any], ...] = ()

    @property
    def is_graph(self) -> bool:
        """Whether it is a whole network; ours are lists of operators, and the corpus is a set."""
        return self.source not in ("ours", "corpus")

    @property
    def path(self) -> Path | None:
        """The file, where it is one."""
        return Path(self.name) if self.source in ("pt2", "onnx") else None

    def label(self) -> str:
        """The name that records keep: files, and states of the corpus, are told apart by their content.

        Raises:
            NetworkRefusedError: The file cannot be read.
        """
        if self.source == "corpus":
            content = hashlib.sha256("\n".join(CORPUS).encode()).hexdigest()
            return f"{CORPUS_NAME}-{content[:_LABEL_CHARS]}"
        if self.path is None:
            return self.text
        with self._opened() as opened:
            digest = hashlib.file_digest(opened, "sha256")
        return f"{self.path.name}-{digest.hexdigest()[:_LABEL_CHARS]}"

    def check_file(self) -> None:
        """Look whether the file is there.

        Raises:
            NetworkRefusedError: It is not, or it is no file.
        """
        if self.path is not None:
            self._opened().close()

    def _opened(self) -> BufferedReader:
        import socket

        try:
            return Path(self.name).open("rb")
        except OSError as error:
            raise NetworkRefusedError(
                f"network {self.text}: cannot be read on host {socket.gethostname()} ({error.strerror}); "
                "name a file that every host of the request has at this path"
            ) from None


def read_network_name(text: str) -> NetworkName:
    """Read the name of a network.

    Raises:
        NetworkRefusedError: It is no name of a network; the message says which there are.
    """
    if text in NETWORKS:
        return NetworkName(text=text, source="ours", name=text)
    if text == CORPUS_NAME:
        return NetworkName(text=text, source="corpus", name=text)
    library, colon, rest = text.partition(":")
    if colon and library in _LIBRARIES:
        return _architecture(text, _LIBRARIES[library], rest)
    if source := _SUFFIXES.get(Path(text).suffix.lower()):
        return NetworkName(text=text, source=source, name=text)
    close = difflib.get_close_matches(text.lower(), NETWORKS, n=1)
    hint = f"did you mean {close[0]!r}?" if close else f"known are {', '.join(NETWORKS)}"
    raise NetworkRefusedError(
        f"unknown network {text!r}; {hint}; others are a .pt2 or .onnx file, transformers:NAME, "
        f"torchvision:NAME, or {CORPUS_NAME}"
    )


def members(texts: Sequence[str]) -> list[str]:
    """Each network once, with those of the corpus in its place."""
    names = [name for text in texts for name in (CORPUS if text == CORPUS_NAME else (text,))]
    return list(dict.fromkeys(names))


def with_absolute_path(text: str) -> str:
    """The same network for whoever reads it in another folder.

    Raises:
        NetworkRefusedError: It is no name of a network.
    """
    network = read_network_name(text)
    return text if network.path is None else str(network.path.absolute())


def networks_here(texts: Sequence[str] | None) -> list[str] | None:
    """Networks that a person of this host names, for whoever does the work; None where there are none.

    Raises:
        NetworkRefusedError: One of them is no network, or its file is not there.
    """
    for text in texts or ():
        read_network_name(text).check_file()
    return [with_absolute_path(text) for text in texts] if texts else None


def _architecture(text: str, source: Source, rest: str) -> NetworkName:
    name, *pairs = rest.split(",")
    if not _NAME.fullmatch(name):
        raise NetworkRefusedError(
            f"network {text!r}: expected the name of an architecture behind {source}:, such as "
            f"{'transformers:bert' if source == 'transformers' else 'torchvision:resnet18'}, got {name!r}"
        )
    options: dict[str, Any] = {}
    for pair in pairs:
        key, equals, value = pair.partition("=")
        if not equals or not _KEY.fullmatch(key) or key in options:
            raise NetworkRefusedError(f"network {text!r}: expected KEY=VALUE once a key, got {pair!r}")
        options[key] = _value(value)
    common = {key: options.pop(key) for key in _COMMON & options.keys()}
    for key in {"batch", "tokens"} & common.keys():
        if type(common[key]) is not int or not 1 <= common[key] <= 1 << 20:
            raise NetworkRefusedError(f"network {text!r}: {key} is a number from 1, got {common[key]!r}")
    if common.get("dtype", "float32") not in _DTYPES:
        raise NetworkRefusedError(
            f"network {text!r}: dtype is one of {', '.join(_DTYPES)}, got {common['dtype']!r}"
        )
    return NetworkName(text=text, source=source, name=name, options=tuple(sorted(options.items())), **common)


def _value(text: str) -> Any:
    """A number, true, false or null as JSON has them; whole numbers with slashes between; else the text."""
    if _LIST.fullmatch(text):
        return [int(part) for part in text.split("/")]
    try:
        value = json.loads(text)
    except ValueError:
        return text
    return value if isinstance(value, bool | int | float) or value is None else text
