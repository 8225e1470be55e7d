"""How ends of processes are told, with Ray's answers given by hand: no real host dies on demand."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from agents.device.messages import AgentGone, Message
from agents.records import DeviceId, Protocol
from fleet.transport import ray_transport
from fleet.transport.ray_cluster import Node
from fleet.transport.ray_transport import RayOptions, RayTransport
from tests.transport_fixtures import replay_spec

HERE = Node(node_id="here", resources=frozenset())


class ClusterByHand:
    """Says which calls are over, and notes how long it was let wait."""

    def __init__(self, **_: Any) -> None:
        self.own_node = HERE
        self.over: set[str] = set()
        self.waits: list[float] = []

    def broken(self) -> str | None:
        return None

    def ready(self, calls: Iterable[str], timeout_secs: float) -> list[str]:
        self.waits.append(timeout_secs)
        return [call for call in calls if call in self.over]


class ProcessByHand:
    """A process that ends when its call is over; its host answers when the test says so."""

    def __init__(self, cluster: ClusterByHand, node: Node, **given: Any) -> None:
        self.keys: set[tuple[DeviceId, int]] = set()
        self.requests: list[Any] = []
        self.is_shared, self.stderr_path = bool(given["is_shared"]), str(given["stderr_path"])
        self.began, self.killed_at, self.name = 0.0, None, SimpleNamespace(pid=1)
        self.call, self.is_host_gone = f"take {self.stderr_path}", False
        self.words = [f"words {self.stderr_path}"] if Path(self.stderr_path).name.startswith("far") else []
        ALL.append(self)

    def send(self, take_secs: float) -> None:
        pass

    def answer(self) -> tuple[list[Message], str | None]:
        return [], "its process died"

    def ask_last_words(self) -> list[str]:
        return self.words

    def stderr_tail(self) -> str:
        return f"the end of {Path(self.stderr_path).name}"

    def is_blameless(self, tail: str) -> bool:
        return False

    def kill(self, why: str) -> None:
        pass


ALL: list[ProcessByHand] = []


@pytest.fixture
def now() -> list[float]:
    return [100.0]


@pytest.fixture
def transport(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, now: list[float]) -> RayTransport:
    ALL.clear()
    monkeypatch.setattr(ray_transport, "start_ray", lambda cores: None)
    monkeypatch.setattr(ray_transport, "pin_process", lambda cores: None)
    monkeypatch.setattr(ray_transport, "Cluster", ClusterByHand)
    monkeypatch.setattr(ray_transport, "HostProcess", ProcessByHand)
    options = RayOptions(replay_per_process=1, clock=lambda: now[0])
    return RayTransport([], tmp_path, Protocol(), options)


def start(transport: RayTransport, name: str, incarnation: int = 1) -> ProcessByHand:
    transport.start(replay_spec(Path("none"), name), incarnation)
    return ALL[-1]


def end(transport: RayTransport, *processes: ProcessByHand) -> None:
    transport._cluster.over |= {one.call for one in processes}  # type: ignore[attr-defined]


def gone(transport: RayTransport) -> list[str]:
    return sorted(one.device_id for one in transport.poll(5.0) if isinstance(one, AgentGone))


def test_a_living_process_keeps_the_file_of_its_errors_to_itself(transport: RayTransport) -> None:
    first, second = start(transport, "a"), start(transport, "b")
    end(transport, first)
    assert gone(transport) == ["a"]
    third = start(transport, "c")
    assert third.stderr_path != second.stderr_path, "it would empty a file that tells who is to blame"


def test_hosts_that_do_not_answer_hold_up_no_poll(transport: RayTransport, now: list[float]) -> None:
    far = [start(transport, f"far-{number}") for number in range(20)]
    for number, process in enumerate(far):
        process.words = [f"words of {number}"]
    end(transport, *far)
    assert gone(transport) == [], "their hosts are asked, all at once"
    transport._cluster.over |= {"words of 3"}  # type: ignore[attr-defined]
    assert gone(transport) == ["far-3"]
    start(transport, "near")
    now[0] += 2.0
    assert gone(transport) == sorted(f"far-{number}" for number in range(20) if number != 3)
    assert gone(transport) == [], "each is told once"
