"""`python -m fleet.api.score_process MODELS STORE FD`: scores in a process of their own.

Started by `fleet.api.score_service`. Reading thousands of strangers' traces holds Python's lock for a second
or more, and a hostile one may take longer: none of it belongs into the coordinator's process.

It reads bodies of requests from a connection, until that is closed, and writes the body of each answer behind
`ANSWER_HEAD`.
"""

from __future__ import annotations

import json
import resource
import struct
import sys
import traceback
from collections.abc import Sequence
from contextlib import suppress
from multiprocessing.connection import Connection
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec.structs import replace

from agents.codec import workload_from_json
from agents.errors import AgentError
from agents.records import Candidate, ModelRef, Workload, WorkloadId
from fleet.api.scores import MOST_TRACES, ScoreQuestion
from fleet.errors import FleetError
from fleet.models.registry_reader import HeadMissing, RegistryReader

if TYPE_CHECKING:
    from fleet.models.opponents import HeadCache

#: Status, and candidates that were scored.
ANSWER_HEAD = struct.Struct(">HI")
#: Memory beyond which a request fails by itself; the host's is not its to use up.
_MOST_BYTES = 8 << 30


class ScoreRefusalError(FleetError):
    """A request that gets no scores: the status of HTTP, and why in one line."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(text)
        self.status = status


def main(arguments: Sequence[str]) -> int:
    """Answer requests until there are no more."""
    from fleet.models.opponents import HeadCache

    models, store, end = arguments
    resource.setrlimit(resource.RLIMIT_DATA, (_MOST_BYTES, _MOST_BYTES))
    registry = RegistryReader(Path(models))
    heads = HeadCache(registry)
    with Connection(int(end)) as requests, suppress(EOFError):
        while True:
            status, scored, answer = _answer(registry, heads, Path(store), requests.recv_bytes())
            requests.send_bytes(ANSWER_HEAD.pack(status, scored) + answer)
    return 0


def _answer(registry: RegistryReader, heads: HeadCache, store: Path, body: bytes) -> tuple[int, int, bytes]:
    from transfer.errors import TransferError

    status, scored = 200, 0
    try:
        answer = answered(registry, heads, store, body)
        scored = sum(score is not None for score in answer["scores"])
    except ScoreRefusalError as error:
        status, answer = error.status, {"detail": str(error)}
    except (FleetError, TransferError, OSError, MemoryError) as error:
        status, answer = 503, {"detail": str(error) or type(error).__name__}
    return status, scored, json.dumps(answer, allow_nan=False).encode()


def answered(registry: RegistryReader, heads: HeadCache, store: Path, body: bytes) -> dict[str, Any]:
    """What a request is answered with.

    Raises:
        ScoreRefusalError: The request cannot be answered.
        FleetError: Registry or store are damaged.
        TransferError: The champion is.
    """
    from fleet.models.opponents import score_candidates
    from transfer.errors import TraceError
    from transfer.features.extractor import Extractor
    from transfer.language.dialects import READERS

    request = _parsed(body)
    dialects = sorted(READERS)
    if request.dialect not in dialects:
        raise ScoreRefusalError(
            422, f"dialect: got {request.dialect!r}, expected one of {', '.join(dialects)}"
        )
    ref = _ref(registry, store, request)
    workload = _workload(store, request.workload)
    candidates = [
        Candidate(workload_id=workload.workload_id, trace=trace, dialect=request.dialect)
        for trace in request.traces
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
    answered_scores = [None if place in refused else float(score) for place, score in enumerate(scores)]
    for place, score in enumerate(answered_scores):
        if score is not None and not 0 <= score <= 1:
            answered_scores[place], refused[place] = None, "the workload has numbers that no score comes from"
    return {
        "device_id": ref.device_id,
        "version": ref.version,
        "scores": answered_scores,
        "refused": {str(place): why for place, why in sorted(refused.items())},
    }


def _parsed(body: bytes) -> ScoreQuestion:
    try:
        question = msgspec.json.decode(body, type=ScoreQuestion)
    except msgspec.ValidationError as error:
        raise ScoreRefusalError(422, str(error)) from error
    except (msgspec.DecodeError, ValueError, RecursionError) as error:
        raise ScoreRefusalError(400, f"the body is not JSON ({error}); expected an object") from error
    if (count := len(question.traces)) > MOST_TRACES:
        raise ScoreRefusalError(413, f"traces: got {count}, at most {MOST_TRACES}; send them in parts")
    return question


def _ref(registry: RegistryReader, store: Path, question: ScoreQuestion) -> ModelRef:
    """The head to ask."""
    from fleet.store.store import Store

    device = question.device
    try:
        return registry.head_ref(device, question.version or None)
    except HeadMissing as error:
        device_ids = sorted({*map(str, registry.champions()), *map(str, Store.read(store).devices())})
        if device in device_ids:
            raise ScoreRefusalError(404, str(error)) from error
        names = ", ".join(device_ids[:20]) or "none"
        more = f" and {len(device_ids) - 20} more" if len(device_ids) > 20 else ""
        raise ScoreRefusalError(404, f"unknown device {device[:80]!r}; known: {names}{more}") from error


def _workload(store: Path, reference: str | dict[str, Any]) -> Workload:
    """The workload of a store, or the one that was given."""
    if isinstance(reference, str):
        from fleet.store.store import Store

        workloads = Store.read(store).workloads([WorkloadId(reference)])
        if not workloads:
            raise ScoreRefusalError(
                404, f"unknown workload {reference[:80]!r}; give an id of {store}, or a whole workload"
            )
        return next(iter(workloads.values()))
    try:
        workload = workload_from_json(reference)
    except AgentError as error:
        raise ScoreRefusalError(422, str(error)) from error
    # A given workload may claim any id; facts about another workload must not be applied to it.
    return replace(workload, workload_id=WorkloadId("given"))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
