"""The first head of a family in which no device has one: of the model that comes with the program.

The state gives every device a head by itself as soon as one of its family has one
(`fleet.core.request_events.onboard_arrivals`). Here that one is found. Pure, for
`fleet.engine.coordinator`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Any

from agents.records import DeviceId, DeviceSpec, is_live
from fleet.core.device_state import USABLE
from fleet.core.words import Request, RequestId, RequestKind


def first_head_requests(
    specs: Mapping[DeviceId, DeviceSpec],
    descriptions: Mapping[DeviceId, Mapping[str, Any]],
    open_requests: Iterable[Request],
    families: Collection[str],
    samples: int,
) -> dict[str, Request]:
    """Onboardings of a first device, by family; of a family that has a head, or is asked for one, none.

    `descriptions` are of the devices as they are now (`fleet.core.state.FleetState.describe`); of `families`
    a model is shipped. The device measures `samples` candidates.
    """
    requested_devices = {
        str(request.arguments.get("device"))
        for request in open_requests
        if request.kind in (RequestKind.ONBOARDING, RequestKind.TUNING)
    }
    requests_by_family: dict[str, Request] = {}
    for family in sorted(families):
        mine = [device_id for device_id, spec in specs.items() if spec.family.value == family]
        if any(descriptions[device_id]["champion"] or device_id in requested_devices for device_id in mine):
            continue
        able = [
            device_id
            for device_id in sorted(mine)
            if is_live(specs[device_id]) and descriptions[device_id]["state"] in USABLE
        ]
        if able:
            first, incarnation = able[0], descriptions[able[0]]["incarnation"]
            requests_by_family[family] = Request(
                # As the state names those that it asks for.
                request_id=RequestId(f"onboarding-{first}-{incarnation}"),
                kind=RequestKind.ONBOARDING,
                arguments={"device": first, "samples": samples},
            )
    return requests_by_family
