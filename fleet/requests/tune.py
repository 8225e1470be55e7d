"""A search for fast programs of networks on one device."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

from msgspec import Meta, field

from agents.records import DeviceId
from fleet.core.words import RequestKind
from fleet.requests.request_kind import Count, Flag, Name, Networks, RequestArguments, Seed

if TYPE_CHECKING:
    from fleet.drivers.session import EngineSession
    from fleet.planner.settings import Display
    from fleet.requests.work import Work


class Tune(RequestArguments, frozen=True, kw_only=True):
    """Make a network faster on one device: search fast programs; write library, database and report.

    A model ranks random candidates, so that only promising ones are measured. All measurements go into the
    store. Each run measures --trials new candidates, and starts from the best programs of earlier runs.
    If a daemon writes the store, it does the work, and this command follows it.

    Example: fleet tune x86-64-v4 nets/mine.pt2 --trials 200
    """

    kind: ClassVar = RequestKind.TUNING

    device: Annotated[Name, Flag("DEVICE"), Meta(description="Id of the device to tune for.")]
    networks: Networks = None
    workloads: Annotated[
        list[Name],
        Flag("--workload"),
        Meta(description="Tune only this workload of the network; may be given again."),
    ] = field(default_factory=list)
    trials: Annotated[Count, Flag("--trials"), Meta(description="Candidates to measure in this run.")] = 256
    out: Annotated[
        Annotated[str, Meta(min_length=1, max_length=4000)] | None,
        Flag("--out", is_path=True),
        Meta(description="Folder for database, library and report (runs/tuned/DEVICE)."),
    ] = None
    seed: Seed = None

    @property
    def host_paths(self) -> list[Path]:
        """See `RequestArguments.host_paths`."""
        return [*super().host_paths, *([Path(self.out)] if self.out else [])]

    def perform(self, work: Work, session: EngineSession, display: Display) -> dict[str, Any]:
        """See `RequestArguments.perform`; gives seconds of each network before and after, and the folder."""
        from fleet.tuning.tuning import TuneOptions, tune_device

        specs = self.wait_for_devices(session, display)
        options = TuneOptions(
            trials=self.trials,
            workloads=tuple(self.workloads),
            models=work.models,
            out=Path(self.out or f"runs/tuned/{self.device}"),
            minutes=work.minutes,
        )
        return tune_device(
            session, self.settings(work.settings), specs[DeviceId(self.device)], options, display
        )
