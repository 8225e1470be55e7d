"""An evaluation: how well models rank candidates that they never saw; nothing is measured."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from msgspec import Meta, field

from fleet.core.words import RequestKind
from fleet.requests.request_kind import Epochs, Flag, KnownFleet, Name, RequestArguments, Seed, Setting

if TYPE_CHECKING:
    from fleet.drivers.session import EngineSession
    from fleet.planner.settings import Display
    from fleet.requests.work import Work


class Evaluate(RequestArguments, frozen=True, kw_only=True):
    """Evaluate how well the heads rank candidates that they never saw.

    Trains on a part of the store and judges on the rest, several times, so that every workload (or network,
    or device) is held out once. The table also has a random choice and, if candidates were measured twice,
    the best possible score. If a daemon writes the store, it does the work; with --set, or other models than
    the daemon's, it is done here.

    Example: fleet eval --split by-network --seeds 1
    """

    kind: ClassVar = RequestKind.EVALUATION
    needs_engine: ClassVar = False
    is_reader: ClassVar = True

    devices: Annotated[
        list[Name], Flag("--device"), Meta(description="Device id; may be given again (all of the store).")
    ] = field(default_factory=list)
    #: With a version, candidates are judged that were measured after it was trained.
    version: Annotated[
        Annotated[str, Meta(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,99}$")] | None,
        Flag("--model"),
        Meta(description="Judge a stored version (or: latest) on newer records."),
    ] = None
    #: The values of `transfer.data.splits.SplitKind`.
    split: Annotated[
        Literal["by-workload", "within-workload", "by-network", "by-device"],
        Flag("--split"),
        Meta(description="In what the judged candidates are new."),
    ] = "by-workload"
    seeds: Annotated[
        int, Flag("--seeds"), Meta(ge=1, le=100, description="Runs, each with other splits and weights.")
    ] = 3
    epochs: Epochs = None
    folds: Annotated[
        Annotated[int, Meta(ge=2, le=100)] | None,
        Flag("--folds"),
        Setting("training.folds"),
        Meta(description="Parts of the workloads at most (training.folds)."),
    ] = None
    seed: Seed = None

    def __post_init__(self) -> None:
        """Refuse what contradicts itself."""
        unused = sorted(self.values().keys() & {"split", "seeds", "epochs", "folds"})
        if self.version is not None and unused:
            raise ValueError(f"version judges a model that is there: leave out {', '.join(unused)}")

    @property
    def needs_models(self) -> bool:
        """See `RequestArguments.needs_models`."""
        return self.version is not None

    def places(self, fleet: KnownFleet) -> frozenset[str]:
        """Give all that the store may have records of, devices that left included."""
        return frozenset(fleet.families)

    def perform(self, work: Work, session: EngineSession, display: Display) -> dict[str, Any]:
        """See `RequestArguments.perform`; gives all of a `fleet.models.evaluation.Evaluation`."""
        session.store()  # what waits for the table is in it after this
        return self.perform_alone(work, display)

    def perform_alone(self, work: Work, display: Display) -> dict[str, Any]:
        """See `RequestArguments.perform_alone`.

        Raises:
            FleetError: There is no such version or head.
            TransferError: There is too little to learn from or to judge.
        """
        from fleet.models.evaluation import evaluate_model, evaluate_store
        from transfer.evaluate.compare import Finished

        def show(finished: Finished) -> None:
            if finished.done == 1:
                display.phase("learn", finished.total)
            display.step(1, f"{finished.ranker}, {finished.split}")

        settings = self.settings(work.settings)
        with display.live():
            if self.version is not None:
                comparison, about = evaluate_model(settings, work.models, self.version, self.devices, show)
            else:
                comparison, about = evaluate_store(
                    settings,
                    self.devices,
                    split=self.split,
                    seeds=self.seeds,
                    on_progress=show,
                )
            display.finish()
        return about | comparison.as_json()
