"""Records, workloads and descriptors with plausible content, for the tests of what keeps them."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml
from hypothesis import strategies as st
from msgspec import convert
from msgspec.structs import replace

from agents.records import (
    CONFIRM,
    NOISE,
    REMEASURE,
    Candidate,
    Descriptor,
    DeviceId,
    DeviceKind,
    DeviceSpec,
    Family,
    Outcome,
    Protocol,
    Record,
    Workload,
    WorkloadId,
    canonical_json,
    content_hash,
)

if TYPE_CHECKING:
    from fleet.store.reader import StoreReader

#: One record as it is written.
RECORD_TEXT = (
    '{"attempt":0,"build_secs":0.05,"candidate_id":"c0ffee","device_id":"dev-a","dialect":"meta_schedule",'
    '"environment":"{}","environment_id":"e2","error":"","measured_at":1700000000.5,"model_version":"",'
    '"number":3,"origin":"evolved","outcome":"ok","protocol":{"build_timeout_sec":15.0,"cache_flush":true,'
    '"check_share":0.25,"cooldown_ms":0.0,"early_stop_ratio":4.0,"extra_repeats":7,"max_number":20000,'
    '"memory_limit_gib":2.5,"min_repeat_ms":10.0,"reject_interval":0.4,"repeat":3,"run_timeout_sec":5.0,'
    '"target_interval":0.03,"visits":2,"warmup_ms":80.0},"quality":"{\\"interval\\":0.021,\\"suspect\\":true}",'
    '"run_secs":[0.001,0.002],"schema":2,"timing_secs":0.5,"trace":"[[],[]]","wait_secs":0.0,'
    '"warmup_secs":[],"workload_id":"a1"}'
)


def make_record(number: int, *, device: str = "dev-a", workload: str = "a1b2", **changes: Any) -> Record:
    """A record that differs from those of other numbers; failed unless `number` leaves a rest by 4."""
    trace = json.dumps([[["SampleCategorical", [], [8], [f"v{number}"]]] * 5, [[number]]])
    candidate = Candidate(workload_id=WorkloadId(workload), trace=trace)
    is_ok = number % 4 != 0
    values: dict[str, Any] = {
        "device_id": DeviceId(device),
        "workload_id": candidate.workload_id,
        "candidate_id": candidate.candidate_id,
        "dialect": candidate.dialect,
        "trace": candidate.trace,
        "origin": "random",
        "outcome": Outcome.OK if is_ok else Outcome.RUN_TIMEOUT,
        "run_secs": (1e-3 + number * 1e-9, 3e-3, 2e-3) if is_ok else (),
        "warmup_secs": (0.125,),
        "number": 11,
        "build_secs": 0.25,
        "wait_secs": 0.0,
        "timing_secs": 0.5,
        "error": "" if is_ok else "no answer in 5 s",
        "protocol": Protocol(repeat=3),
        "environment": '{"load":0.5}',
        "environment_id": "e" * 32,
        "attempt": 0,
        "measured_at": 1_700_000_000.0 + number,
        "quality": canonical_json({"interval": 0.01 + number * 1e-6} if is_ok else {"strikes": 1}),
    }
    return Record(**values | changes)


def record_for(candidate: Candidate, **changes: Any) -> Record:
    """An ok record of a candidate."""
    names = ("candidate_id", "workload_id", "dialect", "trace", "origin")
    return make_record(1, **{name: getattr(candidate, name) for name in names} | changes)


def make_batch(start: int, count: int, **changes: Any) -> list[Record]:
    """Records with the numbers from `start` on."""
    return [make_record(number, **changes) for number in range(start, start + count)]


def record_ids(reader: StoreReader) -> list[str]:
    """Ids of all records of a store as its rows have them, with repetitions."""
    return [one for _, batch in reader.columns(["record_id"]) for one in batch.column(0).to_pylist()]


def make_workload(number: int, networks: tuple[tuple[str, int], ...] = ()) -> Workload:
    """A matrix multiplication with a module of some KB."""
    return Workload(
        workload_id=WorkloadId(f"{number:016x}"),
        name=f"GMM_{number}",
        operator="GMM",
        arg_shapes=((128, 128), (128, 128), (128, 128)),
        arg_dtypes=("float32",) * 3,
        flops=4194304.0,
        networks=networks,
        module_json=json.dumps({"nodes": list(range(300)), "number": number}),
    )


def make_spec(device: str = "dev-a", **changes: Any) -> DeviceSpec:
    """A one-thread CPU."""
    values: dict[str, Any] = {
        "device_id": DeviceId(device),
        "kind": DeviceKind.LOCAL,
        "family": Family.CPU,
        "target_json": '{"kind":"llvm","num-cores":1}',
    }
    return DeviceSpec(**values | changes)


@cache
def host_descriptor(name: str) -> Descriptor:
    """What a probe says of a host of `hosts.yaml`."""
    return convert(yaml.safe_load(Path(__file__).with_name("hosts.yaml").read_text())[name], Descriptor)


def make_descriptor(**changes: Any) -> Descriptor:
    """What a probe could have seen."""
    return replace(host_descriptor("lab-1"), **changes)


_SECONDS = st.floats(min_value=0, allow_nan=False, allow_infinity=False)
_TEXT = st.text(st.characters(codec="utf-8"), max_size=40)
_JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | _SECONDS | _TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_TEXT, inner, max_size=3),
    max_leaves=5,
)


#: Any JSON, and the numbers that Python has beside it.
ANY_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)


def any_records() -> st.SearchStrategy[Record]:
    """Any record that the types allow, odd text and extreme numbers included."""
    limits = st.floats(1e-9, 1e9)
    protocols = st.builds(
        Protocol,
        repeat=st.integers(1, 100),
        extra_repeats=st.integers(0, 2**31),
        target_interval=_SECONDS,
        reject_interval=_SECONDS,
        min_repeat_ms=_SECONDS,
        max_number=st.integers(1, 2**31),
        warmup_ms=_SECONDS,
        cooldown_ms=_SECONDS,
        visits=st.integers(1, 1000),
        cache_flush=st.booleans(),
        early_stop_ratio=st.just(0.0) | st.floats(1, 1e9, exclude_min=True),
        check_share=st.floats(0, 1),
        build_timeout_secs=limits,
        run_timeout_secs=limits,
        memory_limit_gib=limits,
    )
    texts = ("workload_id", "candidate_id", "dialect", "trace", "origin", "error", "environment")
    return st.builds(
        Record,
        **dict.fromkeys((*texts, "environment_id", "model_version"), _TEXT),
        **dict.fromkeys(("build_secs", "wait_secs", "timing_secs", "measured_at"), _SECONDS),
        device_id=st.sampled_from(["dev-a", "dev-b", "e5-2673.v4_x"]),
        outcome=st.sampled_from(Outcome),
        run_secs=st.lists(_SECONDS, max_size=4).map(tuple),
        warmup_secs=st.lists(_SECONDS, max_size=3).map(tuple),
        number=st.integers(0, 2**40),
        protocol=protocols,
        attempt=st.integers(0, 1000),
        quality=st.dictionaries(_TEXT, _JSON, max_size=3).map(canonical_json),
    )


def storable_records() -> st.SearchStrategy[Record]:
    """Any record that a store takes: ids of candidates are hashes."""
    return any_records().map(lambda one: replace(one, candidate_id=content_hash(one.candidate_id)))


_QUALITIES = ("{}", '{"suspect":true}', '{"suspect":false}', '{"interval":0.01,"stopped_early":true}')


@st.composite
def measured_records(draw: st.DrawFn) -> list[Record]:
    """Records of one device: few candidates and environments, so that many compete."""
    drawn = draw(
        st.lists(
            st.tuples(
                st.integers(0, 3),
                st.sampled_from("ab"),
                st.integers(0, 4),
                st.sampled_from(Outcome),
                st.sampled_from(_QUALITIES),
                st.sampled_from(["random", "imported", REMEASURE, CONFIRM, NOISE]),
                st.sampled_from([(), (1e-3,), (2e-3, 1.5e-3)]),
            ),
            max_size=20,
            unique_by=lambda one: one[:3],
        )
    )
    return [
        make_record(
            number,
            environment_id=environment * 32,
            attempt=attempt,
            outcome=outcome,
            quality=quality,
            origin=origin,
            run_secs=run_secs,
            measured_at=1000.0 + attempt,
        )
        for number, environment, attempt, outcome, quality, origin, run_secs in drawn
    ]
