"""Every architecture of the corpus, compiled and compared: `python -m benchmarks.networks --check corpus`.

Each architecture of `agents.networks.corpus` is built once more at a tiny size: one layer of each stage, few
channels, a text of 8 tokens. In each type a process does what `fleet tune` does before it measures anything:
it exports, imports and compiles the network, runs it once, and compares its output with torch's. Another one
compiles the network of `float32` as a search does at its end. A network is right, refused in one line, or it
failed late. Needs the extra `networks` and some 25 minutes on two cores.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final

import yaml

from agents.host.host_lock import make_lock
from agents.networks.corpus import CORPUS
from agents.networks.network_name import NetworkRefusedError, read_network_name
from agents.networks.reader import ask
from agents.records import Family
from benchmarks.harness import Figures, say, stopwatch, working_folder

DTYPES: Final = ("float32", "float16", "bfloat16")
#: What any processor of this kind runs, compiled in half the time: it is run once.
_TARGET: Final = {"kind": "llvm", "num-cores": 1, "opt-level": 1}
#: Longest that a process may take: the check is for a busy host too.
_CHILD_SECS: Final = 600
_SIZES: Final = Path(__file__).with_name("tiny_networks.yaml")


def tiny_names() -> dict[str, str]:
    """Names of the networks that are checked, by architecture."""
    sizes = yaml.safe_load(_SIZES.read_text())
    architectures = dict.fromkeys(read_network_name(text).name for text in CORPUS)
    return {name: f"transformers:{name},{sizes[name]}" for name in architectures}


def check_corpus(architectures: Sequence[str]) -> Figures:
    """Check architectures, as many at once as there are cores.

    Returns:
        `networks` (by architecture and type), `architectures`, `compiled`, `refused`, `failed_late`.
    """
    names = tiny_names()
    pairs = [(name, dtype) for name in architectures for dtype in DTYPES]
    networks: dict[str, dict[str, Figures]] = {name: {} for name in architectures}
    counts: Counter[str] = Counter()
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        rows = pool.map(_check, [f"{names[name]},dtype={dtype}" for name, dtype in pairs])
        for (name, dtype), row in zip(pairs, rows, strict=True):
            networks[name][dtype] = row
            counts[row["result"]] += 1
            say(f"{name} {dtype}: {row}")
    return {
        "benchmark": "networks corpus",
        "architectures": len(networks),
        "compiled": counts["ok"],
        "refused": counts["refused"],
        "failed_late": counts["failed_late"],
        "networks": networks,
    }


def _check(text: str) -> Figures:
    """Do to one network what a search does before it measures, and what it does at its end."""
    elapsed = stopwatch()
    with working_folder() as folder:
        question: Figures = {"network": text, "family": Family.CPU, "target": _TARGET, "folder": str(folder)}
        question |= {"threads": 1, "gpu_index": None, "traces": {}}
        # Nothing that counts is timed here, so each process has a lock of its own.
        make_lock(lock := folder / "lock")
        question |= {"lock": str(lock), "cores": sorted(os.sched_getaffinity(0))}
        is_late = False
        try:
            seen = ask({"op": "first_run", **question}, folder=folder, timeout_secs=_CHILD_SECS)
            secs, is_late = elapsed(), True
            if read_network_name(text).dtype == "float32":
                ask({"op": "build", **question}, folder=folder, timeout_secs=_CHILD_SECS)
        except NetworkRefusedError as error:
            why = str(error).removeprefix(f"network {text}: ")
            # A process that dies says nothing itself.
            is_late |= why.startswith("no answer to")
            return {"result": "failed_late" if is_late else "refused", "why": why, "secs": elapsed()}
    return {"result": "ok", "difference": seen["difference"], "workloads": seen["workloads"], "secs": secs}
