"""A small store whose latencies follow from the schedules, and small models, for the tests of refreshes."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from agents.records import Candidate, Record, Workload, WorkloadId, content_hash
from fleet.models.versions import is_held_out
from fleet.refresh.request import RefreshRequest
from fleet.store.store import Store
from tests.dataset_fixtures import cpu_device, gmm_trace, gmm_workload, record_of
from transfer.features.extractor import DEFAULT_SPEC
from transfer.model.encoder import ModelSizes
from transfer.model.fleet_tlp import FleetTLP, model_config, scoped_seed

DEVICES = ("box.a", "box.b")
SIZES = ModelSizes(
    category_width=2, step_width=8, attention_heads=1, residual_blocks=1, trunk_width=16, head_width=4
)


def unlike_workload(number: int) -> Workload:
    """A workload with shapes of its own, so that the rule of the held-out ones looks at each by itself."""
    workload = gmm_workload(f"gmm {number}")
    shapes = ((2, 128, 128 + number), *workload.arg_shapes[1:])
    return msgspec.structs.replace(
        workload, workload_id=WorkloadId(content_hash(f"w{number}")[:16]), arg_shapes=shapes
    )


def candidates_of(workload: Workload, count: int, seed: int = 0) -> list[Candidate]:
    """Unlike random candidates of a workload."""
    random = np.random.default_rng((seed, int(workload.workload_id[:8], 16)))
    found: dict[str, Candidate] = {}
    while len(found) < count:
        i, j = (int(2 ** random.integers(0, 5)) for _ in range(2))
        trace = gmm_trace(
            i=(128 // (2 * i), 2, 1, i), j=(1, 1, 64 // j, j), k=(16, 8), unroll=int(random.integers(0, 4))
        )
        trace = trace.replace("[16,8]", f"[{2 ** int(random.integers(0, 7))},{1 + len(found)}]")
        one = Candidate(workload_id=workload.workload_id, trace=trace)
        found[one.candidate_id] = one
    return list(found.values())


def secs_of(candidate: Candidate, device: str, *, upside_down: bool = False) -> float:
    """A latency that the innermost tile decides, a little otherwise on each device."""
    import json

    decisions = dict(json.loads(candidate.trace)[1])
    inner = math.log2(decisions[6][3]) + (0.5 if device == "box.b" else 0.3) * math.log2(decisions[8][3])
    inner += 0.2 * decisions[18]
    jitter = int(content_hash(candidate.candidate_id, device)[:4], 16) / 0xFFFF
    return 1e-3 * math.exp((inner if upside_down else -inner) / 2 + 0.05 * jitter)


def records_for(
    workloads: Iterable[Workload],
    count: int,
    *,
    devices: Sequence[str] = DEVICES,
    seed: int = 0,
    measured_at: float = 100.0,
    upside_down: bool = False,
) -> list[Record]:
    """One ok record of each candidate on each device."""
    return [
        msgspec.structs.replace(
            record_of(one, device, secs_of(one, device, upside_down=upside_down)), measured_at=measured_at
        )
        for workload in workloads
        for one in candidates_of(workload, count, seed)
        for device in devices
    ]


def some_workloads(learnt: int, held: int) -> list[Workload]:
    """Unlike workloads of which so many are learnt from, then those that the rule holds out."""
    every = [unlike_workload(number) for number in range(20 * (held + 1))]
    kept_out = [one for one in every if is_held_out(one)][:held]
    found = [one for one in every if not is_held_out(one)][:learnt] + kept_out
    assert len(found) == learnt + held
    return found


def make_store(path: Path, made: Sequence[Workload], *, candidates: int = 12) -> None:
    """A store in which two devices have measured candidates of some workloads."""
    with Store.open(path) as store:
        for device in DEVICES:
            store.put_device(*cpu_device(device))
        store.put_workloads(made)
        store.append(records_for(made, candidates))


def request_in(folder: Path, **changes: Any) -> RefreshRequest:
    """A refresh of the store in a folder, whose models and own files lie beside it."""
    request = RefreshRequest(
        kind="refresh",
        family="cpu",
        store=str(folder / "store"),
        models=str(folder / "models"),
        folder=str(folder / "refresh"),
        request_id="one",
        epochs=6,
        nice=0,
        # Whoever serves first is then one of these models.
        shipped=False,
    )
    return replace(request, **changes)


def append(path: Path, records: Sequence[Record]) -> None:
    """Add records to a store."""
    with Store.open(path) as store:
        store.append(records)


def small_model(*heads: str, seed: int = 0) -> FleetTLP:
    """A model that was never trained."""
    with scoped_seed(seed):
        return FleetTLP(model_config(DEFAULT_SPEC, SIZES), heads).eval()
