"""The fingerprints of devices: how fast each runs the reference programs of onboardings."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from fleet.core.words import RequestKind
from fleet.requests.request_kind import ManyDevices

if TYPE_CHECKING:
    from fleet.drivers.session import EngineSession
    from fleet.planner.settings import Display
    from fleet.requests.work import Work


class FingerprintDevices(ManyDevices, frozen=True, kw_only=True):
    """Measure the reference programs of onboardings, which tell how alike devices are."""

    kind: ClassVar = RequestKind.FINGERPRINT

    def perform(self, work: Work, session: EngineSession, display: Display) -> dict[str, Any]:
        """See `RequestArguments.perform`; gives the programs that ran, by device."""
        from fleet.onboarding.fingerprint import fingerprint_devices

        specs = self.wait_for_devices(session, display)
        return fingerprint_devices(session, self.settings(work.settings), specs, display)
