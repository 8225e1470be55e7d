"""The first head of a family in which no device has one: of the model that comes with the program.

The state gives every device a head by itself as soon as one of its family has one
(`fleet.core.request_events.onboard_arrivals`). Here that one is found. Pure; `fleet.engine.chores` asks it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Any

from agents.records import DeviceId, DeviceSpec
from agents.trust import is_live
from fleet.core.device_state import USABLE
from fleet.core.request_words import Request, RequestId, RequestKind


def first_head_requests(
    specs: Mapping[DeviceId, DeviceSpec],
    shown: Mapping[DeviceId, Mapping[str, Any]],
    open_requests: Iterable[Request],
    families: Collection[str],
    samples: int,
) -> dict[str, Request]:
    """Onboardings of a first device, by family; of a family that has a head, or is asked for one, none.

    `shown` tells what each device is now (`fleet.core.state.FleetState.describe`), `families` of which a
    model is shipped. The device measures `samples` candidates.
    """
    asked = {
        str(one.arguments.get("device"))
        for one in open_requests
        if one.kind in (RequestKind.ONBOARDING, RequestKind.TUNING)
    }
    found: dict[str, Request] = {}
    for family in sorted(families):
        mine = [one for one, spec in specs.items() if spec.family.value == family]
        if any(shown[one]["champion"] or one in asked for one in mine):
            continue
        able = [one for one in sorted(mine) if is_live(specs[one]) and shown[one]["state"] in USABLE]
        if able:
            first, incarnation = able[0], shown[able[0]]["incarnation"]
            found[family] = Request(
                # As the state names those that it asks for.
                request_id=RequestId(f"onboarding-{first}-{incarnation}"),
                kind=RequestKind.ONBOARDING,
                arguments={"device": first, "samples": samples},
            )
    return found
