"""Let TVM's own LLVM judge a target: which CPU flags it needs, which of its names are unknown.

Called by `agents.host.probe` for CPU names that `agents.host.cpu_features` does not list. TVM runs in a
process of its own (this module as a program: JSON in, JSON out), so that the caller stays free of it. Knows
no device.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from typing import Any

from agents.errors import AgentError
from agents.host import cpu_features as isa
from agents.host.child_process import ChildProcess
from agents.host.process_control import leave_out_torch

# Importing TVM takes two to five seconds on an idle core; a board or a busy host needs longer.
_TIMEOUT_SECS = 120.0


class LlvmSilentError(AgentError):
    """TVM's LLVM could not be asked."""


def ask_llvm(target: Mapping[str, Any], arch: str) -> tuple[frozenset[str], tuple[str, ...]]:
    """Ask what a target of kind `llvm`, built for an architecture, needs of a CPU.

    It takes seconds: a process imports TVM.

    Returns:
        The `/proc/cpuinfo` flags needed, and the names in `mcpu` and `mattr` that LLVM does not know. LLVM
        only warns of those and builds for the oldest CPU, which would measure another device than named.

    Raises:
        LlvmSilentError: TVM is not installed, crashed or did not answer.
    """
    question = {key: target[key] for key in ("kind", "mcpu", "mattr", "mtriple") if key in target}
    question.setdefault("mtriple", f"{arch}-linux-gnu")
    try:
        child = ChildProcess(
            ["agents.host.llvm_features"], question=json.dumps(question).encode(), deadline_secs=_TIMEOUT_SECS
        )
        child.join()
    except OSError as error:
        raise LlvmSilentError(f"TVM cannot be started: {error}") from error
    if child.poll():
        raise LlvmSilentError(
            f"TVM did not answer ({child.failure_line()}): is apache-tvm installed and whole?"
        )
    answer = json.loads(child.answer())
    return isa.flags_of_features(arch, answer["features"]), tuple(answer["unknown"])


def _judge(target: Mapping[str, Any]) -> dict[str, list[str]]:
    from tvm.target import Target, codegen

    mcpu = target.get("mcpu", "")
    if mcpu and not codegen.llvm_is_valid_cpu(mcpu, target["mtriple"]):
        return {"features": [], "unknown": [mcpu]}
    features = sorted(str(feature) for feature in codegen.llvm_get_cpu_features(Target(dict(target))))
    attributes = [entry for entry in target.get("mattr", ()) if not entry.startswith("-")]
    return {
        "features": features,
        "unknown": [entry for entry in attributes if entry.lstrip("+") not in features],
    }


if __name__ == "__main__":
    leave_out_torch()
    print(json.dumps(_judge(json.load(sys.stdin))))
