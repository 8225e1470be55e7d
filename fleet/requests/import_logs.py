"""An import of measurement logs of other tools; nothing is measured."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

from msgspec import Meta

from fleet.core.words import Request, RequestKind
from fleet.requests.request_kind import Flag, KnownFleet, Name, RequestArguments

if TYPE_CHECKING:
    from fleet.config.settings import FleetConfig
    from fleet.drivers.session import EngineSession
    from fleet.interchange.import_logs import ImportRequest
    from fleet.planner.settings import Display
    from fleet.requests.work import Work


class ImportLogs(RequestArguments, frozen=True, kw_only=True):
    """Import measurement logs of other tuners as records of one device.

    Failed measurements become records with their outcome; other lines are skipped and counted by reason.
    After an interruption, the same command continues; the same line is never imported twice.

    Example: fleet import logs/board-7 --device board-7
    """

    kind: ClassVar = RequestKind.IMPORT
    needs_engine: ClassVar = False
    uses_models: ClassVar = False

    paths: Annotated[
        list[Annotated[str, Meta(pattern="^/", max_length=4000)]],
        Flag("PATHS", is_path=True),
        Meta(min_length=1, description="Log files, plain or gz, or folders of them."),
    ]
    device: Annotated[
        Name, Flag("--device"), Meta(description="Device that measured them; created if it is new.")
    ]
    dialect: Annotated[
        Name, Flag("--dialect"), Meta(description="auto (each line), ansor, autotvm, meta_schedule or knobs.")
    ] = "auto"
    network: Annotated[
        str,
        Flag("--network"),
        Meta(
            max_length=200,
            description="Network of all workloads (default: from the path DEVICE/NETWORK/TUNER).",
        ),
    ] = ""
    again: Annotated[
        bool, Flag("--again"), Meta(description="Read files again that were imported before.")
    ] = False

    def __post_init__(self) -> None:
        """Refuse a dialect that nobody reads."""
        from fleet.interchange.line_reader import DIALECTS

        if self.dialect not in DIALECTS:
            raise ValueError(f"dialect: expected {', '.join(DIALECTS)}, got {self.dialect!r:.80}")

    @property
    def host_paths(self) -> list[Path]:
        """See `RequestArguments.host_paths`."""
        return list(map(Path, self.paths))

    def check_files(self, settings: FleetConfig) -> None:
        """See `RequestArguments.check_files`."""
        from fleet.interchange.import_logs import check_request

        check_request(self._request(settings))

    def check(self, fleet: KnownFleet) -> dict[str, Any]:
        """Pass: its device need not be one of the fleet, and its driver looks at the files."""
        return self.values()

    def conflict(self, other: Request, fleet: KnownFleet) -> str:
        """See `RequestArguments.conflict`."""
        return f"reads logs of {self.device}" if other.arguments["device"] == self.device else ""

    def perform(self, work: Work, session: EngineSession, display: Display) -> dict[str, Any]:
        """See `RequestArguments.perform`; gives `fleet.interchange.import_report.ImportReport.to_json`."""
        from fleet.drivers.store_proxy import StoreProxy
        from fleet.interchange.import_logs import import_logs
        from fleet.planner.progress import kilobytes

        assert work.folder is not None
        store = StoreProxy(session, work.folder)
        report = import_logs(store, self._request(work.settings), kilobytes(display))
        display.finish()
        store.finish()
        return report.to_json()

    def perform_alone(self, work: Work, display: Display) -> dict[str, Any]:
        """See `RequestArguments.perform_alone`."""
        from fleet.interchange.import_logs import import_logs
        from fleet.planner.progress import kilobytes
        from fleet.store.store import Store, records_or_nothing

        path = Path(work.settings.store.path)
        with records_or_nothing(path), Store.open(path) as store, display.live():
            report = import_logs(store, self._request(work.settings), kilobytes(display))
            display.finish()
        return report.to_json()

    def _request(self, settings: FleetConfig) -> ImportRequest:
        from fleet.interchange.import_logs import ImportRequest

        return ImportRequest(
            paths=tuple(map(Path, self.paths)),
            device_id=self.device,
            dialect=self.dialect,
            network=self.network,
            devices_folder=Path(settings.devices.folder),
            again=self.again,
        )
