"""`fleet tune`: fast programs for the workloads of a network on one device.

Each round evolves candidates of one workload, scored by the device's champion and by what the search has
learnt (`rounds.py`), and measures a few. All of it goes into the store like any measurement, so a search is
never lost, goes on where it was, and feeds the next training. The best of each workload ends in a
MetaSchedule database that TVM applies, in libraries of whole networks, and in a report.
"""

from __future__ import annotations

import math
import shlex
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from agents.networks.network_name import read_network_name
from agents.records import CONFIRM, Candidate, DeviceId, DeviceSpec, Record, Workload, canonical_json
from fleet.drivers.session import EngineSession
from fleet.errors import FleetError
from fleet.json_types import Json, JsonDict
from fleet.models.registry_reader import RegistryReader
from fleet.onboarding.day_zero import serve_at_once
from fleet.planner.candidate_ranker import CandidateRanker
from fleet.planner.collect import Collection
from fleet.planner.settings import CollectSettings, Display
from fleet.planner.time_spent import Clock
from fleet.store.reader import StoreReader
from fleet.tuning.database import present_database, update_database
from fleet.tuning.delivery import check_all, deliver_all, labels_of
from fleet.tuning.report import report_search
from fleet.tuning.rounds import Rounds
from fleet.tuning.search import ROUND, USED_UP, Search, expected_trials

if TYPE_CHECKING:
    from fleet.config.settings import FleetConfig

#: Share of a search's time that its end may take to time the fastest programs again, and turns of a workload.
_SETTLING, _TURNS = 0.1, 6


@dataclass(frozen=True, slots=True, kw_only=True)
class TuneOptions:
    """What a search is told besides the settings."""

    #: Candidates to measure.
    trials: int
    #: Names of workloads, as `fleet tune` prints them; empty means all of the networks.
    workloads: tuple[str, ...] = ()
    #: Folder of the model versions.
    models: Path
    #: Folder of the device's database, libraries and report; what was better before stays.
    out: Path
    #: Minutes after which no round begins; None for no limit.
    minutes: float | None = None


@dataclass(slots=True)
class _Round:
    """A watcher that keeps the records of a round and lets a display show the whole search."""

    display: Display
    records: list[Record] = field(default_factory=list)

    def phase(self, name: str, total: int) -> None:
        """The search has one phase."""

    def proposed(self, workload: Workload, candidates: int) -> None:
        """Drawing is a part of the round."""

    def refused(self, workload: Workload, reasons: Mapping[str, int]) -> None:
        """A search derives nothing from imported candidates."""

    def stored(self, device_id: DeviceId, records: Sequence[Record]) -> None:
        """Records are durable."""
        self.records += records
        self.display.stored(device_id, records)


def tune_device(
    engine: EngineSession, settings: FleetConfig, spec: DeviceSpec, options: TuneOptions, display: Display
) -> JsonDict:
    """Search fast programs and write the database; the driver of a tuning request.

    Args:
        engine: Draws, measures and stores; the device is ready.
        settings: Store, networks, seed. Bounds of FLOPs choose what to collect: a network that is
            tuned runs all of its programs, small ones without a schedule for longer than large ones with one.
        spec: The device.
        options: How much to measure, and where the database goes.
        display: Shows progress.

    Returns:
        What `fleet tune --json` prints: `device`, `model` (version that ranked; None without one), `trials`,
        `failed`, `ended` (`trials`, `minutes`, `nothing left to gain`, or that all candidates are measured),
        `networks` (seconds of each network's tuned workloads before and after, where all of them
        ran), `workloads` (each with `before_secs`, `best_secs`, `trials`, `curve`), `whole_networks` (of
        those that are graphs, see `fleet.tuning.delivery`), `seconds` by part, `database`, `report`.

    Raises:
        FleetError: An unknown workload, nothing ran, or the folder holds the database of another target.
        NetworkRefusedError: A network has no library with the right output; nothing was measured.
    """
    target, labels = spec.device_id, labels_of(settings.workloads.networks)
    present_database(options.out, canonical_json(spec.target))
    clock = Clock()
    with tempfile.TemporaryDirectory(prefix="tensor-fleet-untuned-") as folder:
        untuned: dict[str, Path] = {}
        if any(read_network_name(text).is_graph for text in labels):
            display.say("compiling the network without schedules, and comparing its output")
            with clock.part("check"):
                untuned = check_all(list(labels), engine.store().devices()[target], Path(folder))
        result = _search(engine, settings, spec, options, display, clock)
        return result | conclude(result, engine.store(), labels, options.out, clock, display, untuned)


def _search(
    engine: EngineSession,
    settings: FleetConfig,
    spec: DeviceSpec,
    options: TuneOptions,
    display: Display,
    clock: Clock,
) -> JsonDict:
    """Search the workloads; what `tune_device` returns but for what `conclude` adds."""
    target, labels = spec.device_id, labels_of(settings.workloads.networks)
    watcher = _Round(display)
    ends_at = time.monotonic() + 60 * options.minutes if options.minutes is not None else math.inf
    with display.live():
        how = CollectSettings(samples=ROUND, seed=settings.training.seed)
        collection = Collection(engine, {target: spec}, how, watcher)
        with clock.part("probe"):
            listed = collection.network_workloads(settings.workloads.networks)
            workloads = choose_searched(listed, options.workloads, settings.workloads.networks)
        with clock.part("first_head"):
            serve_at_once(engine, settings, spec, options.models)
        ranker = CandidateRanker(RegistryReader(options.models))
        rounds = Rounds(engine, target, workloads, ranker, clock, settings.training.seed)
        with clock.part("read"):
            environment_id = engine.environment_id(target)
            rounds.read(environment_id)
        display.phase("tune", options.trials)
        remaining, began_at = options.trials, time.monotonic()
        while not (ended := _why_end(remaining, rounds, ends_at)):
            now = time.monotonic()
            expected = expected_trials(remaining, options.trials - remaining, now - began_at, ends_at - now)
            search, candidates, version = rounds.draw(remaining, expected)
            if not candidates:
                continue
            remaining -= len(candidates)
            watcher.records.clear()
            with clock.part("measure"):
                pool = {spec.family: {search.workload.workload_id: candidates}}
                collection.measure(pool, version)
            mine = [r for r in watcher.records if r.workload_id == search.workload.workload_id]
            rounds.learn(search, candidates, mine)
            with clock.part("confirm"):
                _confirm(engine, target, search)
        display.finish()
        # A leader of one round may be timed again in a later one, and beside another workload.
        for search, records in rounds.measured(engine.store(), environment_id):
            search.see(records)
        if rounds.is_live:
            with clock.part("confirm"):
                _settle(engine, target, rounds.searches, _SETTLING * (time.monotonic() - began_at))
    searches = rounds.searches
    if not any(math.isfinite(search.best_secs) for search in searches):
        why = f"the search ended before a candidate was measured ({ended}); give it more time"
        if failed := sum(search.failed for search in searches):
            store = settings.store.path
            why = f"none of {failed} candidates ran; `fleet status --store {store}` shows their outcomes"
        raise FleetError(f"device {target}, {len(searches)} workloads: {why}")
    return {
        "device": target,
        "model": rounds.version or None,
        "why_no_model": rounds.why_no_model,
        "trials": sum(search.tried for search in searches),
        "ended": ended,
        "noise_floor": rounds.noise_floor,
        "failed": sum(search.failed for search in searches),
        "networks": network_seconds(searches, list(labels.values())),
        "workloads": [_workload_row(search) for search in searches],
    }


def conclude(
    result: Json,
    store: StoreReader,
    labels: Mapping[str, str],
    out: Path,
    clock: Clock,
    display: Display,
    untuned: Mapping[str, Path],
) -> JsonDict:
    """Write what a search leaves; `untuned` are the libraries of `fleet.tuning.delivery.check_all`.

    Returns:
        `whole_networks` (see `fleet.tuning.delivery`), `seconds` by part, and the paths `database` and
        `report`.

    Raises:
        FleetError: The folder holds what is not to be replaced, or nothing ran.
    """
    device_id = DeviceId(result["device"])
    with clock.part("export"):
        database = update_database(store, device_id, out)
    if any(read_network_name(name).is_graph for name in labels):
        display.say(
            "compiling the network with its schedules, and timing it together with other ways to run it"
        )
    with clock.part("compile"):
        whole = deliver_all(labels, store.devices()[device_id], database.best_traces(), out, untuned)
    conclusion = {"whole_networks": whole, "seconds": clock.parts, "database": str(out)}
    networks = " ".join(f"--network {shlex.quote(name)}" for name in labels)
    again = (
        f"fleet tune {shlex.quote(device_id)} {networks} --trials {max(1, result['trials'])} "
        f"--out {shlex.quote(str(out))}"
    )
    page = report_search({**result, **conclusion}, out, time.time(), again)
    return {**conclusion, "report": str(page)}


def _why_end(remaining: int, rounds: Rounds, ends_at: float) -> str:
    """Why the search ends; empty where it goes on."""
    if not remaining:
        return "trials"
    if time.monotonic() >= ends_at:
        return "minutes"
    if rounds.open:
        return ""
    worth = {search.ended for search in rounds.searches}
    return "nothing left to gain" if worth - {USED_UP} else USED_UP


def _confirm(engine: EngineSession, device_id: DeviceId, search: Search) -> None:
    """Time a doubtful leader once more, alone: the median of three counts then."""
    doubt = search.doubtful()
    if doubt is not None:
        trace, attempt = doubt
        _time_again(engine, device_id, search, [trace], attempt)


def _settle(engine: EngineSession, device_id: DeviceId, searches: Sequence[Search], secs: float) -> None:
    """Time programs that may be the fastest again, some of a workload in turn, until the leaders are settled.

    Args:
        engine: Measures.
        device_id: The device.
        searches: Of workloads; those that take most of the networks' time come first.
        secs: After these no further turn begins.
    """
    ends_at = time.monotonic() + secs
    ran = [search for search in searches if math.isfinite(search.best_secs)]
    for search in sorted(ran, key=lambda search: -search.workload.weight * search.best_secs):
        for _ in range(_TURNS):
            traces, attempt = search.contenders()
            if not traces or time.monotonic() >= ends_at:
                break
            _time_again(engine, device_id, search, traces, attempt)


def _time_again(
    engine: EngineSession, device_id: DeviceId, search: Search, traces: Sequence[str], attempt: int
) -> None:
    workload_id = search.workload.workload_id
    again = [Candidate(workload_id=workload_id, trace=trace, origin=CONFIRM) for trace in traces]
    search.see(engine.measure(device_id, again, attempt=attempt).result())


def network_seconds(searches: Sequence[Search], networks: Sequence[str]) -> dict[str, dict[str, float]]:
    """Seconds that the tuned workloads of each network take in one run of it, before and after.

    A network of which a workload never ran is left out, and `before_secs` where one had no record.
    """
    seconds_by_network: dict[str, dict[str, float]] = {}
    for network in networks:
        uses = [
            (search, count)
            for search in searches
            for name, count in search.workload.networks
            if name == network
        ]
        best = sum(search.best_secs * count for search, count in uses)
        before = sum(search.before_secs * count for search, count in uses)
        if uses and math.isfinite(best):
            seconds_by_network[network] = {"best_secs": best}
            if math.isfinite(before):
                seconds_by_network[network]["before_secs"] = before
    return seconds_by_network


def choose_searched(
    listed: Sequence[Workload], names: Sequence[str], networks: Sequence[str]
) -> list[Workload]:
    """Choose the workloads to search: those named, or all.

    Raises:
        FleetError: There is none of a name.
    """
    if not names:
        return list(listed)
    workload_by_name = {workload.name: workload for workload in listed}
    missing = [name for name in names if name not in workload_by_name]
    if missing:
        all_names = ", ".join(sorted(workload_by_name))
        raise FleetError(f"no workload {missing[0]!r} in {', '.join(networks)}; known: {all_names}")
    return [workload_by_name[name] for name in dict.fromkeys(names)]


def _workload_row(search: Search) -> JsonDict:
    ran = math.isfinite(search.best_secs)
    return {
        "name": search.workload.name,
        "weight": search.workload.weight,
        "flops": search.workload.flops,
        "before_secs": search.before_secs if math.isfinite(search.before_secs) else None,
        "best_secs": search.best_secs if ran else None,
        "gflops_per_s": search.workload.flops / search.best_secs / 1e9 if ran else None,
        "trials": search.tried,
        "failed": search.failed,
        "may_gain": search.may_gain,
        "ended": search.ended or None,
        "curve": [[tried, best if math.isfinite(best) else None] for tried, best in search.curve],
    }
