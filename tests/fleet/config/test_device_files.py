from __future__ import annotations

from contextlib import suppress
from typing import Any

import yaml
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import fields, replace

from agents.records import DeviceKind, Family, Protocol
from fleet.config.device_files import parse_device
from fleet.config.init import Profile, render
from fleet.config.yaml_files import ConfigError
from tests.fleet.config.test_config import check_faults, faults_of
from tests.host_fixtures import cuda_spec

BOARD: dict[str, Any] = {
    "schema": 1,
    "device_id": "board",
    "kind": "rpc",
    "family": "cpu",
    "target": {"kind": "llvm", "mtriple": "aarch64-linux-gnu", "mattr": ["+neon"], "num-cores": 4},
    "threads": 4,
    "cores": [0, 1, 2, 3],
    "tracker": "127.0.0.1:9190",
    "key": "rpi4",
}
CUDA_TARGET = cuda_spec(arch="sm_87").target


def test_a_board_behind_a_tracker_becomes_a_spec_and_its_gpu_too() -> None:
    spec = parse_device(BOARD, "board")
    assert (spec.kind, spec.family) == (DeviceKind.RPC, Family.CPU)
    assert (spec.target, spec.protocol_changes) == (BOARD["target"], ())
    host = {"kind": "llvm", "mtriple": "aarch64-linux-gnu"}
    gpu = {"family": "gpu", "target": {**CUDA_TARGET, "host": host}, "threads": 1, "index": 1}
    spec = parse_device({**BOARD, **gpu}, "board")
    assert (spec.family, spec.index, spec.target["host"]) == (Family.GPU, 1, host)


def test_sensible_addresses_and_keys_are_taken() -> None:
    addresses = ("lab-1.example.org:1", "10.0.0.7:65535", "[fe80::1]:9190", "lab_1:9190")
    for tracker, key in zip(addresses, ("rpi4", "0", "Jetson-Orin.2_b", "x" * 64), strict=True):
        spec = parse_device({**BOARD, "tracker": tracker, "key": key}, "board")
        assert (spec.tracker, spec.key) == (tracker, key)


WRONG_ADDRESSES = (
    *("lab", "lab:", ":9190", "lab:0", "lab:65536", "lab:999999", "lab:-1", "lab: 9190", "lab:9190\n"),
    *("lab:٩١٩٠", "a b:1", "http://lab:9190", "fe80::1:9190", "lab:9190/x"),
)
#: A tracker would split some of them.
WRONG_KEYS = ("a b", "a:b", "-a", ".", "é", "x" * 65, "a\n", "server:rpi4")


def test_an_address_or_key_that_is_none_is_one_fault() -> None:
    for tracker in WRONG_ADDRESSES:
        (fault,) = faults_of({"tracker": tracker}, BOARD)
        assert fault.startswith("tracker: the text ")
        assert "host:port, such as 127.0.0.1:9190" in fault
    for key in WRONG_KEYS:
        (fault,) = faults_of({"key": key}, BOARD)
        assert fault.startswith("key: the text ")


#: As `test_config.py` has them.
FAULTS = """
tracker:                                        | tracker: missing ... 127.0.0.1:9190
key:                                            | key: missing
key: 7                                          | key: ... 7
traker: x                                       | traker: unknown key ... 'tracker'
kind: local                                     | tracker: is for devices of kind 'rpc'
kind: replay                                    | key: is for devices of kind 'rpc'
target: {kind: cuda, arch: sm_87}               | target.kind: ... 'cpu' ... 'llvm' ... 'cuda'
family: gpu                                     | target.kind: ... 'gpu' ... 'cuda' ... 'llvm'
family: gpu, target: {kind: cuda}               | target.arch: missing
protocol: {repeats: 3}                          | protocol.repeats: unknown key ... 'repeat'
protocol: {repeat: 0}                           | protocol.repeat: ... greater ... 0
protocol: {repeat: 2.5}                         | protocol.repeat:
protocol: {repeat: true}                        | protocol.repeat: ... True
protocol: {cache_flush: 1}                      | protocol.cache_flush:
protocol: {cooldown_ms: "10"}                   | protocol.cooldown_ms: ... the text '10'
protocol: {cooldown_ms: .nan}                   | protocol.cooldown_ms:
protocol: {run_timeout_secs: 0}                 | protocol.run_timeout_secs:
protocol: {early_stop_ratio: 0.5}               | protocol.early_stop_ratio: ... above 1
protocol: {check_share: 2}                      | protocol.check_share:
protocol: {7: 1}                                | protocol.7
protocol: [1]                                   | protocol:
"""


def test_a_fault_names_key_value_and_cure() -> None:
    check_faults(FAULTS, BOARD)
    # All come at once.
    changes = {"tracker": "lab", "key": "a b", "index": 1, "protocol": {"repeat": 0, "repat": 1}}
    keys = {fault.partition(":")[0] for fault in faults_of(changes, BOARD)}
    assert keys == {"tracker", "key", "index", "protocol.repeat", "protocol.repat"}


def test_a_device_changes_the_protocol_of_the_fleet_for_itself() -> None:
    changes = {"run_timeout_secs": 20, "repeat": 3, "cache_flush": True, "cooldown_ms": 250.5}
    spec = parse_device({**BOARD, "protocol": changes}, "board")
    assert spec.protocol_changes == (
        ("cache_flush", 1.0),
        ("cooldown_ms", 250.5),
        ("repeat", 3.0),
        ("run_timeout_secs", 20.0),
    )
    common = Protocol(max_number=7, repeat=9, cooldown_ms=1.0)
    assert spec.protocol(common) == replace(common, **changes)
    assert type(spec.protocol(common).repeat) is int
    assert spec.protocol(common).cache_flush is True


NUMBERS = st.integers(-2, 20_000) | st.floats() | st.booleans()
NAMES = st.sampled_from([field.name for field in fields(Protocol)])


@given(st.dictionaries(NAMES | st.text(max_size=5), NUMBERS | st.text(max_size=3) | st.none(), max_size=4))
def test_a_protocol_that_is_accepted_is_applied_and_written_so_that_it_loads_again(
    value: dict[str, Any],
) -> None:
    with suppress(ConfigError):
        spec = parse_device({**BOARD, "protocol": value}, "board")
        assert spec.protocol(Protocol()) == replace(Protocol(), **value)
        again = parse_device(yaml.safe_load(render(Profile(spec=spec, header=()))), "board")
        assert again == spec
