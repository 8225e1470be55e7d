"""`fleet probe` of this host and of boards, `doctor`, `config` and the schemas of YAML files."""

from __future__ import annotations

import json
import socket
import struct
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from agents.host.rpc_tracker import KEY_MISMATCH
from agents.records import ANSOR_HARDWARE_PARAMS
from fleet.errors import FleetError
from tests.cli_fixtures import json_of, refusal, run, said
from tests.host_fixtures import GREETING, framed, listener

ROOT = Path(__file__).parents[3]


pytestmark = pytest.mark.usefixtures("elsewhere")


@pytest.mark.parametrize(
    ("kind", "schema"),
    [("fleet", "configs/fleet.schema.json"), ("device", "configs/hardware/device.schema.json")],
)
def test_the_schema_that_yaml_files_name_is_the_one_that_is_checked(kind: str, schema: str) -> None:
    written = ROOT / schema
    assert json.loads(written.read_text()) == json.loads(run("config", "schema", kind).stdout)
    files = sorted(written.parent.glob("*.yaml"))
    assert files
    for path in files:
        text = path.read_text()
        assert text.startswith(f"# yaml-language-server: $schema={written.name}\n")
        jsonschema.validate(yaml.safe_load(text), json.loads(written.read_text()))


def test_probe_shows_this_host() -> None:
    shown = said("probe")
    assert "apache-tvm 0.27" in shown
    assert all(name in shown for name in ANSOR_HARDWARE_PARAMS)
    assert json_of("probe")["descriptor"]["usable_cores"]


def answering(*answers: bytes) -> AbstractContextManager[str]:
    """A listener on loopback that gives each connection these answers, each after some bytes came."""

    def answer(connection: socket.socket) -> None:
        for one in answers:
            connection.recv(1 << 12)
            connection.sendall(one)
        connection.recv(1 << 12)

    return listener(answer)


def tracker_of(*servers: str, key: str = "pi4", free: int = 1) -> Any:
    """A tracker that lists some servers under a key."""
    addresses = [server.rsplit(":", 1) for server in servers]
    listed = [{"addr": [host, int(port)], "key": f"server:{key}"} for host, port in addresses]
    summary = {"server_info": listed, "queue_info": {key: {"free": free}}}
    return answering(GREETING, framed([0, summary]))


def write_board(tracker: str) -> None:
    folder = Path("configs/hardware")
    folder.mkdir(parents=True, exist_ok=True)
    target = "{kind: llvm, mtriple: aarch64-linux-gnu, mcpu: cortex-a72, num-cores: 1}"
    (folder / "board.yaml").write_text(
        f"schema: 1\ndevice_id: board\nkind: rpc\nfamily: cpu\ntarget: {target}\nthreads: 1\n"
        f"tracker: {tracker}\nkey: pi4\n"
    )


def test_probe_of_a_board_asks_its_tracker_and_its_server() -> None:
    with answering(struct.pack("<i", KEY_MISMATCH)) as server, tracker_of(server) as tracker:
        write_board(tracker)
        shown = run("probe", "--device", "board").output
        assert f"the RPC tracker {tracker} lists the key 'pi4' (1 server, 1 free)" in shown
        assert f"{server} takes connections" in shown
        board = json_of("probe", "--device", "board")["board"]
        assert board == {"servers": [server], "free": 1, "answering": [server]}
    with tracker_of("127.0.0.1:9", free=0) as tracker:
        write_board(tracker)
        assert "(1 server, 0 free); all in use" in run("probe", "--device", "board").output


def test_probe_of_a_board_that_does_not_answer_fails_with_one_line() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        closed = f"127.0.0.1:{listener.getsockname()[1]}"
    write_board(closed)
    assert "no RPC tracker answers" in refusal("probe", "--device", "board")
    with tracker_of("127.0.0.1:9", key="pi5") as tracker:
        write_board(tracker)
        assert "nobody serves the key 'pi4'" in refusal("probe", "--device", "board")
    with tracker_of(closed) as tracker:
        write_board(tracker)
        text = refusal("probe", "--device", "board")
        assert f"lists {closed} for the key 'pi4', and nothing takes connections" in text
        assert "\n" not in text
        result = run("probe", "--device", "board", "--json")
        assert json.loads(result.stdout)["board"] is None


def test_doctor_judges_this_host_and_fails_when_something_stops_the_program(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    told = json_of("doctor")
    for finding in told["findings"]:
        assert set(finding) == {"level", "what", "why", "do"}
    aspects = [row["aspect"] for row in told["confinement"]]
    assert aspects == ["files", "network", "memory", "processes"]
    shown = run("doctor")
    assert shown.exit_code == 0
    assert "tried and refused" in shown.output
    assert all(f"\n{aspect} " in shown.output for aspect in aspects)
    from fleet.doctor.words import HostState

    monkeypatch.setattr("fleet.doctor.look.look", lambda store, **_: HostState(missing_modules=("tvm",)))
    result = run("doctor")
    assert isinstance(result.exception, FleetError)
    assert "pip install apache-tvm==" in str(result.exception)
    assert "the Python module tvm is missing" in result.output
