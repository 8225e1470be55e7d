"""The process in which a network is read, compiled and timed: confined, asked once, ended afterwards.

`reader.py` starts it with one question as JSON on its standard input, and reads one answer from its standard
output; all that torch, TVM and compilers print goes to its standard error. It may write in one folder only.
It starts programs only where it links or has torch compile. torch unpickles tensors and nothing else here,
whatever a file asks for (`TORCH_FORCE_WEIGHTS_ONLY_LOAD`).
"""

from __future__ import annotations

import json
import os
import resource
import sys
from pathlib import Path
from typing import Any

from agents.errors import AgentError
from agents.host.process_control import leave_out_torch
from agents.networks.network_name import read_network_name
from agents.records import Family, as_json_dict
from agents.sandbox.confinement import confine
from agents.sandbox.syscall_filter import Needs

#: A compiled library holds the weights.
_MOST_FILE_BYTES = 8 << 30
#: Memory to read a file: torch and TVM with their work, and for each byte of weights its copies in both.
_READER_BYTES = 6 << 30
_COPIES = 8


def answer(question: dict[str, Any]) -> dict[str, Any]:
    """Do what is asked.

    Args:
        question: `op` (`workloads`, `first_run`, `build`, `time`), `family`, and what the operation takes.

    Raises:
        AgentError: It cannot be done.
    """
    family = Family(question["family"])
    if question["op"] == "workloads":
        return _workloads(question["networks"], family)
    if question["op"] == "build":
        from agents.networks.library import build

        return build(question, family)
    if question["op"] == "first_run":
        from agents.networks.first_run import first_run

        return first_run(question, family)
    from agents.networks.latency import time_sides

    return time_sides(question)


def _workloads(networks: list[str], family: Family) -> dict[str, Any]:
    """The workloads of each network, and of those that have none why not."""
    from agents.networks.graph import lowered, workloads_of
    from agents.networks.sources import load
    from agents.programs.tvm_import import load_tensor_intrinsics
    from agents.programs.workloads import network_workloads

    load_tensor_intrinsics(family)
    listed: dict[str, list[dict[str, Any]]] = {}
    refused: dict[str, str] = {}
    for text in networks:
        network = read_network_name(text)
        try:
            if network.is_graph:
                module = lowered(load(network), family)
                workloads = workloads_of(module, family, network.label())
            else:
                workloads = network_workloads([text])
        except AgentError as error:
            refused[text] = str(error)
        else:
            listed[text] = [as_json_dict(workload) for workload in workloads]
    return {"workloads": listed, "refused": refused}


def _limit_memory(texts: list[str]) -> None:
    """Bound the memory of a process that reads a stranger's file by the size of the file."""
    paths = [path for text in texts if (path := read_network_name(text).path) is not None]
    if not paths:
        return
    most = _READER_BYTES + _COPIES * sum(path.stat().st_size for path in paths if path.is_file())
    _, hard = resource.getrlimit(resource.RLIMIT_DATA)
    least = most if hard == resource.RLIM_INFINITY else min(most, hard)
    resource.setrlimit(resource.RLIMIT_DATA, (least, least))


def main(arguments: list[str]) -> None:
    """Answer one question."""
    scratch = Path(arguments[0])
    question = json.load(sys.stdin)
    answers = os.dup(1)
    os.dup2(2, 1)
    os.chdir(scratch)
    gpu = question.get("gpu_index") is not None
    needs = Needs(programs=question["op"] != "workloads", gpu=gpu, shared_files=True)
    texts = question.get("networks") or [question["network"]]
    if not needs.gpu:  # a GPU's driver maps more than it uses
        _limit_memory(texts)  # a confined process sets no limits
    confine(scratch, needs, most_file_bytes=_MOST_FILE_BYTES)
    if all(read_network_name(text).source in ("onnx", "ours") for text in texts):
        leave_out_torch()
    try:
        reply = answer(question)
    except AgentError as error:
        reply = {"error": str(error)}
    except MemoryError:
        reply = {"error": f"network {', '.join(texts)}: takes more memory than its file may"}
    with os.fdopen(answers, "w") as stdout:
        json.dump(reply, stdout)
    # Threads of torch and TVM may hold a normal end up.
    sys.stdout.flush()
    os._exit(0)


if __name__ == "__main__":
    main(sys.argv[1:])
