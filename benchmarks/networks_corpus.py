"""Every architecture of the corpus, compiled and compared: `python -m benchmarks.networks --check corpus`.

Each architecture of `agents.networks.corpus` is built once more at a tiny size: one layer of each stage, few
channels, a text of 8 tokens. In each type a process does what `fleet tune` does before it measures anything:
it exports, imports and compiles the network, runs it once, and compares its output with torch's. Then it
compiles the network of `float32` as a search does at its end. A network is right, refused at once in one
line, or it failed late. Needs the extra `networks` and some 15 minutes on two cores.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from typing import Final

import yaml

from agents.errors import first_line
from agents.host.process_control import die_with_parent
from agents.networks.corpus import CORPUS
from agents.networks.network_name import NetworkRefusedError, read_network_name
from agents.records import Family
from benchmarks.harness import Figures, run_bounded, say, stopwatch

DTYPES: Final = ("float32", "float16", "bfloat16")
#: What any processor of this kind runs, compiled in half the time: it is run once.
_TARGET: Final = {"kind": "llvm", "num-cores": 1, "opt-level": 1}
#: Longest that an architecture may take in all types: the check is for a busy host too.
_CHILD_SECS: Final = 1800

_ENVIRONMENT: Final = {"OMP_NUM_THREADS": "1", "TVM_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
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
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        waiting = {pool.submit(_in_a_process, names[name]): name for name in architectures}
        rows = {}
        for done in as_completed(waiting):
            rows[waiting[done]] = done.result()
            for dtype, row in done.result().items():
                say(f"{waiting[done]} {dtype}: {row}")
    networks = {name: rows[name] for name in architectures}
    return {"benchmark": "networks corpus", **summary(networks)}


def summary(networks: dict[str, Figures]) -> Figures:
    """All networks, and how many there are of each kind."""
    rows = [row for by_dtype in networks.values() for row in by_dtype.values()]
    return {
        "architectures": len(networks),
        "compiled": sum(row["result"] == "ok" for row in rows),
        "refused": sum(row["result"] == "refused" for row in rows),
        "failed_late": sum(row["result"] == "failed_late" for row in rows),
        "networks": networks,
    }


def _in_a_process(text: str) -> Figures:
    """What the types of an architecture give; those that its process does not reach failed late."""
    # A session of its own, as readers of networks have: a busy host shares its time out by session.
    command = [sys.executable, "-m", "benchmarks.networks_corpus", str(os.getpid()), text]
    ended = run_bounded(command, _CHILD_SECS, more=_ENVIRONMENT)
    rows = dict(json.loads(line) for line in ended.printed.splitlines() if line.startswith('["'))
    why = f"its process ended with {ended.code}"
    if ended.code is None:
        why = f"its process was ended after {_CHILD_SECS} s"
    last = ended.errors.split("\n")[-3:]
    missing = {"result": "failed_late", "why": " ".join([why, *last]).strip(), "secs": 0.0}
    return {dtype: rows.get(dtype, missing) for dtype in DTYPES}


def _check(text: str) -> Figures:
    """Do to one network what a search does before it measures, and what it does at its end."""
    from agents.networks.first_run import first_run
    from agents.networks.library import build

    elapsed = stopwatch()
    with tempfile.TemporaryDirectory(prefix="tensor-fleet-corpus-") as folder:
        question = {"network": text, "target": _TARGET, "folder": folder, "threads": 1, "gpu_index": None}
        try:
            seen = first_run(question, Family.CPU)
        except NetworkRefusedError as error:
            why = str(error).removeprefix(f"network {text}: ")
            return {"result": "refused", "why": why, "secs": elapsed()}
        secs = elapsed()
        try:
            if read_network_name(text).dtype == "float32":
                build({**question, "traces": {}}, Family.CPU)
        except Exception as error:
            return {"result": "failed_late", "why": first_line(error), "secs": secs}
    return {"result": "ok", "difference": seen["difference"], "workloads": seen["workloads"], "secs": secs}


def _child(parent: int, text: str) -> None:
    """Check the types of an architecture; each prints a line of JSON, which no later crash takes back."""
    die_with_parent(parent)
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    for dtype in DTYPES:
        print(json.dumps([dtype, _check(f"{text},dtype={dtype}")]), file=answers, flush=True)
    # Threads of torch and TVM may hold a normal end up.
    os._exit(0)


if __name__ == "__main__":
    _child(int(sys.argv[1]), sys.argv[2])
