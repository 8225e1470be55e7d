"""The fingerprints of devices: how fast each runs the reference programs of onboardings."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, ClassVar

from pydantic import Field

from fleet.core.request_words import RequestKind
from fleet.requests.request_kind import Flag, KnownFleet, Name, RequestArguments, Work

if TYPE_CHECKING:
    from fleet.collection.settings import Display
    from fleet.requests.session import EngineSession


class Fingerprint(RequestArguments):
    """Measure the reference programs of onboardings, which tell how alike devices are."""

    kind: ClassVar = RequestKind.FINGERPRINT

    devices: Annotated[list[Name], Flag("--device")] = Field(
        default=[], description="Device id; may be given again (all that fit this host)."
    )

    def check(self, fleet: KnownFleet) -> dict[str, Any]:
        """See `RequestArguments.check`; one for all devices is for those that are there now."""
        return super().check(fleet) | {"devices": sorted(set(self.devices) or self.places(fleet))}

    def perform(self, work: Work, session: EngineSession, display: Display) -> dict[str, Any]:
        """See `RequestArguments.perform`; gives the programs that ran, by device."""
        from fleet.onboarding.fingerprint import fingerprint_devices

        specs = self.wait_for_devices(session, display)
        return fingerprint_devices(session, self.settings(work.settings), specs, display)
