"""`python -m fleet.api.score_process MODELS STORE CORES`: scores in a process of their own.

Started by `fleet.api.score_service`. Reading thousands of strangers' traces holds Python's lock for a second
or more, and a hostile one may take longer: none of it belongs into the coordinator's process. This one makes
itself nice, stays on the cores that it was given, uses one thread, and ends when its standard input does.

A frame is a head and its payload. To here: the body of a request. Back: the answer's body, with its status
and the number of candidates that were scored.
"""

from __future__ import annotations

import json
import os
import resource
import struct
import sys
import traceback
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from msgspec.structs import replace

from agents.codec import workload_from_json
from agents.errors import AgentError
from agents.host.priority import be_nice
from agents.records import Candidate, DeviceId, ModelRef, Workload, WorkloadId
from fleet.api.scores import MOST_TRACES
from fleet.errors import FleetError
from fleet.models.registry_reader import RegistryReader

if TYPE_CHECKING:
    from fleet.models.head_scores import HeadCache

#: Length of a request.
REQUEST_HEAD = struct.Struct(">Q")
#: Status, candidates that were scored, length of the answer.
ANSWER_HEAD = struct.Struct(">HIQ")
_NICE = 10
#: Memory beyond which a request fails by itself; the host's is not its to use up.
_MOST_BYTES = 8 << 30
_KEYS = frozenset({"device", "workload", "traces", "dialect", "version"})


class ScoreRefusalError(FleetError):
    """A request that gets no scores: the status of HTTP, and why in one line."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(text)
        self.status = status


def main(arguments: Sequence[str]) -> int:
    """Answer requests until there are no more."""
    from fleet.models.head_scores import HeadCache

    models, store, cores = arguments
    be_nice(_NICE)
    if cores:
        os.sched_setaffinity(0, {int(one) for one in cores.split(",")})
    resource.setrlimit(resource.RLIMIT_DATA, (_MOST_BYTES, _MOST_BYTES))
    source, sink = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    # Output of a library must not stand between the frames.
    os.dup2(2, 1)
    registry = RegistryReader(Path(models))
    heads = HeadCache(registry)
    while head := source.read(REQUEST_HEAD.size):
        body = source.read(*REQUEST_HEAD.unpack(head))
        status, scored, answer = _answer(registry, heads, Path(store), body)
        sink.write(ANSWER_HEAD.pack(status, scored, len(answer)) + answer)
        sink.flush()
    return 0


def _answer(registry: RegistryReader, heads: HeadCache, store: Path, body: bytes) -> tuple[int, int, bytes]:
    from transfer.errors import TransferError

    status, scored = 200, 0
    try:
        found = answered(registry, heads, store, body)
        scored = sum(one is not None for one in found["scores"])
    except ScoreRefusalError as error:
        status, found = error.status, {"detail": str(error)}
    except (FleetError, TransferError, OSError, MemoryError) as error:
        status, found = 503, {"detail": str(error) or type(error).__name__}
    return status, scored, json.dumps(found, allow_nan=False).encode()


def answered(registry: RegistryReader, heads: HeadCache, store: Path, body: bytes) -> dict[str, Any]:
    """What a request is answered with.

    Raises:
        ScoreRefusalError: The request cannot be answered.
        FleetError: Registry or store are damaged.
        TransferError: The champion is.
    """
    from fleet.models.head_scores import score_candidates
    from transfer.errors import TraceError
    from transfer.features.extractor import Extractor, default_readers

    asked = _parsed(body)
    dialects = sorted(default_readers())
    if asked["dialect"] not in dialects:
        raise ScoreRefusalError(
            422, f"dialect: got {asked['dialect']!r}, expected one of {', '.join(dialects)}"
        )
    ref = _ref(registry, store, asked["device"], asked["version"])
    workload = _workload(store, asked["workload"])
    candidates = [
        Candidate(workload_id=workload.workload_id, trace=trace, dialect=asked["dialect"])
        for trace in asked["traces"]
    ]
    try:
        # A fresh extractor: what it keeps of one request must not answer the next, nor pile up.
        scores, refused = score_candidates(heads.head(ref), Extractor(), workload, candidates)
    except TraceError as error:
        raise ScoreRefusalError(422, f"the traces cannot be read together: {error}") from error
    except (ArithmeticError, LookupError, TypeError, ValueError, RecursionError) as error:
        # A workload from a stranger may say of itself whatever its types allow.
        traceback.print_exc()
        first = (str(error).splitlines() or [""])[0][:200]
        why = f"{type(error).__name__}: {first}"
        raise ScoreRefusalError(
            422, f"the workload says what cannot be ({why}); send it as the store has it"
        ) from error
    told = [None if place in refused else float(one) for place, one in enumerate(scores)]
    for place, one in enumerate(told):
        if one is not None and not 0 <= one <= 1:
            told[place], refused[place] = None, "the workload has numbers that no score comes from"
    return {
        "device_id": ref.device_id,
        "version": ref.version,
        "scores": told,
        "refused": {str(place): why for place, why in sorted(refused.items())},
    }


def _parsed(body: bytes) -> dict[str, Any]:
    """The fields of a request."""
    try:
        value = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise ScoreRefusalError(400, f"the body is not JSON ({error}); expected an object") from error
    if not isinstance(value, dict):
        raise ScoreRefusalError(400, f"the body is a {type(value).__name__}; expected an object")
    if unknown := sorted(value.keys() - _KEYS):
        raise ScoreRefusalError(422, f"{unknown[0][:80]!r} is no field; known: {', '.join(sorted(_KEYS))}")
    found = {"dialect": "meta_schedule", "version": "", **value}
    for key in ("device", "dialect", "version"):
        if not isinstance(found.get(key), str):
            raise ScoreRefusalError(422, f"{key}: expected a text, got {_kind(found, key)}")
    if not isinstance(found.get("workload"), str | dict):
        raise ScoreRefusalError(422, f"workload: expected an id or an object, got {_kind(found, 'workload')}")
    traces = found.get("traces")
    if not isinstance(traces, list) or not all(isinstance(one, str) for one in traces):
        raise ScoreRefusalError(422, f"traces: expected a list of texts, got {_kind(found, 'traces')}")
    if len(traces) > MOST_TRACES:
        raise ScoreRefusalError(413, f"traces: got {len(traces)}, at most {MOST_TRACES}; send them in parts")
    return found


def _kind(found: Mapping[str, Any], key: str) -> str:
    if key not in found:
        return "nothing"
    value = found[key]
    return "a list with others" if isinstance(value, list) else type(value).__name__


def _ref(registry: RegistryReader, store: Path, device: str, version: str) -> ModelRef:
    """The head to ask."""
    champions = registry.champions()
    serving = {str(one): champion.ref for one, champion in champions.items()}
    if not version:
        if device in serving:
            return serving[device]
        from fleet.store.store import Store

        known = Store.read(store).devices()
        if device in known:
            raise ScoreRefusalError(404, f"no model serves device {device!r} yet; served: {_listed(serving)}")
        every = {*serving, *map(str, known)}
        raise ScoreRefusalError(404, f"unknown device {device[:80]!r}; known: {_listed(every)}")
    if version not in registry.versions():
        last = ", ".join(registry.versions()[-5:]) or "none"
        raise ScoreRefusalError(404, f"unknown version {version[:80]!r}; the last: {last}")
    heads = registry.manifest(version)["heads"]
    if device not in heads:
        raise ScoreRefusalError(
            404, f"{version} has no head for device {device[:80]!r}; it has: {_listed(heads)}"
        )
    return ModelRef(version=version, device_id=DeviceId(device), sha256=registry.sha256(version))


def _workload(store: Path, given: str | dict[str, Any]) -> Workload:
    """The workload of a store, or the one that was given."""
    if isinstance(given, str):
        from fleet.store.store import Store

        found = Store.read(store).workloads([WorkloadId(given)])
        if not found:
            raise ScoreRefusalError(
                404, f"unknown workload {given[:80]!r}; give an id of {store}, or a whole workload"
            )
        return next(iter(found.values()))
    try:
        workload = workload_from_json(given)
    except AgentError as error:
        raise ScoreRefusalError(422, str(error)) from error
    # A given workload may claim any id; facts about another workload must not be applied to it.
    return replace(workload, workload_id=WorkloadId("given"))


def _listed(names: Any) -> str:
    known = sorted(map(str, names))
    more = f" and {len(known) - 20} more" if len(known) > 20 else ""
    return (", ".join(known[:20]) or "none") + more


def read_exactly(source: IO[bytes], size: int) -> bytes:
    """Read so many bytes.

    Raises:
        EOFError: The other end has closed before.
    """
    found = source.read(size)
    if len(found) < size:
        raise EOFError
    return found


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
