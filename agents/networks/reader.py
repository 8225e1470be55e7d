"""Ask a confined process about a network: its workloads, a compiled library, its latency.

Called by `agents.device.worker` and `fleet.tuning`. It imports neither TVM nor torch: what a file may harm
happens in `reader_process.py`.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from agents.codec import bounded_json, workload_from_json
from agents.errors import AgentError, first_line
from agents.host.child_process import ChildProcess
from agents.host.cuda import WORKER_ENVIRONMENT, make_device_files
from agents.networks.cache import keep, kept_workloads
from agents.networks.graph import merged
from agents.networks.network_name import NetworkRefusedError, members, read_network_name
from agents.records import Family, Workload
from agents.sandbox.scratch import scratch_folder

_LOG = logging.getLogger(__name__)
_Answer = TypeVar("_Answer")
#: Workloads of a network, or why it has none.
_Reading = list[Workload] | NetworkRefusedError

_MODULE = "agents.networks.reader_process"
#: Networks that one process reads: its start takes some ten seconds, and what it read is kept when it ends.
_READ_TOGETHER = 6
#: To read networks and make their workloads: torch and TVM are imported, and a large network is traced.
_READ_SECS = 900.0
#: Values of an answer, which is mostly the texts of modules: some dozen for a workload.
_MOST_ANSWER_VALUES = 200_000


def workloads_of_networks(networks: Sequence[str], family: Family) -> list[Workload]:
    """List the distinct workloads of networks and sets of networks, heaviest first.

    Args:
        networks: As `agents.networks.network_name` reads them; a member of a set that cannot be read is left
            out.
        family: Whose devices are to run them.

    Raises:
        NetworkRefusedError: One that is named itself cannot be read, or none could be.
    """
    names = members(networks)
    return network_workloads(names, family, optional=set(names) - set(networks))


def network_workloads(
    texts: Sequence[str], family: Family, *, optional: Collection[str] = ()
) -> list[Workload]:
    """List the workloads of networks, heaviest first.

    Architectures that were read before are taken from the cache (`agents.networks.cache`).

    Args:
        texts: As `agents.networks.network_name` reads them; sets are given as their members.
        family: Whose devices are to run them.
        optional: Those that are left out with a warning where they cannot be read: the versions of torch and
            transformers that are here may lack one of many.

    Raises:
        NetworkRefusedError: One of the others cannot be read, exported or lowered, or none could be.
    """
    readings: dict[str, _Reading] = {}
    for text in texts:
        network = read_network_name(text)
        network.check_file()
        if (cached := kept_workloads(network, family)) is not None:
            readings[text] = cached
    for together in _groups([text for text in texts if text not in readings]):
        fresh = _read(together, family)
        for text, reading in fresh.items():
            if isinstance(reading, list):
                keep(read_network_name(text), family, reading)
            elif text not in optional:
                raise reading
        readings |= fresh
    listed: list[Workload] = []
    refusals: list[NetworkRefusedError] = []
    for text in texts:
        reading = readings[text]
        if isinstance(reading, list):
            listed += reading
        else:
            refusals.append(reading)
            _LOG.warning("network %s is left out: %s", text, reading)
    if refusals and not listed:
        raise refusals[0]
    return merged(listed)


def _groups(texts: Sequence[str]) -> list[list[str]]:
    """Networks that one process reads. A file may take its process over, so it gets one of its own."""
    files = [text for text in texts if read_network_name(text).path is not None]
    names = [text for text in texts if text not in files]
    starts = range(0, len(names), _READ_TOGETHER)
    return [[text] for text in files] + [names[start : start + _READ_TOGETHER] for start in starts]


def _read(texts: Sequence[str], family: Family) -> dict[str, _Reading]:
    """Read some networks in one process; where one of them ends it, each gets a process of its own."""
    question = {"op": "workloads", "networks": list(texts), "family": family}
    try:
        answer = ask(question, timeout_secs=_READ_SECS)
        return checked_answer(", ".join(texts), lambda reply: _readings_in(reply, texts), answer)
    except NetworkRefusedError as error:
        if len(texts) == 1:
            return {texts[0]: error}
        readings: dict[str, _Reading] = {}
        for text in texts:
            readings |= _read([text], family)
        return readings


def _readings_in(answer: Mapping[str, Any], texts: Sequence[str]) -> dict[str, _Reading]:
    """What an answer has of networks; the workloads come first, since a refusal may end the caller."""
    listed, why = answer["workloads"], answer["refused"]
    readings: dict[str, _Reading] = {
        text: list(map(workload_from_json, listed[text])) for text in texts if text in listed
    }
    return readings | {text: NetworkRefusedError(str(why[text])) for text in texts if text not in readings}


def checked_answer(
    text: str, read: Callable[[Mapping[str, Any]], _Answer], answer: Mapping[str, Any]
) -> _Answer:
    """What an answer says of what was asked; a file may have taken its process over, so all else is left out.

    Args:
        text: The network, for messages.
        read: Takes what was asked out of an answer, and fails where that is not there or of another form.
        answer: As `ask` gave it.

    Raises:
        NetworkRefusedError: It is another answer than a sound process gives.
    """
    try:
        return read(answer)
    except (AgentError, ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        raise NetworkRefusedError(
            f"network {text}: its process gave another answer than was asked for "
            f"({type(error).__name__}: {first_line(error)})"
        ) from error


def ask(
    question: dict[str, Any],
    *,
    folder: Path | None = None,
    threads: int = 1,
    cores: Sequence[int] = (),
    timeout_secs: float,
) -> dict[str, Any]:
    """Ask a new process one question.

    Args:
        question: With `op`; paths in it are absolute. Only with a `gpu_index` may it use a GPU.
        folder: Where it may write; a temporary one if None.
        threads: Of TVM, torch and ONNX Runtime.
        cores: Where it runs; all of this process when empty.
        timeout_secs: It is ended after this time.

    Raises:
        NetworkRefusedError: It refuses, dies, or takes too long.
    """
    has_gpu = question.get("gpu_index") is not None
    if has_gpu:
        make_device_files()
    with scratch_folder("tensor-fleet-network-") as temporary:
        scratch = folder or temporary
        child = ChildProcess(
            [_MODULE, str(scratch)],
            question=json.dumps(question).encode(),
            variables=_environment(scratch, threads, has_gpu),
            cores=cores,
            deadline_secs=timeout_secs,
        )
        child.join()
    try:
        decoded = bounded_json(child.answer(), _MOST_ANSWER_VALUES)
    except (ValueError, RecursionError):
        raise NetworkRefusedError(
            f"{_subject(question)}: no answer to '{question['op']}': {child.failure_line()}"
        ) from None
    if not isinstance(decoded, dict) or "error" in decoded:
        raise NetworkRefusedError(str(decoded["error"] if isinstance(decoded, dict) else decoded)[:2000])
    return decoded


def _subject(question: dict[str, Any]) -> str:
    return f"network {question.get('network') or ', '.join(question.get('networks', ()))}"


def _environment(scratch: Path, threads: int, has_gpu: bool) -> dict[str, str]:
    """No downloads, no unpickling, no pools of compilers, everything that is written in one folder."""
    counts = ("TVM_NUM_THREADS", "OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
    return {
        **dict.fromkeys(counts, str(threads)),
        "TVM_BIND_THREADS": "0",
        "TORCH_FORCE_WEIGHTS_ONLY_LOAD": "1",
        "TORCHINDUCTOR_CACHE_DIR": str(scratch / "inductor"),
        "TORCHINDUCTOR_COMPILE_THREADS": "1",
        **(WORKER_ENVIRONMENT if has_gpu else {"CUDA_VISIBLE_DEVICES": ""}),
        "TRITON_CACHE_DIR": str(scratch / "triton"),
        "HF_HUB_OFFLINE": "1",
        "HF_HOME": str(scratch),
        "TMPDIR": str(scratch),
    }
