"""An onboarding: a head for a device from few measured candidates."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, ClassVar

from msgspec import Meta

from agents.records import DeviceId
from fleet.config.choices import Selector, Strategy
from fleet.core.words import RequestKind
from fleet.requests.request_kind import CountOrNone, Epochs, Flag, Name, RequestArguments, Seed, Setting

if TYPE_CHECKING:
    from fleet.drivers.session import EngineSession
    from fleet.planner.settings import Display
    from fleet.requests.work import Work


class Onboard(RequestArguments, frozen=True, kw_only=True):
    """Make a head for a new device from a few measured candidates, and report its expected quality.

    It measures candidates that other devices of the store measured, and starts from a model of these devices.
    Without such a model it starts from the model that comes with the program. With a larger --samples later,
    it uses the earlier samples too. If a daemon writes the store, it does the work; this command follows it.

    Example: fleet onboard x86-64-v4 --samples 64
    """

    kind: ClassVar = RequestKind.ONBOARDING

    device: Annotated[Name, Flag("DEVICE"), Meta(description="Id of the new device; its file must exist.")]
    samples: Annotated[
        CountOrNone | None,
        Flag("--samples"),
        Setting("onboarding.samples"),
        Meta(description="Candidates to measure at most, earlier ones included (onboarding.samples)."),
    ] = None
    strategy: Annotated[
        Strategy | None,
        Flag("--strategy"),
        Setting("onboarding.strategy"),
        Meta(description="How the head is made (onboarding.strategy)."),
    ] = None
    selector: Annotated[
        Selector | None,
        Flag("--selector"),
        Setting("onboarding.selector"),
        Meta(description="How candidates are chosen (onboarding.selector)."),
    ] = None
    epochs: Epochs = None
    seed: Seed = None
    #: Unix seconds at which the device drifted: what it measured before is a source, no sample. If its
    #: reference programs run as before, its head stays.
    since: Annotated[float, Meta(gt=0)] | None = None

    def check_work(self, work: Work) -> None:
        """See `RequestArguments.check_work`; there must be a model of the family to start from."""
        from fleet.onboarding.day_zero import check_onboarding

        if self.since is None:
            check_onboarding(self.settings(work.settings), DeviceId(self.device), work.models)

    def perform(self, work: Work, session: EngineSession, display: Display) -> dict[str, Any]:
        """See `RequestArguments.perform`; gives what `fleet.onboarding.onboarding.onboard_device` does."""
        from fleet.onboarding.onboarding import onboard_device

        self.check_work(work)
        device_id = DeviceId(self.device)
        specs = self.wait_for_devices(session, display)
        if self.since is not None:
            session.part(device_id, self.since)
        return onboard_device(
            session,
            self.settings(work.settings),
            specs[device_id],
            work.models,
            display,
            has_drifted=self.since is not None,
        )
