"""The main job in one command: measure, learn, onboard a new device, report honestly.

`fleet demo` calls `run_demo`. It reads top to bottom as the story that the project exists for; each step
is done by the module that owns it. After an interruption the same call continues: the measurements are in
the store, and the models are trained again from it, which takes seconds.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from rich.console import Console

from agents.host import cpu_features as isa
from agents.host.device_kinds import differences
from agents.host.probe import probe
from agents.programs.networks import NETWORKS
from agents.records import DeviceId, DeviceKind, DeviceSpec, Family, Protocol, Workload
from fleet.config.settings import FleetConfig, select_devices
from fleet.core.words import RequestKind
from fleet.daemon.daemon import SPOOL, UpOptions
from fleet.daemon.embedded import run_embedded
from fleet.drivers.session import EngineSession
from fleet.errors import FleetError
from fleet.models.promotion import DeviceDecision, Incumbent, judge
from fleet.models.registry import Registry
from fleet.models.shipped_model import ShippedHead, ShippedHeads
from fleet.models.standings import standing
from fleet.models.training import train_version
from fleet.models.versions import DatasetSnapshot, load_snapshot, train_config
from fleet.onboarding.adaptation import AUTO
from fleet.onboarding.fingerprint import measure_fingerprint
from fleet.onboarding.onboarding import onboard_device
from fleet.planner.collect import Collection
from fleet.planner.progress import TerminalDisplay
from fleet.planner.selection import choose_workloads
from fleet.planner.settings import Clock, CollectSettings
from fleet.store.store import Store
from transfer.arrays import Floats

if TYPE_CHECKING:
    from transfer.data.metrics import Metrics
    from transfer.evaluate.compare import Comparison
    from transfer.model.tlp_model import TlpModel

#: Devices of one run: three to learn from and a new one; more would not fit into ten minutes on two cores.
_DEVICES = 4
#: Smaller programs are timed mostly by their call; of larger ones a bad schedule takes seconds to run, and
#: an unrolled one seconds to compile.
_MIN_FLOPS, _MAX_FLOPS = 2e5, 2.5e7
#: A schedule that compiles for longer is seldom a fast one, and the demo has ten minutes.
_BUILD_TIMEOUT_SECS = 10.0
#: Candidates measured a second time on each device.
_REMEASURE = 30
_STORE, _MODELS, _ENGINE = "store", "models", "fleet"
#: Parts of the onboarding begin so.
ONBOARD = "onboard_"


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoSettings:
    """How large the demo is; see the options of `fleet demo`."""

    workloads: int
    #: Candidates of each workload, measured on every device.
    samples: int
    #: Candidates that the new device shows before it gets its head (k).
    support: int
    #: Parts of the workloads; each is held out once to judge the heads.
    folds: int
    #: Times that the judging is repeated with other samples and initial weights.
    repeats: int
    epochs: int
    seed: int


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class MeasuredDemo:
    """The records and the heads of the demo after its last measurement."""

    workloads: tuple[Workload, ...]
    #: Some of the new device's samples were measured by an earlier, interrupted run: this one did not see
    #: their time.
    resumed: bool
    #: Strategy that `auto` took for the new device.
    strategy: str
    model: TlpModel
    version: str


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class DemoRun:
    """Everything that the report is made of."""

    settings: DemoSettings
    protocol: Protocol
    sources: tuple[DeviceSpec, ...]
    target: DeviceSpec
    measured: MeasuredDemo
    snapshot: DatasetSnapshot
    #: Heads on held-out workloads (`transfer.evaluate.cross_validation.onboard`).
    held_out: Comparison
    #: Candidates of the new device that `full` learns from, mean over the folds, rounded.
    full_samples: int
    #: The shipped model's head of the new device, without a sample; None if none is shipped.
    shipped: Metrics | None
    #: Who serves the new device at the end; None if the warm start has no rival.
    decision: DeviceDecision | None
    #: Wall seconds by part; those of the onboarding begin with `ONBOARD`.
    parts: Mapping[str, float]
    wall_secs: float
    store: Path


def choose_devices(specs: Sequence[DeviceSpec]) -> tuple[tuple[DeviceSpec, ...], DeviceSpec]:
    """Pick the demo's devices of this host: the most capable profile is new, those below it are known.

    Raises:
        FleetError: The host can be fewer than two of the devices.
    """
    descriptor = probe()
    order = [level.name for level in isa.runnable_levels(descriptor.arch, descriptor.isa_flags)]

    def rank(spec: DeviceSpec) -> tuple[int, str]:
        return (order.index(spec.device_id) if spec.device_id in order else len(order), spec.device_id)

    local = [spec for spec in specs if spec.kind is DeviceKind.LOCAL and spec.family is Family.CPU]
    fitting = sorted((spec for spec in local if not differences(spec, descriptor)), key=rank)
    if len(fitting) < 2:
        names = ", ".join(spec.device_id for spec in fitting) or "none"
        raise FleetError(
            f"the demo needs two local CPU devices that this host can be, found {len(fitting)} ({names}); "
            "run `fleet init` to write the host's profiles, `fleet doctor` to see what is refused"
        )
    chosen = fitting[-_DEVICES:]
    return tuple(chosen[:-1]), chosen[-1]


def run_demo(config: FleetConfig, folder: Path, settings: DemoSettings, console: Console) -> DemoRun:
    """Run the whole job in `folder`, which gets store, models and the engine's folder.

    Raises:
        FleetError, AgentError, TransferError: A step failed; what was measured stays in the store.
    """
    clock, display = Clock(), TerminalDisplay(console)
    sources, target = choose_devices(list(select_devices(config).values()))
    names = [spec.device_id for spec in (*sources, target)]
    display.say(f"Known devices: {', '.join(names[:-1])}. New: {names[-1]}.")
    with clock.part("start"):
        fleet = _fleet(config, folder, settings, names)
    measured = run_embedded(
        fleet,
        RequestKind.COLLECTION,
        {"devices": names},
        UpOptions(models=folder / _MODELS),
        console,
        lambda engine: _measure(engine, fleet, sources, target, folder, settings, clock, display),
    )
    with clock.part("judge"):
        chosen = {workload.workload_id for workload in measured.workloads}
        snapshot = load_snapshot(Store.read(folder / _STORE), device_ids=names, workload_ids=chosen)
        held_out, warm, full_samples = _judge(
            snapshot, target.device_id, measured.strategy, settings, display
        )
        store, registry = Store.read(folder / _STORE), Registry(folder / _MODELS)
        heads = ShippedHeads(registry, store, enabled=config.onboarding.shipped)
        shipped = decision = None
        if (head := heads.head(target.device_id)) is not None:
            shipped, decision = _serve_better(heads, head, snapshot, warm)
    display.finish()
    return DemoRun(
        settings=settings,
        protocol=fleet.timing_protocol(),
        sources=sources,
        target=target,
        measured=measured,
        snapshot=snapshot,
        held_out=held_out,
        full_samples=full_samples,
        shipped=shipped,
        decision=decision,
        parts=clock.parts,
        wall_secs=clock.wall_secs,
        store=folder / _STORE,
    )


def _fleet(config: FleetConfig, folder: Path, settings: DemoSettings, names: list[DeviceId]) -> FleetConfig:
    """Settings of the demo's own engine."""
    values = config.with_devices(*names).model_dump()
    values["store"] = {"path": str(folder / _STORE)}
    values["daemon"]["root"] = str(folder / _ENGINE)
    values["protocol"]["build_timeout_secs"] = min(config.protocol.build_timeout_secs, _BUILD_TIMEOUT_SECS)
    values["training"] |= {"seed": settings.seed, "epochs": settings.epochs}
    # What the demo shows first is how a device learns from others; the shipped head is judged at the end.
    values["onboarding"] |= {"samples": settings.support, "strategy": AUTO, "shipped": False}
    return FleetConfig.model_validate(values)


def _measure(
    engine: EngineSession,
    fleet: FleetConfig,
    sources: Sequence[DeviceSpec],
    target: DeviceSpec,
    folder: Path,
    settings: DemoSettings,
    clock: Clock,
    display: TerminalDisplay,
) -> MeasuredDemo:
    """Measure the known devices, learn from them, give the new one a head, and measure the rest.

    Each step is what `fleet collect`, `fleet train` and `fleet onboard` do.
    """
    collect = CollectSettings(samples=settings.samples, seed=settings.seed, remeasure=_REMEASURE)
    models = folder / _MODELS
    source_ids = [spec.device_id for spec in sources]
    with display.live():
        with clock.part("start"):
            engine.ready(source_ids)
        source_collection = Collection(engine, {spec.device_id: spec for spec in sources}, collect, display)
        with clock.part("propose"):
            listed = source_collection.network_workloads(NETWORKS)
            workloads = choose_workloads(
                listed, count=settings.workloads, min_flops=_MIN_FLOPS, max_flops=_MAX_FLOPS
            )
            pools = source_collection.propose(workloads)[Family.CPU]
        with clock.part("measure"):
            source_collection.measure({Family.CPU: pools})
            for spec in sources:
                measure_fingerprint(engine, source_collection, spec)
        display.finish()

    display.say(f"Training on {len(sources)} devices.")
    with clock.part("train"):
        train_version(fleet, models, source_ids)

    with clock.part(f"{ONBOARD}probe"):
        engine.ready([target.device_id])
    resumed = target.device_id in engine.store().device_ids
    onboarded = onboard_device(engine, fleet, target, models, display)
    for part, secs in onboarded["seconds"].items():
        clock.parts[f"{ONBOARD}{part}"] = secs
    if resumed:
        # The seconds of building and timing candidates, one after the other.
        clock.parts[f"{ONBOARD}measure"] = sum(
            record.build_secs + record.timing_secs
            for record in engine.store().records(device_id=target.device_id)
            if record.attempt == 0
        )
    version = onboarded["served_by"]
    strategy = str(onboarded["taken"])
    display.say(f"Model {version} serves {target.device_id} ({strategy}). Measuring the rest to check it.")
    new = Collection(engine, {target.device_id: target}, collect, display)
    with display.live():
        with clock.part("measure"):
            new.measure({Family.CPU: pools})
        with clock.part("remeasure"):
            source_collection.remeasure(workloads)
            new.remeasure(workloads)
        display.finish()
    # Torch takes seconds to import, and nothing before the first training needs it.
    from transfer.features.extractor import DEFAULT_SPEC
    from transfer.model import checkpoint

    return MeasuredDemo(
        workloads=tuple(workloads),
        resumed=resumed,
        strategy=strategy,
        model=checkpoint.load(models / version, DEFAULT_SPEC)[0],
        version=version,
    )


def _serve_better(
    heads: ShippedHeads, head: ShippedHead, snapshot: DatasetSnapshot, warm: Floats
) -> tuple[Metrics | None, DeviceDecision]:
    """Judge the warm start by the rule of all heads, and let the shipped head serve until it is as good.

    Both are judged on the workloads that the shipped model never saw, which are all but a few. `warm` are the
    scores of the warm start on held-out candidates, (N,). Gives the figures of the shipped head, too.
    """
    from transfer.evaluate.rankers import judge as measures

    device_id, dataset = DeviceId(head.adapted.device_id), snapshot.dataset
    trained_workloads = head.shipped.trained_workloads
    rows = np.flatnonzero(
        [dataset.workload_ids[group] not in trained_workloads for group in dataset.group.tolist()]
    )
    latency = dataset.latency_secs[rows, dataset.column(device_id)]
    scores = head.adapted.score_unseen(dataset.features.take(rows))
    mine, theirs = (standing(said, latency, dataset.group[rows], 0.0) for said in (warm[rows], scores))
    champion = heads.registry.champions()[device_id]
    rival = Incumbent(name="the shipped head", standing=theirs)
    decision = judge(device_id, mine, [rival], served_by=rival.name)
    if not decision.moves_on:
        heads.serve(head, {"reason": decision.reason, "instead_of": champion.version})
    return measures(dataset, device_id, rows, scores), decision


def start_over(folder: Path) -> None:
    """Delete what an earlier demo left in `folder`; other files there stay.

    Raises:
        FleetError: Something cannot be deleted.
    """
    for name in (_STORE, SPOOL, _MODELS, _ENGINE, "report.json", "report.html"):
        path = folder / name
        try:
            if path.is_dir():
                shutil.rmtree(path)
            else:
                path.unlink(missing_ok=True)
        except OSError as error:
            raise FleetError(f"cannot delete {path}: {error.strerror}; delete it by hand") from error


def _judge(
    snapshot: DatasetSnapshot,
    target: DeviceId,
    strategy: str,
    settings: DemoSettings,
    display: TerminalDisplay,
) -> tuple[Comparison, Floats, int]:
    """Onboard a device once per fold, each time judged on workloads that neither it nor its sources saw.

    All of it is done again with other samples and initial weights.

    Returns:
        The comparison; (N,) scores of the warm start, each by a head that did not see the workload; and how
        many candidates of the device `full` learns from.
    """
    from transfer.adapt.guard import strategies
    from transfer.data.splits import workload_folds
    from transfer.evaluate.compare import FitScores, Fold, judge_fits
    from transfer.evaluate.cross_validation import OnboardingPlan, onboard
    from transfer.processes import run_each, workers_for

    dataset = snapshot.dataset
    plan = OnboardingPlan(
        target=target,
        samples=settings.support,
        config=train_config(settings.epochs),
        strategy=strategies()[strategy],
    )
    splits = workload_folds(dataset, snapshot.workloads, settings.folds, settings.seed)
    # A fold uses its seed and its place: no two have the same sum.
    folds = [
        Fold(split=split, seed=settings.seed + repeat * settings.folds, place=place)
        for repeat in range(settings.repeats)
        for place, split in enumerate(splits)
    ]
    display.phase("learn", len(folds))
    workers = workers_for(len(dataset), 4 * len(folds) * settings.epochs)
    scores: list[FitScores] = []
    run = partial(onboard, dataset=dataset, plan=plan)
    for said in run_each(run, folds, workers, of="the cross-validation", pieces="folds"):
        display.step(1, folds[len(scores)].split.name)
        scores.append(said)
    warm = np.full(len(dataset), np.nan)
    for split, (by_head, _) in zip(splits, scores, strict=False):
        warm[split.test] = by_head["warm", target]
    measured = dataset.rows_of(target)
    full_samples = round(float(np.mean([np.isin(measured, split.train).sum() for split in splits])))
    return judge_fits(folds, scores, dataset), warm, full_samples
