"""What is behind `fleet up`: put the parts of the daemon together, run it until it is stopped, end in order.

Called by the command line. It decides nothing; the coordinator and what it calls do.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

import filelock
from rich.console import Console

from agents.files import write_durably
from agents.host.process_control import private_files
from agents.records import DeviceId, DeviceKind, DeviceSpec, Family
from fleet.api.client import ADDRESS
from fleet.config.device_files import unknown_device
from fleet.config.device_folder import DeviceFolder, retired_devices
from fleet.config.sections import window_secs
from fleet.core.events import DevicePolicy, TimeWindow
from fleet.core.words import Limits
from fleet.daemon.device_choice import DeviceChoice
from fleet.daemon.launch import launcher, raise_open_files, seldom_collected
from fleet.daemon.replay_files import REPLAY, delete_older
from fleet.engine.context import CoordinatorSettings, EngineContext, Launch
from fleet.engine.coordinator import Coordinator
from fleet.engine.fleet_clock import FleetClock
from fleet.engine.notices import Notices
from fleet.errors import FleetError, disk_errors
from fleet.models.registry_reader import RegistryReader
from fleet.models.shipped_model import has_shipped
from fleet.planner.candidate_ranker import CandidateRanker, uncertainty
from fleet.refresh.refresh_child import refresh_cores
from fleet.store.store import Store
from fleet.transport.transport import AgentTransport

if TYPE_CHECKING:
    from fleet.api.server import ApiServer
    from fleet.config.sections import FleetConfig, PolicySection

#: Longest wait for a message: so often the clock is looked at. Far below what one turn may add to it.
_TURN_SECS = 0.25
#: Longest wait for a message while a driver asks.
_DRIVEN_TURN_SECS = 0.02
#: How long agents may take to end; then they are ended.
_CLOSE_SECS = 20.0
#: Strategies that use the start of meta-learning of a version.
_META_LEARNT = ("auto", "maml")
LOCK, HOLDER = "daemon.lock", "daemon.pid"
#: Folder of the agents' spools, beside the store.
SPOOL = "spool"
#: File that says which store the folder belongs to, and folder of the drivers' requests.
STORE_NAME, DRIVERS = "store.path", "drivers"


@dataclass(frozen=True, slots=True, kw_only=True)
class UpOptions:
    """What the command line says beside the configuration."""

    #: Folder of the model versions.
    models: Path
    #: `host:port` of a Ray cluster to join; None starts a Ray of our own.
    address: str | None = None
    #: Stop after so many seconds; None runs until somebody stops it.
    for_secs: float | None = None
    #: Measure what is planned, then stop.
    once: bool = False


def run_daemon(
    settings: FleetConfig,
    options: UpOptions,
    console: Console,
    *,
    serve: Callable[[Coordinator, Path, tuple[int, ...]], ApiServer] | None = None,
) -> None:
    """Collect and refresh until SIGTERM, SIGINT, or the end that the options set.

    Args:
        settings: Devices, workloads, protocol, store, daemon.
        options: What the command line says.
        console: Where lines go.
        serve: Starts the API: gets the coordinator, of which other threads may use `view` and `desk`, the
            daemon's folder, and the cores on which work disturbs no timing.

    Raises:
        FleetError: Another daemon runs on the same folder, a device cannot be had, or the disk failed.
    """
    with stop_signals() as stopped, engine(settings, options, console) as parts:
        coordinator, devices, notices = parts
        cores = _quiet_cores(devices)
        api = serve(coordinator, Path(settings.daemon.root), cores) if serve is not None else None
        try:
            where = f", API {api.url}" if api is not None else ""
            count, store = len(devices.files.specs), settings.store.path
            notices.log(f"fleet is up: {count} devices{where}, store {store}")
            if api is not None:
                # Whoever reads a log must not get in: the link is for the terminal of whoever starts it.
                link = api.login_url if console.is_terminal else "run `fleet dashboard` for a link"
                notices.log(f"dashboard (a link is valid once, for 15 minutes): {link}")
            _run(coordinator, options, settings.daemon.stop_secs, lambda: bool(stopped), notices)
        finally:
            if api is not None:
                api.close()
    notices.log("fleet is down; the same command continues")


@contextmanager
def engine(
    settings: FleetConfig, options: UpOptions, console: Console | None, *, launch: Launch | None = None
) -> Iterator[tuple[Coordinator, DeviceChoice, Notices]]:
    """Put an engine together: the coordinator, its agents and its store, until the block ends.

    Args:
        settings: Devices, workloads, protocol, store, daemon.
        options: What the command line says.
        console: Where lines go.
        launch: Starts the drivers of requests; None starts each in a process of its own, and has the engine
            measure for the background beside them. Otherwise it measures for requests alone, and trains
            nothing.

    Raises:
        FleetError: Another engine runs on the same folder, a device cannot be had, or the disk failed.
    """
    root, is_embedded = Path(settings.daemon.root), launch is not None
    raise_open_files()
    devices = _devices(settings, options, follows=not is_embedded)  # before any folder is made
    with private_files(), _held(root, Path(settings.store.path)), seldom_collected():
        specs = devices.files.specs
        delete_older(specs.values(), Path(settings.store.path).parent / REPLAY)
        coordinator_settings = _coordinator_settings(settings, options, is_embedded=is_embedded)
        clock = FleetClock()
        notices = Notices(console, clock, clock.wall, is_quiet=is_embedded)
        if launch is None:
            cores = partial(_quiet_cores, devices)
            launch = launcher(root / DRIVERS, settings, options.models, cores)
        with Store.open(settings.store.path) as store, ExitStack() as files:
            with ExitStack() as parts:
                transport = _transport(settings, options, specs, clock, is_embedded=is_embedded)
                parts.callback(transport.close, _CLOSE_SECS)
                trains = coordinator_settings.limits.trains
                trainer = _trainer(settings, options, devices, clock) if trains else None
                if trainer is not None:
                    parts.callback(trainer.close)
                context = EngineContext(
                    root=root,
                    store=store,
                    transport=transport,
                    source=devices,
                    settings=coordinator_settings,
                    notices=notices,
                    trainer=trainer,
                    ranker=CandidateRanker(RegistryReader(options.models)),
                    uncertainty=partial(uncertainty, RegistryReader(options.models)),
                    clock=clock,
                    launch=launch,
                )
                coordinator = Coordinator(context)
                files.callback(coordinator.release)
                yield coordinator, devices, notices
            coordinator.close()


def _run(
    coordinator: Coordinator,
    options: UpOptions,
    stop_secs: float,
    is_stopped: Callable[[], bool],
    notices: Notices,
) -> None:
    """Turn until it is time to stop, then until what runs has ended."""
    ends_at = time.monotonic() + options.for_secs if options.for_secs is not None else float("inf")
    while not is_stopped() and time.monotonic() < ends_at:
        take_turn(coordinator)
        if options.once and coordinator.is_drained:
            break
    notices.log("stopping: no new batch begins; those that run are waited for")
    come_to_rest(coordinator, stop_secs)


def take_turn(coordinator: Coordinator) -> None:
    """Let a coordinator do one turn; short ones while the driver of a request waits for its answers."""
    coordinator.turn(_DRIVEN_TURN_SECS if coordinator.serves_requests else _TURN_SECS)


def come_to_rest(coordinator: Coordinator, stop_secs: float) -> None:
    """Begin nothing more, and wait for what runs, so long at most."""
    coordinator.stop()
    ends_at = time.monotonic() + stop_secs
    while not coordinator.is_quiet and time.monotonic() < ends_at:
        coordinator.turn(_TURN_SECS)


def _quiet_cores(devices: DeviceChoice) -> tuple[int, ...]:
    """Logical CPUs on which work disturbs no timing of the devices that there are now."""
    return refresh_cores(devices.files.specs.values())


def _devices(settings: FleetConfig, options: UpOptions, *, follows: bool) -> DeviceChoice:
    """Devices of this host, or those of a cluster, whose hosts must say themselves what they can be."""
    if options.address is not None and not settings.devices.ids:
        raise FleetError("a cluster's devices must be named: give --device or devices.ids beside --address")
    return DeviceChoice(settings, is_cluster=options.address is not None, follows=follows)


def _coordinator_settings(
    settings: FleetConfig, options: UpOptions, *, is_embedded: bool
) -> CoordinatorSettings:
    daemon, trains = settings.daemon, settings.daemon.refresh and not is_embedded
    if daemon.policies:
        # A policy may wait for a device that is not chosen this time, that left, or whose file is mended.
        folder = Path(settings.devices.folder)
        folder_content = DeviceFolder(folder).read()
        known_ids = {*folder_content.specs, *folder_content.faults, *retired_devices(folder)}
        unknown = [
            unknown_device(device_id, known_ids, folder)
            for device_id in sorted(set(daemon.policies) - known_ids)
        ]
        if unknown:
            raise FleetError("\n".join(f"daemon.policies: {error}" for error in unknown))
    arrival_samples = daemon.arrival_samples if trains else 0
    heads = arrival_samples > 0 and settings.onboarding.shipped
    return CoordinatorSettings(
        first_heads=frozenset(family.value for family in Family if heads and has_shipped(family)),
        protocol=settings.timing_protocol(),
        choice=settings.workloads,
        policy=_policy(daemon.policy),
        policies={DeviceId(device_id): _policy(section) for device_id, section in daemon.policies.items()},
        limits=Limits(
            lease_secs=daemon.lease_secs,
            stall_secs=daemon.stall_secs,
            quarantine_secs=daemon.quarantine_secs,
            training_records=daemon.training_records,
            training_share=daemon.training_share,
            reason_records=daemon.reason_records,
            training_pause_secs=daemon.training_pause_secs,
            arrival_samples=arrival_samples,
            return_samples=daemon.return_samples if trains else 0,
            fingerprints=arrival_samples > 0,
            # A command does its own request at once; what others asked for waits for the next daemon.
            drivers=0 if is_embedded else Limits().drivers,
            requests_only=is_embedded,
            trains=trains,
        ),
        noise=0 if is_embedded else settings.workloads.noise_samples,
        exploration=settings.workloads.exploration,
        seed=settings.training.seed,
        once=options.once,
        upkeep_secs=daemon.upkeep_secs,
        folders=None if is_embedded else _folders(settings),
    )


def _folders(settings: FleetConfig) -> tuple[Path, ...]:
    """Where requests over the API may read and write: not wherever this user may."""
    named = (Path(folder).expanduser() for folder in settings.daemon.folders)
    return (Path.cwd(), Path(settings.store.path).absolute().parent, *named)


def _policy(section: PolicySection) -> DevicePolicy:
    windows = [window_secs(window) for window in section.windows]
    return DevicePolicy(
        secs_per_hour=section.secs_per_hour or None,
        secs_per_day=section.secs_per_day or None,
        idle_only=section.idle_only,
        windows=tuple(TimeWindow(begin_secs=begin, end_secs=end) for begin, end in windows),
    )


def _transport(
    settings: FleetConfig,
    options: UpOptions,
    specs: Mapping[DeviceId, DeviceSpec],
    clock: FleetClock,
    *,
    is_embedded: bool,
) -> AgentTransport:
    protocol, daemon = settings.timing_protocol(), settings.daemon
    # The spools of `fleet collect`: a device has one, and what it waits to hand over is handed over here too.
    spool = Path(settings.store.path).parent / SPOOL
    is_local = all(spec.kind is DeviceKind.REPLAY for spec in specs.values())
    if is_embedded and is_local and options.address is None:
        from fleet.transport.local import LocalTransport

        # Nothing runs: they answer from this process as well as from one behind Ray.
        return LocalTransport(protocol=protocol, spool_root=spool)
    from fleet.transport.ray_transport import RayOptions, RayTransport

    return RayTransport(
        specs.values(),
        spool,
        protocol,
        RayOptions(
            address=options.address,
            is_idle_only=lambda device_id: daemon.policies.get(device_id, daemon.policy).idle_only,
            clock=clock,
        ),
    )


def _trainer(settings: FleetConfig, options: UpOptions, devices: DeviceChoice, clock: FleetClock) -> Any:
    from fleet.models.registry import Registry
    from fleet.refresh.refresher import Refresher, RefreshSettings

    return Refresher(
        Registry(options.models),
        Path(settings.store.path),
        Path(settings.daemon.root) / "refresh",
        RefreshSettings(
            model=settings.training.model,
            epochs=settings.training.epochs,
            seed=settings.training.seed,
            cores=partial(_quiet_cores, devices),
            shipped=settings.onboarding.shipped,
            deadline_secs=settings.daemon.training_deadline_secs,
            makes_starts=settings.daemon.arrival_samples > 0 and settings.onboarding.strategy in _META_LEARNT,
        ),
        clock,
        clock.wall,
    )


@contextmanager
def _held(root: Path, store: Path) -> Iterator[None]:
    """Be the one engine of a folder; the lock ends with this process, however it ends."""
    with disk_errors("making the daemon's folder", root):
        # Whoever may write to this folder could replace the API's token.
        root.mkdir(mode=0o755, parents=True, exist_ok=True)
    lock = filelock.FileLock(root / LOCK, timeout=0)
    try:
        lock.acquire()
    except filelock.Timeout as error:
        try:
            holder = f"process {int((root / HOLDER).read_text())}"
        except (OSError, ValueError):
            holder = "another process"
        raise FleetError(
            f"a daemon runs on {root} already: {holder}; `fleet status` shows it, and SIGTERM stops it. "
            "Another fleet needs another daemon.root and store.path"
        ) from error
    try:
        _claim(root, store)
        with disk_errors("writing the daemon's folder", root):
            (root / HOLDER).write_text(f"{os.getpid()}\n")
            # Of a daemon that was killed: nobody knows who listens there by now.
            (root / ADDRESS).unlink(missing_ok=True)
        yield
    finally:
        # A disk that became read-only may have ended the daemon; that error is the one to show.
        with suppress(OSError):
            (root / HOLDER).unlink(missing_ok=True)
        lock.release()


def _claim(root: Path, store: Path) -> None:
    """Keep a folder to one store: its event log speaks of the jobs and devices of that one.

    Raises:
        FleetError: It belongs to another.
    """
    mine, path = os.path.relpath(store, root), root / STORE_NAME
    with disk_errors("writing the daemon's folder", root):
        theirs = path.read_text().strip() if path.exists() else ""
        if theirs and theirs != mine:
            raise FleetError(
                f"{root} belongs to the store {os.path.normpath(root / theirs)}, not to {store}: give this "
                "store a folder of its own (daemon.root)"
            )
        if not theirs:  # once: a disk without room must not take away what it says
            write_durably(path, f"{mine}\n".encode())


@contextmanager
def stop_signals() -> Iterator[list[int]]:
    """Collect SIGTERM and SIGINT instead of ending; the second one ends the process at once.

    Outside of the main thread Python sets no handlers: the program that we are part of has its own.
    """
    received: list[int] = []
    if threading.current_thread() is not threading.main_thread():
        yield received
        return

    def ask(number: int, _frame: FrameType | None) -> None:
        received.append(number)
        signal.signal(number, signal.SIG_DFL)

    numbers = (signal.SIGTERM, signal.SIGINT)
    before = {number: signal.signal(number, ask) for number in numbers}
    try:
        yield received
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
