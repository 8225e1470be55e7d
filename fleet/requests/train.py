"""A training of the model of one family, which the coordinator's trainer does."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar

from msgspec import Meta

from fleet.core.words import Request, RequestKind
from fleet.requests.request_kind import KnownFleet, Name, RequestArguments, RequestRefused, listed


class Train(RequestArguments, frozen=True, kw_only=True):
    """Train the model of a family: with all of its devices, or with some."""

    kind: ClassVar = RequestKind.TRAINING

    family: str | None = None
    devices: Annotated[list[Name], Meta(min_length=1)] | None = None

    def __post_init__(self) -> None:
        """Refuse what names no family, or two ways to one."""
        if (self.family is None) == (self.devices is None):
            raise ValueError("expected family, or devices as a list that is not empty")

    def check(self, fleet: KnownFleet) -> dict[str, Any]:
        """See `RequestArguments.check`; the state keeps the family of devices too."""
        if not fleet.trains:
            raise RequestRefused(
                f"{self.kind}: this daemon trains no models; start it with daemon.refresh on"
            )
        if self.family is not None:
            if self.family not in fleet.families.values():
                families = listed(set(fleet.families.values()))
                raise RequestRefused(
                    f"{self.kind}: no device of family {self.family!r:.80}; there are: {families}"
                )
            return {"family": self.family}
        devices = self.devices or []
        super().check(fleet)
        families_named = {fleet.families[device] for device in devices}
        if len(families_named) > 1:
            raise RequestRefused(
                f"{self.kind}: a request is for one family, but these devices are of "
                f"{listed(families_named)}; send one for each"
            )
        return {"family": families_named.pop(), "devices": sorted(set(devices))}

    def places(self, fleet: KnownFleet) -> frozenset[str]:
        """Give all that the store may have records of, devices that left included."""
        return frozenset(fleet.families)

    def conflict(self, other: Request, fleet: KnownFleet) -> str:
        """See `RequestArguments.conflict`; a family has one model."""
        family = self.check(fleet)["family"]
        return f"asks for family {family}" if other.family == family and not other.is_own_training else ""
