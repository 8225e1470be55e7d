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
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from agents.networks.network_name import read_network_name
from agents.records import (
    CONFIRM,
    Candidate,
    DeviceId,
    DeviceSpec,
    Record,
    Workload,
    WorkloadId,
    canonical_json,
)
from fleet.drivers.session import EngineSession
from fleet.errors import FleetError
from fleet.json_types import Json, JsonDict
from fleet.onboarding.day_zero import serve_at_once
from fleet.planner.collect import Collection
from fleet.planner.settings import Clock, CollectSettings, Display
from fleet.store.reader import StoreReader
from fleet.tuning.database import present_database, update_database
from fleet.tuning.delivery import Untuned, check_all, deliver_all, labels_of
from fleet.tuning.report import report_search
from fleet.tuning.rounds import Rounds
from fleet.tuning.search import ROUND, USED_UP, Search, expected_trials

if TYPE_CHECKING:
    from fleet.config.settings import FleetConfig

_Result = TypeVar("_Result")

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


class _Round:
    """A watcher that keeps the records of a round and lets a display show the whole search."""

    def __init__(self, display: Display) -> None:
        self._display = display
        self.records: list[Record] = []

    def phase(self, name: str, total: int, most_secs: float = math.inf) -> None:
        """The search has one phase."""

    def proposed(self, workload: Workload, candidates: int) -> None:
        """Drawing is a part of the round."""

    def refused(self, workload: Workload, reasons: Mapping[str, int]) -> None:
        """A search derives nothing from imported candidates."""

    def stored(self, device_id: DeviceId, records: Sequence[Record]) -> None:
        """Records are durable."""
        self.records += records
        self._display.stored(device_id, records)


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
    search = _DeviceSearch(engine, settings, spec, options, display)
    with tempfile.TemporaryDirectory(prefix="tensor-fleet-untuned-") as folder:
        checking: Future[dict[str, Untuned]] = Future()
        if any(read_network_name(text).is_graph for text in labels):
            display.say("compiling the network without schedules, and comparing its output")
            device = engine.store().devices()[target]
            _beside(checking, lambda: check_all(list(labels), device, Path(folder)))
        else:
            checking.set_result({})
        with display.live():
            try:
                search.begin()
            except Exception:
                checking.result()  # a refused network is the better reason
                raise
            with search.clock.part("check"):
                untuned = checking.result()
            result = search.run(list(labels.values()))
        rivals = settings.tuning.rivals
        return result | conclude(
            result, engine.store(), labels, options.out, search.clock, display, untuned, rivals
        )


def _beside(future: Future[_Result], work: Callable[[], _Result]) -> None:
    """Work in a thread that nobody has to wait for: whoever stops a search does not wait for a compiler."""

    def run() -> None:
        try:
            future.set_result(work())
        except BaseException as error:
            future.set_exception(error)

    threading.Thread(target=run, name="first run", daemon=True).start()


class _DeviceSearch:
    """The rounds of one search on one device."""

    def __init__(
        self,
        engine: EngineSession,
        settings: FleetConfig,
        spec: DeviceSpec,
        options: TuneOptions,
        display: Display,
    ) -> None:
        self._engine, self._settings, self._spec = engine, settings, spec
        self._options, self._display = options, display
        self.clock = Clock()
        self._round = _Round(display)
        how = CollectSettings(samples=ROUND, seed=settings.training.seed)
        self._collection = Collection(engine, {spec.device_id: spec}, how, self._round)
        self._rounds = Rounds(engine, spec.device_id, options.models, self.clock, settings.training.seed)

    def begin(self) -> None:
        """Choose the workloads, let a head serve, read what is known: all that needs no measurement."""
        networks = self._settings.workloads.networks
        with self.clock.part("probe"):
            listed = self._collection.network_workloads(networks)
            workloads = choose_searched(listed, self._options.workloads, networks)
        with self.clock.part("first_head"):
            serve_at_once(self._engine, self._settings, self._spec, self._options.models)
        with self.clock.part("read"):
            self._rounds.read(workloads)

    def run(self, networks: Sequence[str]) -> JsonDict:
        """Search the workloads; what `tune_device` returns but for what `conclude` adds.

        Args:
            networks: Their labels.
        """
        rounds, options, device_id = self._rounds, self._options, self._spec.device_id
        remaining, began_at = options.trials, time.monotonic()
        most_secs = math.inf if options.minutes is None else 60 * options.minutes
        self._display.phase("tune", options.trials, most_secs)
        ends_at = began_at + most_secs
        curves: dict[str, list[tuple[float, float]]] = {network: [] for network in networks}
        while not (ended := _why_end(remaining, rounds, ends_at)):
            now = time.monotonic()
            expected = expected_trials(remaining, options.trials - remaining, now - began_at, ends_at - now)
            search, candidates, version = rounds.draw(remaining, expected)
            if not candidates:
                continue
            remaining -= len(candidates)
            workload_id = search.workload.workload_id
            self._round.records.clear()
            with self.clock.part("measure"):
                self._collection.measure({self._spec.family: {workload_id: candidates}}, version)
            mine = [record for record in self._round.records if record.workload_id == workload_id]
            rounds.learn(search, candidates, mine)
            with self.clock.part("confirm"):
                self._confirm(search)
            extend_curves(curves, rounds.searches, self.clock.wall_secs)
        self._display.finish()
        # A leader of one round may be timed again in a later one, and beside another workload.
        for search, records in rounds.measured():
            search.see(records)
        if rounds.is_live:
            with self.clock.part("confirm"):
                self._settle(_SETTLING * (time.monotonic() - began_at))
        searches = rounds.searches
        extend_curves(curves, searches, self.clock.wall_secs)
        failed = sum(search.failed for search in searches)
        if not any(math.isfinite(search.best_secs) for search in searches):
            why = f"the search ended before a candidate was measured ({ended}); give it more time"
            if failed:
                store = self._settings.store.path
                why = f"none of {failed} candidates ran; `fleet status --store {store}` shows their outcomes"
            raise FleetError(f"device {device_id}, {len(searches)} workloads: {why}")
        return {
            "device": device_id,
            "model": rounds.version or None,
            "why_no_model": rounds.why_no_model,
            "trials": sum(search.tried for search in searches),
            "ended": ended,
            "noise_floor": rounds.noise_floor,
            "failed": failed,
            "networks": {
                network: {**secs, "curve": curves[network]}
                for network, secs in network_seconds(searches, networks).items()
            },
            "workloads": [_workload_row(search) for search in searches],
        }

    def _confirm(self, search: Search) -> None:
        """Time a doubtful leader once more, alone: the median of three counts then."""
        if doubt := search.doubtful():
            trace, attempt = doubt
            self._time_again(search, [trace], attempt)

    def _settle(self, secs: float) -> None:
        """Time programs that may be the fastest again, some of a workload in turn, until leaders are settled.

        Workloads that take most of the networks' time come first. After `secs` no further turn begins.
        """
        ends_at = time.monotonic() + secs
        ran = [search for search in self._rounds.searches if math.isfinite(search.best_secs)]
        for search in sorted(ran, key=lambda search: -search.workload.weight * search.best_secs):
            for _ in range(_TURNS):
                traces, attempt = search.contenders()
                if not traces or time.monotonic() >= ends_at:
                    break
                self._time_again(search, traces, attempt)

    def _time_again(self, search: Search, traces: Sequence[str], attempt: int) -> None:
        workload_id = search.workload.workload_id
        again = [Candidate(workload_id=workload_id, trace=trace, origin=CONFIRM) for trace in traces]
        search.see(self._engine.measure(self._spec.device_id, again, attempt=attempt).result())


def conclude(
    result: Json,
    store: StoreReader,
    labels: Mapping[str, str],
    out: Path,
    clock: Clock,
    display: Display,
    untuned: Mapping[str, Untuned],
    rivals: Sequence[str],
) -> JsonDict:
    """Write what a search leaves.

    Args:
        result: Of the search.
        store: With its records.
        labels: Of the networks, by spelling.
        out: Folder of what it leaves.
        clock: Gets the parts' seconds.
        display: Shows progress.
        untuned: What `fleet.tuning.delivery.check_all` gave.
        rivals: Ways to run a network that its library is timed beside.

    Returns:
        `workloads`, each with `untuned_secs` (None if unknown), `whole_networks` (see
        `fleet.tuning.delivery`), `seconds` by part, and the paths `database` and
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
        whole = deliver_all(labels, store.devices()[device_id], database.traces(), out, untuned, rivals)
    runs = {labels[text]: run.program_secs for text, run in untuned.items()}
    workloads = [{**row, "untuned_secs": _untuned_secs(row, runs)} for row in result["workloads"]]
    conclusion = {
        "workloads": workloads,
        "whole_networks": whole,
        "seconds": clock.parts,
        "database": str(out),
    }
    networks = " ".join(f"--network {shlex.quote(name)}" for name in labels)
    again = (
        f"fleet tune {shlex.quote(device_id)} {networks} --trials {max(1, result['trials'])} "
        f"--out {shlex.quote(str(out))}"
    )
    page = report_search({**result, **conclusion}, out, time.time(), again)
    return {**conclusion, "report": str(page)}


def _untuned_secs(row: Json, runs: Mapping[str, Mapping[WorkloadId, float]]) -> float | None:
    """Seconds of one use of a workload without a schedule, in the networks' first runs."""
    workload_id, uses = row["workload_id"], row["networks"]
    in_runs = [label for label in uses if workload_id in runs.get(label, ())]
    if not in_runs:
        return None
    count: int = sum(uses[label] for label in in_runs)
    return sum(runs[label][workload_id] for label in in_runs) / count


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


def extend_curves(
    curves: Mapping[str, list[tuple[float, float]]], searches: Sequence[Search], now_secs: float
) -> None:
    """Add what a network's tuned workloads take by now, where it changed.

    Args:
        curves: By network: (seconds since the request began, latency in seconds); extended.
        searches: Of the workloads; a network has no point before each of its own ran once.
        now_secs: Since the request began.
    """
    for network, secs in network_seconds(searches, list(curves)).items():
        curve = curves[network]
        if not curve or curve[-1][1] != secs["best_secs"]:
            curve.append((now_secs, secs["best_secs"]))


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
    best_secs, workload = _finite(search.best_secs), search.workload
    return {
        "name": workload.name,
        "workload_id": workload.workload_id,
        "weight": workload.weight,
        "networks": dict(workload.networks),
        "flops": workload.flops,
        "before_secs": _finite(search.before_secs),
        "best_secs": best_secs,
        "gflops_per_s": workload.flops / best_secs / 1e9 if best_secs else None,
        "trials": search.tried,
        "failed": search.failed,
        "may_gain": search.may_gain,
        "ended": search.ended or None,
        "curve": [[tried, _finite(best)] for tried, best in search.curve],
    }


def _finite(secs: float) -> float | None:
    return secs if math.isfinite(secs) else None
