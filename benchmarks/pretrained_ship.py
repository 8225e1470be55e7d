"""The figures of `benchmarks.pretrained`, and the model that comes with the program and expects them.

`ship` trains on everything that is not held out for judging, and writes what the wheel carries, with a card.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from agents.records import DeviceId, as_json_dict, canonical_json
from benchmarks.harness import stopwatch
from benchmarks.onboarding_curve import RANDOM, Point
from benchmarks.onboarding_parts import CurveTable
from benchmarks.tables import interval, markdown_table, write_page
from fleet.json_types import Json, JsonDict
from fleet.models.shipped_model import DEVICES_NAME, SHIPPED_KEY, ShippedDevice
from fleet.models.training import divide
from fleet.models.versions import (
    DatasetSnapshot,
    learnable,
    load_snapshot,
    manifest_of,
    train_config,
    training_provenance,
)
from fleet.onboarding.fingerprint import known_fingerprints
from fleet.store.store import Store
from transfer.adapt.base import Regime, without_device
from transfer.adapt.nearest import ORIGIN
from transfer.arrays import Rows
from transfer.data.dataset import Dataset
from transfer.model import checkpoint
from transfer.model.fleet_tlp import FleetTLP
from transfer.train.rows import TrainConfig
from transfer.train.training import train

#: Samples of the new profile that every case has.
SAMPLES = 64
#: Stands for all samples there are.
ALL = "all"
#: Contenders whose name in a gain is longer.
_SPOKEN = {"few": "store_only", "elsewhere": "other_processors"}


def figures(points: Sequence[Point], samples: Sequence[int]) -> JsonDict:
    """Means over all judged workloads of all cases, with 90 % intervals over workloads, and paired gains.

    Gains are of the shipped model's way over each contender that was there.
    """
    table = CurveTable(points=points, strategies=(), default="shipped")

    def of(name: str, k: int | None, *measure: str, **less: Any) -> list[float] | None:
        return interval(table.estimate(Regime.BOTH_NEW, name, k, *measure, **less))

    result: JsonDict = {}
    there = dict.fromkeys((point.contender, point.k) for point in points)
    for name, k in there:
        if name == "own":
            # What samples of a group's own workloads add on its other ones, in the cases that have so many.
            result[f"gain_of_{k or ALL}_own_samples"] = of(name, k, less=("shipped", 0))
            continue
        result[f"top1_{name}_k{k or 0}"] = of(name, k)
        if name in ("shipped", "elsewhere"):
            result[f"top5_{name}_k{k}"] = of(name, k, "top5")
        if name not in ("shipped", RANDOM) and ("shipped", k) in there:
            gain = of("shipped", k, less=name)
            result[f"gain_over_{_SPOKEN.get(name, name)}{f'_k{k}' if k else ''}"] = gain
    result["judged"] = sum(len(one.groups) for one in points if (one.contender, one.k) == ("shipped", 0))
    for k in (0, *samples):
        result[f"top1_k{k}"] = (result[f"top1_shipped_k{k}"] or [None])[0]
        if k:
            result[f"gain_of_{k}_samples"] = of("shipped", k, less=("shipped", 0))
    return result


def expectations(found: Json, profiles: int, contender: str = "shipped") -> JsonDict:
    """What a contender's first head is worth, by number of samples, as `ShippedModel.expected` has it.

    Empty where that contender was not there.
    """
    if f"top1_{contender}_k0" not in found:
        return {}
    unseen = {"unseen": "processor"} if contender == "elsewhere" else {}

    def measured(name: str, k: int) -> JsonDict:
        value, *ends = found[f"{name}_{contender}_k{k}"]
        return {name: value, f"{name}_interval": ends}

    return {
        str(k): {
            **unseen,
            **measured("top1", k),
            **measured("top5", k),
            "workloads": found["judged"],
            "devices": profiles,
            "samples": k,
            "regime": Regime.BOTH_NEW.value,
        }
        for k in (0, SAMPLES)
    }


#: Of the shipped model.
_TREES = 1200


@dataclass(frozen=True, kw_only=True)
class ShippedAbout:
    """What is said of a model that is shipped."""

    name: str
    #: Published datasets that it learnt from, and the sum that stands for each.
    datasets: Mapping[str, str]
    #: Models of the processors that measured them.
    processors: Sequence[str]
    #: Figures by number of samples (`ShippedModel.expected`).
    expected: Json
    #: The same where no processor of that model had measured; empty where all measured on one.
    expected_elsewhere: Json = field(default_factory=dict)


def train_model(
    view: Dataset, snapshot: DatasetSnapshot, rows: Rows, devices: Sequence[str], seed: int, epochs: int
) -> FleetTLP:
    """A model of some rows; with many workloads a tenth of them tells when to stop, as in `fleet train`."""
    learn, held = divide(replace(snapshot, dataset=view), seed, rows)
    return train(view, learn, config=_config(epochs), seed=seed, devices=devices, validation_rows=held).model


def _config(epochs: int) -> TrainConfig:
    """As `fleet train` trains, with as many trees as a thousand workloads can teach (decision 49)."""
    return replace(train_config(epochs), device="cpu", lends=True, trees=_TREES)


def write_shipped(
    folder: Path, model: FleetTLP, manifest: Json, devices: Mapping[DeviceId, ShippedDevice]
) -> None:
    """Write a model with a head for each of some devices as it is shipped; the folder must not be there.

    The manifest is as of versions, with the model's name under `SHIPPED_KEY`, and `expected`; also
    `expected_elsewhere` where processors of several models measured (`ShippedModel.expected`).
    """
    entries = {
        str(name): {
            "spec": as_json_dict(device.spec),
            "descriptor": as_json_dict(device.descriptor),
            "fingerprint": {str(program): secs for program, secs in device.fingerprint.items()},
        }
        for name, device in devices.items()
    }
    checkpoint.save(folder, model, manifest, beside={DEVICES_NAME: canonical_json(entries).encode()})


def ship(
    store: Path,
    folder: Path,
    about: ShippedAbout,
    epochs: int,
    rows: Rows | None = None,
    *,
    without: str = "",
    seed: int = 0,
) -> JsonDict:
    """Train and write.

    Args:
        store: With the dataset, opened.
        folder: To write; must not be there.
        about: What is said of it.
        epochs: Passes over the data.
        rows: That it learns from; all that are not held out for judging if not given.
        without: A device that it learns nothing of.
        seed: Of the training.

    Returns:
        `bytes`, `parameters`, `fingerprints` by device, `secs`.
    """
    reader = Store.read(store)
    snapshot = load_snapshot(reader)
    dataset = without_device(snapshot.dataset, without) if without else snapshot.dataset
    open_rows, kept_out = learnable(snapshot) if rows is None else (rows, True)
    names = [one for one in dataset.device_ids if one != without]
    elapsed = stopwatch()
    model = train_model(dataset, snapshot, open_rows, names, seed, epochs)
    secs = elapsed()
    # Only the first device of the store met the reference programs as new candidates.
    programs = {
        one.candidate_id for name in names for one in reader.records(device_id=name) if one.origin == ORIGIN
    }
    prints = {one.device_id: one.latency_secs for one in known_fingerprints(reader, names, programs)}
    devices = {
        one: ShippedDevice(
            spec=snapshot.devices[one][0],
            descriptor=snapshot.devices[one][1],
            fingerprint=prints.get(one, {}),
        )
        for one in names
    }
    told = manifest_of(
        snapshot, seed=seed, config=asdict(_config(epochs)), seconds=secs, sources=model.device_ids
    )
    told |= training_provenance(dataset, open_rows, names, {}, holds_out=bool(kept_out))
    told |= {SHIPPED_KEY: about.name, "datasets": dict(about.datasets)}
    told["expected"] = dict(about.expected)
    if about.expected_elsewhere:
        told["expected_elsewhere"] = dict(about.expected_elsewhere)
    write_shipped(folder, model, told, devices)
    write_page(folder / "README.md", card(about, told))
    return {
        "bytes": sum(one.stat().st_size for one in folder.iterdir()),
        "parameters": sum(one.numel() for one in model.parameters()),
        "fingerprints": {str(one): len(its.fingerprint) for one, its in devices.items()},
        "secs": secs,
    }


def card(about: ShippedAbout, told: Json) -> list[str]:
    """The lines of the model card, as Markdown."""
    measured = sum(told["records"].values())
    facts = [
        *(("dataset", f"{name}, SHA-256 {sha256}") for name, sha256 in about.datasets.items()),
        ("learnt from", f"{measured:,} latencies of {len(told['trained_workloads'])} workloads"),
        ("heads", ", ".join(told["trained_heads"])),
        ("licence", "Apache-2.0"),
        (
            "made by",
            "`python -m benchmarks.pretrained --dataset DATASET [--dataset ANOTHER] --ship FOLDER`",
        ),
    ]
    lines = [
        f"# Model {about.name}",
        "",
        "A FleetTLP: shared backbone, a head for each device, boosted trees. It comes with tensor-fleet, "
        "as the first source of heads on machines without a model.",
        "",
        *markdown_table(("fact", "value"), facts),
        "",
        "Each profile and each fifth of the architectures was held out together. Top-1 is the speed of "
        "the first choice over the best, on programs that nobody had measured:",
        "",
        *_figures_table(about.expected),
        "",
    ]
    if about.expected_elsewhere:
        lines += ["The same on a processor of which no device had measured anything:", ""]
        lines += [*_figures_table(about.expected_elsewhere), ""]
    lines.append(
        f"It has seen {' and '.join(about.processors)}, one thread, programs of 0.01 to 10 ms. Elsewhere "
        "expect less, and measure samples."
    )
    return lines


def _figures_table(expected: Json) -> list[str]:
    rows = [
        (k, f"{one['top1']:.3f}", "{:.3f} to {:.3f}".format(*one["top1_interval"]), f"{one['top5']:.3f}")
        for k, one in sorted(expected.items(), key=lambda item: int(item[0]))
        if "top5" in one
    ]
    return markdown_table(("samples of the new device", "top-1", "90 % interval", "top-5"), rows)
