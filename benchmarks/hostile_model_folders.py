"""Models and backups of strangers: honest ones with faults in manifests, tensors, lists and files.

Called by `benchmarks.hostile_child`. Nothing here opens what it makes.
"""

from __future__ import annotations

import json
import os
import shutil
import sqlite3
import tempfile
from contextlib import closing, suppress
from functools import cache
from pathlib import Path
from random import Random
from typing import Any

from benchmarks.hostile_datasets import WORKLOAD, not_regular, record
from benchmarks.hostile_values import damaged, deep_text, seed_json, spoil, text, value, with_fault
from benchmarks.made_up import put_measured
from fleet.archive.backup import back_up
from fleet.archive.backup_folder import MANIFEST, OBJECTS, _sum_of
from fleet.models.registry import Registry
from fleet.models.registry_file import REGISTRY
from fleet.store.store import Store
from transfer.checked_folder import MANIFEST_NAME, TENSORS_NAME, sha256

VERSION = "v000001"


@cache
def _honest_models() -> Path:
    """A registry with one version that serves a device, made once a process."""
    from transfer.features.extractor import DEFAULT_SPEC
    from transfer.model.encoder import ModelSizes
    from transfer.model.fleet_tlp import FleetTLP, model_config

    folder = Path(tempfile.mkdtemp(prefix="hostile-models-")) / "models"
    sizes = ModelSizes(step_width=8, attention_heads=2, trunk_width=16, head_width=4)
    registry = Registry(folder)
    about = {"table_version": 1, "samples": 8, "onboarded": "board", "trained_workloads": ["0" * 16]}
    verdicts = {"board": {"reason": "better", "judged": {"top1": [0.8, 0.7, 0.9], "workloads": 3}}}
    model = FleetTLP(model_config(DEFAULT_SPEC, sizes), ("board",)).eval()
    version = registry.add(model, {**about, "verdicts": verdicts, "data_until": {"board": 1.7e9}})
    registry.publish(version, {"board": {"reason": "first"}})
    return folder


def make_models(rng: Random, folder: Path) -> None:
    """Write a hostile folder of models."""
    shutil.copytree(_honest_models(), folder)
    kind = rng.randrange(7)
    version = folder / VERSION
    manifest = json.loads((version / MANIFEST_NAME).read_text())
    if kind == 0:
        _faulty_registry(rng, folder / REGISTRY)
    elif kind == 1:
        not_regular(rng, folder)
    elif kind == 2:
        path = version / TENSORS_NAME
        path.write_bytes(damaged(rng, path.read_bytes()))
        manifest["tensors_sha256"] = sha256(path.read_bytes())
        (version / MANIFEST_NAME).write_text(json.dumps(manifest))
    elif kind == 3:
        manifest["model"]["sizes"] |= rng.choice(seed_json()["model_sizes"])
        manifest["model"] |= rng.choice(({}, *seed_json()["model_configs"]))
        if rng.random() < 0.2:
            manifest["heads"] = [str(number) for number in range(100_000)]
        (version / MANIFEST_NAME).write_text(json.dumps(manifest))
    elif kind == 4:
        key = rng.choice([*manifest, "data_until", "records", "created_at", "notes", "against_champion"])
        manifest[key] = rng.choice((None, [], [None], {"board": None}, "x", 1e300, -1, True, value(rng, 2)))
        (version / MANIFEST_NAME).write_bytes(deep_text(manifest))
    else:
        spoil(rng, version / MANIFEST_NAME)


def _faulty_registry(rng: Random, path: Path) -> None:
    """Put faults into the bytes or values of a registry, or anything in the place of its journal.

    `test_registry_faults` has the tables of other programs and journals that name other files.
    """
    kind = rng.randrange(3)
    if kind == 0:
        path.write_bytes(damaged(rng, path.read_bytes()))
    elif kind == 1:
        journal = path.with_name(path.name + "-journal")
        rng.choice((os.mkfifo, Path.mkdir, lambda path: path.write_bytes(rng.randbytes(4_616))))(journal)
    else:
        for _ in range(rng.choice((1, 3))):
            _other_value(rng, path)


def _other_value(rng: Random, path: Path) -> None:
    """Put another value into any column of a registry; in the JSON of some a fault, or any text."""
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.row_factory = sqlite3.Row
        table = rng.choice(("champion", "change"))
        row = dict(connection.execute(f"SELECT * FROM {table}").fetchone())
        column = rng.choice(list(row))
        if column in ("judged", "before", "earlier") and rng.random() < 0.7:
            fresh: Any = deep_text(with_fault(rng, json.loads(row[column] or "{}"))).decode(errors="replace")
        else:
            fresh = rng.choice(
                (text(rng), rng.randbytes(9), 1e300, 9e999, -1, 1 << 62, "v999999", "x" * 10**6)
            )
        with suppress(sqlite3.Error):  # a serial is a number, whatever is given
            connection.execute(f"UPDATE {table} SET {column} = ?", (fresh,))


@cache
def _honest_backup() -> Path:
    """A backup of a store of some records, made once a process."""
    folder = Path(tempfile.mkdtemp(prefix="hostile-backup-"))
    with Store.open(folder / "store") as store:
        put_measured(store, "board", [WORKLOAD], [record(number) for number in range(8)])
    back_up(folder / "store", folder / "backup")
    return folder / "backup"


def make_backup(rng: Random, folder: Path) -> None:
    """Write a hostile backup."""
    shutil.copytree(_honest_backup(), folder)
    kind = rng.randrange(5)
    path = folder / MANIFEST
    if kind == 0:
        not_regular(rng, folder)
    elif kind == 1:
        path = rng.choice(sorted((folder / OBJECTS).glob("*/*")))
        path.write_bytes(damaged(rng, path.read_bytes()))
    elif kind == 2:
        spoil(rng, path)
    else:
        whole = json.loads(path.read_text())
        del whole["sum"]
        if kind == 3:
            name = rng.choice(
                ("records/a\0b", "records/" + "a" * 5000, "records/\x1b[2J", "workloads/\ud800")
            )
            whole["files"][name] = next(iter(whole["files"].values()))
        else:
            whole = with_fault(rng, whole)
        try:
            told = _sum_of(whole)
        except (ValueError, TypeError, RecursionError):
            told = "none"
        path.write_bytes(deep_text({**whole, "sum": told} if isinstance(whole, dict) else whole))
