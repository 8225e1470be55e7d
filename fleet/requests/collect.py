"""A collection: candidates of workloads, the same on each of some devices."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, ClassVar

from msgspec import Meta

from fleet.core.words import RequestKind
from fleet.requests.request_kind import Count, CountOrNone, Flag, ManyDevices, Networks, Seed, Setting

if TYPE_CHECKING:
    from fleet.drivers.session import EngineSession
    from fleet.planner.settings import Display
    from fleet.requests.work import Work


class Collect(ManyDevices, frozen=True, kw_only=True):
    """Measure the same candidates on each device of this host or a cluster, and store the results.

    Candidates of the store are not measured again. Workloads that take more of their networks' time get more
    candidates; some are random, some evolve from the best measured ones. Once a day it measures a few
    candidates twice, to find the device's noise floor. At the end it reports how the time was spent.
    If a daemon writes the store, it does the work, and this command follows it.

    Example: fleet collect --device x86-64-v3 --workloads 20 --samples 32
    """

    kind: ClassVar = RequestKind.COLLECTION

    networks: Networks = None
    workloads: Annotated[
        Count | None,
        Flag("--workloads"),
        Setting("workloads.count"),
        Meta(description="Number of workloads (workloads.count)."),
    ] = None
    samples: Annotated[
        Count | None,
        Flag("--samples"),
        Setting("workloads.samples"),
        Meta(description="Candidates per workload (workloads.samples)."),
    ] = None
    remeasure: Annotated[
        CountOrNone, Flag("--remeasure"), Meta(description="Candidates per device to measure again.")
    ] = 0
    noise: Annotated[
        Count | None,
        Flag("--noise"),
        Meta(description="Only measure this many known candidates twice (A/A run)."),
    ] = None
    seed: Seed = None

    def __post_init__(self) -> None:
        """Refuse what contradicts itself."""
        super().__post_init__()
        if self.noise is not None and self.remeasure:
            raise ValueError("noise makes an A/A run and nothing else: leave out remeasure")

    def perform(self, work: Work, session: EngineSession, display: Display) -> dict[str, Any]:
        """See `RequestArguments.perform`; gives the seconds of each device by part."""
        from fleet.planner.collect import collect_records

        return collect_records(
            session,
            self.settings(work.settings),
            self.wait_for_devices(session, display),
            display,
            remeasure=self.remeasure,
            noise=self.noise,
            minutes=work.minutes,
        )
