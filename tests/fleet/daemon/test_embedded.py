"""An engine inside of a command, over replay devices: no Ray, no TVM. Real: `test_untrusted_import.py`."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar
from unittest import mock

import msgspec
import pytest
from rich.console import Console

from agents.device.messages import Batch
from agents.records import Candidate, DeviceId, Lease, Protocol, Record
from agents.spool.disk_spool import Spool
from fleet.config.settings import FleetConfig
from fleet.core.words import RequestKind
from fleet.daemon.daemon import SPOOL, UpOptions
from fleet.daemon.embedded import run_embedded
from fleet.drivers.session import DeviceUnusableError, EngineSession
from fleet.errors import FleetError
from fleet.planner.collect import Collection
from fleet.planner.settings import CollectSettings, Pools
from fleet.requests.kinds import perform
from fleet.requests.work import Work
from fleet.store.store import Store
from fleet.transport.local import LocalTransport
from tests.coordinator_fixtures import ONE, TWO, WORKLOADS, recorded_file, write_replay_device
from tests.fleet.planner.test_collection import Log

_Value = TypeVar("_Value")


class Shown(Log):
    """A display that remembers."""

    def live(self) -> AbstractContextManager[object]:
        return nullcontext()

    def say(self, text: str) -> None:
        raise AssertionError(text)

    def step(self, done: int, note: str) -> None: ...

    def finish(self) -> None: ...

    def computes(self, text: str) -> None: ...


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return recorded_file(tmp_path_factory.mktemp("recorded"))


@pytest.fixture
def settings(recorded: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FleetConfig:
    """Two replay devices over sound records, one of which has a protocol of its own."""
    monkeypatch.setattr("fleet.daemon.replay_files.check_apart", lambda *_: None)
    (tmp_path / "hardware").mkdir()
    write_replay_device(tmp_path / "hardware", ONE, recorded)
    write_replay_device(tmp_path / "hardware", TWO, recorded, protocol={"repeat": 2, "cooldown_ms": 50})
    return FleetConfig.model_validate(
        {
            "store": {"path": str(tmp_path / "store")},
            "devices": {"folder": str(tmp_path / "hardware"), "ids": (ONE, TWO)},
            "workloads": {"networks": ["bert-tiny"], "count": 3, "samples": 8, "noise_samples": 0},
        }
    )


def run(settings: FleetConfig, work: Callable[[EngineSession], _Value]) -> _Value:
    arguments = {"devices": list(settings.devices.ids)}
    options = UpOptions(models=Path(settings.store.path).parent / "models")
    return run_embedded(settings, RequestKind.COLLECTION, arguments, options, Console(quiet=True), work)


def collect(settings: FleetConfig, display: Shown | None = None) -> Shown:
    """What `fleet collect` does."""
    display = display or Shown()
    work = Work(
        kind=RequestKind.COLLECTION,
        arguments={"devices": list(settings.devices.ids)},
        minutes=None,
        settings=settings,
        models=Path(settings.store.path).parent / "models",
    )
    run(settings, lambda session: perform(work, session, display))
    return display


def collection(session: EngineSession, log: Log, **changes: Any) -> tuple[Collection, Pools]:
    """A collection whose candidates are drawn."""
    specs = {one: entry.spec for one, entry in session.store().devices().items() if one in (ONE, TWO)}
    how = CollectSettings(samples=8)
    made = Collection(session, specs, replace(how, **changes), log)
    return made, made.propose(made.network_workloads(["bert-tiny"]))


def all_of(pools: Pools) -> list[Candidate]:
    return [one for pool in pools.values() for several in pool.values() for one in several]


def stored(settings: FleetConfig) -> list[Record]:
    return list(Store.read(settings.store.path).records())


def keys(records: Sequence[Record]) -> list[tuple[str, str, int]]:
    return sorted((one.device_id, one.candidate_id, one.attempt) for one in records)


def test_a_collection_measures_the_same_on_every_device_and_goes_on_with_what_is_missing(
    settings: FleetConfig,
) -> None:
    ask, asked = LocalTransport.measure, dict[DeviceId, Protocol]()

    def note(transport: LocalTransport, lease: Lease, incarnation: int, batch: Batch) -> None:
        asked[lease.device_id] = batch.protocol
        ask(transport, lease, incarnation, batch)

    with mock.patch.object(LocalTransport, "measure", note):
        log = collect(settings)
    common = settings.timing_protocol()
    assert asked == {ONE: common, TWO: msgspec.structs.replace(common, repeat=2, cooldown_ms=50.0)}, (
        "each by its own"
    )
    records = stored(settings)
    assert keys(log.records) == keys(records)
    of_one = {one.candidate_id for one in records if one.device_id == ONE}
    assert of_one == {one.candidate_id for one in records if one.device_id == TWO}
    assert len(records) == 2 * len(of_one) == 2 * 8 * len(WORKLOADS)
    with ThreadPoolExecutor(1) as executor:
        assert executor.submit(collect, settings).result().records == [], "nor outside of the main thread"
    more = settings.model_copy(update={"workloads": settings.workloads.model_copy(update={"samples": 10})})
    assert len(collect(more).records) == 2 * 2 * len(WORKLOADS)
    with Spool(Path(settings.store.path).parent / SPOOL / ONE) as spool:
        assert spool.pending() == [], "all that was stored is acknowledged"


def test_after_a_driver_that_broke_the_same_command_goes_on(settings: FleetConfig) -> None:
    class Broken(Shown):
        def stored(self, device_id: DeviceId, records: Sequence[Record]) -> None:
            raise FleetError("it broke")

    with pytest.raises(FleetError, match=r"^it broke$"):
        collect(settings, Broken())
    kept = keys(stored(settings))
    assert kept
    collect(settings)
    assert set(kept) <= set(keys(stored(settings)))
    assert len(keys(stored(settings))) == len(set(keys(stored(settings)))) == 2 * 8 * len(WORKLOADS)


def test_a_driver_reads_what_it_was_told_of_and_waits_for_no_job_of_somebody_else(
    settings: FleetConfig,
) -> None:
    """Neither the same candidates asked for twice nor a duplicate in one question leaves anybody waiting."""

    def measure(session: EngineSession) -> None:
        session.ready([ONE])
        _, pools = collection(session, Log())
        drawn = all_of(pools)
        begun = [session.measure(ONE, drawn[start : start + 4]) for start in (0, 4, 8)]
        for future in begun:
            told = keys(future.result())
            # Read while others are at work, and again when they are done.
            assert set(told) <= set(keys(list(session.store().records())))
        rest = drawn[12:]
        both = [session.measure(ONE, rest[:6]), session.measure(ONE, [*rest[3:9], rest[3]])]
        measured = {one.candidate_id for future in both for one in future.result(60)}
        assert measured == {one.candidate_id for one in rest[:9]}
        assert session.measure(ONE, rest[:9]).result(60) == []

    run(settings, measure)
    assert len(stored(settings)) == 12 + 9


def test_a_device_that_cannot_be_had_is_one_clear_line(settings: FleetConfig) -> None:
    def ask(session: EngineSession) -> None:
        session.ready([ONE, DeviceId("three")])

    with pytest.raises(DeviceUnusableError, match=r"^three is no device of the fleet just now$"):
        run(settings, ask)


def test_a_signal_ends_the_command_in_order(settings: FleetConfig) -> None:
    def work(session: EngineSession) -> None:
        session.ready([ONE])
        signal.raise_signal(signal.SIGTERM)
        threading.Event().wait(0.2)
        collection(session, Log())

    ended = []
    before = signal.signal(signal.SIGTERM, lambda number, _: ended.append(number))
    try:
        with pytest.raises(FleetError):
            run(settings, work)
    finally:
        signal.signal(signal.SIGTERM, before)
    assert ended == [signal.SIGTERM], "the command line says that the same command goes on"
    assert len(collect(settings).records) == 2 * 8 * len(WORKLOADS)
