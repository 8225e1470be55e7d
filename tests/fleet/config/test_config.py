"""Device files and settings: what is read, and what each fault is told."""

from __future__ import annotations

import pickle
import re
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from agents.records import DeviceId, DeviceKind, Family, Protocol
from fleet.config.device_files import load_device, parse_device
from fleet.config.device_folder import DeviceFolder
from fleet.config.device_targets import TARGET_OPTIONS
from fleet.config.settings import (
    ConfigError,
    FleetConfig,
    load_fleet,
    parse_setting,
    resolve,
    select_devices,
)
from fleet.config.yaml_files import parse_yaml
from tests.table_fixtures import cells

ROOT = Path(__file__).parents[3]

GOOD: dict[str, Any] = {
    "schema": 1,
    "device_id": "box",
    "kind": "local",
    "family": "cpu",
    "target": {"kind": "llvm", "mcpu": "x86-64-v3", "num-cores": 1},
    "threads": 1,
    "cores": [0],
    "index": 0,
    "note": "the box under the desk",
}


LLVM, CUDA = {"kind": "llvm", "num-cores": 1}, {"kind": "cuda", "arch": "sm_80"}


def write(folder: Path, name: str, value: Any) -> Path:
    path = folder / name
    path.write_text(value if isinstance(value, str) else yaml.safe_dump(value))
    return path


def faults_of(change: dict[str, Any], good: dict[str, Any] = GOOD) -> list[str]:
    """Faults of a good device with some keys changed; a value of None takes the key away."""
    value = {key: entry for key, entry in {**good, **change}.items() if entry is not None}
    with pytest.raises(ConfigError) as caught:
        parse_device(value, good["device_id"])
    # As it comes from another process.
    return list(pickle.loads(pickle.dumps(caught.value)).args)


def test_a_good_file_becomes_a_spec_and_hidden_and_other_files_none(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="holds no device file"):
        DeviceFolder(tmp_path).read()
    with pytest.raises(ConfigError, match="no such folder"):
        DeviceFolder(tmp_path / "nowhere").read()
    write(tmp_path, "box.yaml", GOOD)
    for other in (".box.yaml.77", ".other.yaml", "README.md"):
        write(tmp_path, other, "unfinished")
    spec = load_device(tmp_path, "box")
    assert (spec.kind, spec.family, spec.cores) == (DeviceKind.LOCAL, Family.CPU, (0,))
    assert spec.target == GOOD["target"]
    assert DeviceFolder(tmp_path).read().specs == {"box": spec}
    # A second file of one device is a fault.
    write(tmp_path, "box.yml", GOOD)
    found = DeviceFolder(tmp_path).read()
    [fault] = found.faults[DeviceId("box")]
    assert re.search(r"box\.yml: device_id: 'box' is also in .*box\.yaml", fault)
    with pytest.raises(ConfigError, match="also in"):
        load_device(tmp_path, "box")


def test_the_shipped_fleet_file_says_the_defaults() -> None:
    shipped = load_fleet(ROOT / "configs/fleet.yaml", environ={})
    assert shipped.config == FleetConfig()
    assert set(shipped.origins.values()) == {f"file {ROOT / 'configs/fleet.yaml'}"}


#: Keys of a good file as somebody may write them, a key without a value taken away; words of the fault.
FAULTS = """
schema: 2                                       | schema:
schema:                                         | schema: missing
thread: 2                                       | thread: unknown key ... 'threads'
threads: "1"                                    | threads: ... the text '1'
threads: true                                   | threads: ... True
threads: 0                                      | threads: ... greater
cores: [0, "1"]                                 | cores.1:
cores: [1, 1]                                   | cores: ... twice
cores: [-1]                                     | cores: ... start at 0
cores: []                                       | cores:
kind: gpu                                       | kind: ... 'cuda'
family: gpu                                     | family: ... 'cpu'
device_id: bax                                  | device_id: ... 'bax' ... 'box'
device_id: ../box                               | device_id: ... not allowed
device_id: box.local                            | device_id: ... not allowed
index: 1                                        | index: ... CUDA
note: "\\ud800"                                  | note:
target: {mcpu: x86-64}                          | target.kind: missing
target: {kind: llvm}                            | target.num-cores: missing ... num-cores: 1
target: {kind: llvm, num_cores: 1}              | target.num_cores: unknown ... 'num-cores'
target: {kind: llvm, num-cores: 2}              | target.num-cores: ... threads is 1
target: {kind: llvm, num-cores: 1, mattr: "+"}  | target.mattr: ... a list
target: {kind: llvm, num-cores: 1, mcpu: 3}     | target.mcpu: ... text
target: {kind: llvm, mattr: [.nan]}             | target.mattr:
target: {kind: cuda, arch: sm_80}               | target.kind: ... 'llvm'
kind: cuda, family: gpu, target: {kind: cuda}   | max_threads_per_block
threads: 2                                      | cores: 2 threads need at least 2 cores, got 1
"""


def check_faults(table: str, good: dict[str, Any]) -> None:
    """Each line of a table of faults changes a good file, and is answered in its words."""
    for change, words in cells(table):
        found = faults_of(yaml.safe_load(f"{{{change}}}"), good)
        wanted = words.split(" ... ")
        assert any(all(word in fault for word in wanted) for fault in found), (change, found)


def test_a_fault_names_key_value_and_cure() -> None:
    check_faults(FAULTS, GOOD)
    found = faults_of({"target": {**LLVM, "num-cores": 10**5000}})
    assert any(re.match("target.num-cores:.*very large", fault) for fault in found)


#: A file each, and words of its fault.
BROKEN = {
    "broken": ("schema: 1\ntarget: {kind: llvm\nnote: x\n", "line 3"),
    "list": ("- 1\n", "a list"),
    "empty": ("", "nothing"),
    "twice": (
        "schema: 1\nnote: a\nnote: b\n",
        "line 3: bad YAML: key 'note' is given twice (first in line 2)",
    ),
    "alias": ("a: &x [1]\nb: *x\n", "line 2: bad YAML: aliases"),
    "seven": ("7: x\n", "key 7 is a whole number"),
    "binary": ("\xff", "not UTF-8"),
}


def test_all_faults_of_all_files_come_at_once(tmp_path: Path) -> None:
    write(tmp_path, "good.yaml", {**GOOD, "device_id": "good"})
    box = write(tmp_path, "box.yaml", {**GOOD, "threds": 1, "kind": "lokal"})
    for name, (text, _) in BROKEN.items():
        (tmp_path / f"{name}.yaml").write_text(text, encoding="latin-1")
    found = DeviceFolder(tmp_path).read()
    assert list(found.specs) == ["good"]
    assert found.faults.keys() == {"box", *BROKEN}
    for name, (_, words) in BROKEN.items():
        [fault] = found.faults[DeviceId(name)]
        assert fault.startswith(f"{tmp_path / name}.yaml: ")
        assert words in fault
    written = box.read_text().splitlines()
    for fault, key in zip(found.faults[DeviceId("box")], ("kind", "threds"), strict=True):
        at = next(number for number, text in enumerate(written, 1) if text.startswith(key))
        assert f"box.yaml: line {at}: {key}: " in fault
    assert "did you mean 'threads'" in fault


def test_anywhere_else_the_profiles_of_this_host_are_the_devices(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    config = load_fleet(environ={}).config
    specs = select_devices(config)
    assert specs
    assert all(name == spec.device_id for name, spec in specs.items())
    first = next(iter(specs))
    assert load_device(Path(config.devices.folder), first) == specs[first]
    with pytest.raises(ConfigError, match="no device 'nonsense'"):
        load_device(Path(config.devices.folder), "nonsense")
    assert list(tmp_path.iterdir()) == []


def test_the_first_of_flag_environment_file_and_default_wins() -> None:
    file = {"schema": 1, "protocol": {"repeat": 4, "min_repeat_ms": 20, "max_number": 7}}
    environ = {
        "FLEET_PROTOCOL__REPEAT": "5",
        "FLEET_PROTOCOL__MIN_REPEAT_MS": "2.5",
        "FLEET_HOME": "x",
        "PATH": "/",
    }
    found = resolve(file, "f.yaml", environ, {"protocol.repeat": 6})
    protocol = found.config.timing_protocol()
    assert (protocol.repeat, protocol.min_repeat_ms, protocol.max_number) == (6, 2.5, 7)
    assert found.origins["protocol.repeat"] == "flag"
    assert found.origins["protocol.min_repeat_ms"] == "env FLEET_PROTOCOL__MIN_REPEAT_MS"
    assert found.origins["protocol.max_number"] == "file f.yaml"
    assert found.origins["store.path"] == "default"


#: A source of one setting, its key, and what it becomes.
READ = """
env FLEET_WORKLOADS__NETWORKS=bert-tiny, resnet-50    | workloads.networks           | [bert-tiny, resnet-50]
env FLEET_WORKLOADS__NETWORKS=[bert-tiny, resnet-50]  | workloads.networks           | [bert-tiny, resnet-50]
env FLEET_STORE__PATH=123                             | store.path                   | "123"
env FLEET_PROTOCOL__CACHE_FLUSH=true                  | protocol.cache_flush         | true
file {protocol: null}                                 | protocol.repeat              | 5
file {protocol: {extra_repeats: 0}}                   | protocol.extra_repeats       | 0
file {protocol: {target_interval: 0}}                 | protocol.target_interval     | 0
file {protocol: {early_stop_ratio: 0}}                | protocol.early_stop_ratio    | 0
file {protocol: {check_share: 1}}                     | protocol.check_share         | 1
file {protocol: {memory_limit_gib: 0.5}}              | protocol.memory_limit_gib    | 0.5
file {workloads: {exploration: 1}}                    | workloads.exploration        | 1
file {workloads: {noise_samples: 0}}                  | workloads.noise_samples      | 0
flag workloads.max_flops=1.0e+6                       | workloads.max_flops          | 1.0e+6
"""
#: A source of one setting, and words of its only fault; a number that YAML takes for text is told its cure.
REFUSED = """
env FLEET_TRAINING__EPOCHS=0                     | env FLEET_TRAINING__EPOCHS: training.epochs: ... greater
env FLEET_TRANING__SEED=1                        | env FLEET_TRANING__SEED: unknown section ... 'training'
file {protocol: {repat: 4}}                      | f.yaml: protocol.repat: unknown key ... 'repeat'
file {protocol: {repeat: x}}                     | f.yaml: protocol.repeat: ... the text 'x'
file {stor: {}}                                  | f.yaml: stor: unknown key ... 'store'
file {training: 3}                               | f.yaml: training: ... a whole number
file {schema: 2}                                 | write schema: 1
file {schema: true}                              | write schema: 1
file {daemon: {policy: {idle_onli: true}}}       | f.yaml: daemon.policy.idle_onli: ... 'idle_only'
file {daemon: {policies: {box: {secs_per_our: 1.0}}}} | daemon.policies.box.secs_per_our: ... 'secs_per_hour'?
file {daemon: {policy: {windows: [""]}}}         | f.yaml: daemon.policy ... 22:00-06:30
file {daemon: {policy: {windows: ["22-23"]}}}    | f.yaml: daemon.policy ... 22:00-06:30
file {daemon: {policy: {windows: ["25:00-26:00"]}}} | f.yaml: daemon.policy ... 22:00-06:30
file {daemon: {policy: {windows: ["10:00-10:00"]}}} | f.yaml: daemon.policy ... 22:00-06:30
file {daemon: {policy: {windows: ["10:00-24:30"]}}} | f.yaml: daemon.policy ... 22:00-06:30
file {daemon: {policy: {windows: ["1:00-2:00"]}}} | f.yaml: daemon.policy ... 22:00-06:30
file {daemon: {policy: {windows: ["10:00"]}}}    | f.yaml: daemon.policy ... 22:00-06:30
file {store: {token: hunter2}}                   | f.yaml: store.token: unknown key ... !hunter2
flag daemon.policy.windows=[]                    | flag: daemon.policy.windows: unknown ... 'policy'
flag onboarding.strategy=majik                   | flag: onboarding.strategy: ... 'multitask'
flag workloads.networks=resnet50                 | flag: workloads.networks: ... 'resnet50' ... 'resnet-50'
flag workloads.max_flops=1e6                     | got the text '1e6': write 1000000
flag workloads.max_flops=2.5e30                  | write 2.5e+30
flag protocol.target_interval=1e-7               | write 1.0e-07
flag workloads.minimum=1e2                       | write 100
flag workloads.max_flops=fast                    | got the text 'fast' ... !write
flag workloads.max_flops=nan                     | !write
flag workloads.max_flops=1e999                   | !write
file {protocol: {extra_repeats: 1.5}}            | f.yaml: protocol.extra_repeats:
file {protocol: {target_interval: -0.01}}        | f.yaml: protocol.target_interval:
file {protocol: {reject_interval: 11}}           | f.yaml: protocol.reject_interval:
file {protocol: {warmup_ms: -1.0}}               | f.yaml: protocol.warmup_ms:
file {protocol: {cache_flush: 1}}                | f.yaml: protocol.cache_flush:
file {protocol: {early_stop_ratio: 0.5}}         | f.yaml: protocol.early_stop_ratio:
file {protocol: {early_stop_ratio: .inf}}        | f.yaml: protocol.early_stop_ratio:
file {protocol: {check_share: 1.01}}             | f.yaml: protocol.check_share:
file {protocol: {memory_limit_gib: 0.1}}         | f.yaml: protocol.memory_limit_gib:
file {workloads: {exploration: -0.1}}            | f.yaml: workloads.exploration:
file {workloads: {noise_samples: 2.5}}           | f.yaml: workloads.noise_samples:
"""


def resolved(source: str) -> FleetConfig:
    """Settings of one source, written as `file {YAML}`, `env NAME=TEXT` or `flag KEY=TEXT`."""
    kind, text = source.split(" ", 1)
    name, _, value = text.partition("=")
    file = {"schema": 1, **yaml.safe_load(text)} if kind == "file" else {}
    environ, flags = ({name: value} if kind == which else {} for which in ("env", "flag"))
    changes = {key: parse_setting(key, entry) for key, entry in flags.items()}
    return resolve(file, "f.yaml", environ, changes).config


def test_a_setting_of_any_source_is_read_or_refused_in_one_line_that_names_it() -> None:
    for source, key, value in cells(READ):
        section, name = key.split(".")
        found = getattr(getattr(resolved(source), section), name)
        assert (list(found) if isinstance(found, tuple) else found) == yaml.safe_load(value), source
    for source, expected in cells(REFUSED):
        with pytest.raises(ConfigError) as caught:
            resolved(source)
        (fault,) = caught.value.args
        for words in expected.split(" ... "):
            assert (words.removeprefix("!") in fault) is not words.startswith("!"), (source, fault)


def test_a_file_may_be_missing_unless_it_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert load_fleet(environ={}).config == FleetConfig()
    assert FleetConfig().timing_protocol() == Protocol()
    with pytest.raises(ConfigError, match=r"no\.yaml: cannot be read"):
        load_fleet(Path("no.yaml"), environ={})


@pytest.mark.parametrize(
    "text",
    [
        "[" * 5000,
        "a: 2001-99-99",
        "a: !!timestamp x",
        "a: !!int ''",
        "a: !!python/object/apply:os.system [ls]",
        "? [1, 2]\n: 3",
        "? {a: b}\n: 3",
        "a: !!binary 1",
        "\x00",
        "a: b\n---\nc: d",
        "!!set [a]",
        "!!omap {a: b}",
    ],
)
def test_hostile_yaml_is_an_error_with_one_line(text: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_device(parse_yaml(text), "box")
    assert all("\n" not in fault for fault in caught.value.args)


SCALARS = st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.binary() | st.dates()
VALUES = st.recursive(
    SCALARS, lambda inner: st.lists(inner) | st.dictionaries(st.text() | st.integers(), inner), max_leaves=12
)
KEYS = st.sampled_from([*GOOD, "thread", "note "]) | st.text()


@settings(max_examples=50)
@given(
    st.dictionaries(KEYS, VALUES),
    st.dictionaries(st.sampled_from(sorted(TARGET_OPTIONS["llvm"])) | st.text(), VALUES),
)
def test_no_mapping_gives_more_than_a_config_error(value: dict[str, Any], target: dict[str, Any]) -> None:
    with suppress(ConfigError):
        parse_device({**GOOD, **value}, "box")
    with suppress(ConfigError):
        spec = parse_device({**GOOD, "target": {**GOOD["target"], **target}}, "box")
        assert spec.target["num-cores"] == 1
        assert spec.target_json.encode()


@pytest.mark.tvm
def test_target_options_are_those_of_tvm() -> None:
    import tvm
    import tvm_ffi

    assert tvm.__version__.startswith("0.27")
    words = {"str": str, "int": int, "bool": bool, "target.Target": dict, "Array<str>": list}
    options_of = tvm_ffi.get_global_func("target.ListTargetKindOptionsFromName")
    for kind, options in TARGET_OPTIONS.items():
        assert {str(key): words[str(value)] for key, value in options_of(kind).items()} == dict(options)


@pytest.mark.tvm
def test_tvm_accepts_the_target_of_every_shipped_device() -> None:
    from tvm.target import Target

    specs = DeviceFolder(ROOT / "configs/hardware").read().specs
    x86 = {"x86-64", "x86-64-v2", "sandybridge", "x86-64-v3", "x86-64-v4"}
    assert x86 | {"aarch64-generic", "aarch64-native"} <= set(specs)
    for spec in specs.values():
        assert int(Target(spec.target).attrs["num-cores"]) == spec.threads == len(spec.cores) == 1
