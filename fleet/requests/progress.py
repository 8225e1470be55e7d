"""What a running request is told of how far it has come. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from fleet.core.events import RequestProgressed
from fleet.core.request_words import RequestId, RequestKind, RequestState
from fleet.core.state import FleetState


def training_progress(
    state: FleetState, trainer: Mapping[str, Any], now: float
) -> Iterator[RequestProgressed]:
    """Tell the requests of the running training which epoch it is in, where that is another than before.

    Args:
        state: Whose requests they are.
        trainer: What the trainer says of itself (`fleet.refresh.refresher.Refresher.view`).
        now: Time of the events.
    """
    epochs = trainer.get("epochs") or {}
    if not epochs:
        return
    for request in state.open_requests():
        if request.kind is not RequestKind.TRAINING:
            continue
        shown = state.request(RequestId(request.request_id))
        if shown is None or shown["state"] != RequestState.RUNNING:
            continue
        is_new = (epochs["done"], epochs["of"]) != (shown["done"], shown["of"])
        if is_new and request.arguments["family"] == trainer["family"]:
            yield RequestProgressed(
                at_secs=now,
                request_id=request.request_id,
                done=epochs["done"],
                of=epochs["of"],
                left_secs=epochs["left_secs"],
                finding=epochs["finding"],
            )
