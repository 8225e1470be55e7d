"""The data card of a published dataset: what it holds, how it was measured, how far to trust it.

`fleet.datasets.publication` writes it as JSON for programs and, by a template, as Markdown for people.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib import metadata

import pyarrow as pa
import pyarrow.compute as pc

from agents.records import NOISE, Workload, WorkloadId, canonical_json
from fleet.datasets.dataset_files import FORMAT, FORMAT_KEY
from fleet.interchange.export_source import Source
from fleet.json_types import Json, JsonDict
from fleet.report.status import trust
from fleet.store.noise_columns import READING_COLUMNS

#: Columns whose values are counted.
_COUNTED = ("outcome", "origin", "protocol", "environment_id", "workload_id")
#: From this share on, records of drifting windows are named among the faults.
_MUCH_SUSPECT = 0.1


@dataclass(frozen=True, slots=True, kw_only=True)
class DatasetAbout:
    """What the publisher says of a dataset."""

    name: str
    #: Some sentences for people.
    about: str = ""
    #: The command that measured it.
    made_by: str = ""
    license: str = "Apache-2.0"
    #: What a user must know of it, one sentence each.
    faults: tuple[str, ...] = ()


def data_card(about: DatasetAbout, sources: Sequence[Source], now_secs: float) -> JsonDict:
    """Count what a dataset holds.

    Returns:
        JSON-ready: `name`, `about`, `license`, `made_by`, `created_at`, `records`, `candidates`, `workloads`,
        `table_version`, `devices` (by id: records by outcome and origin, suspect share, noise floor of the
        last A/A run, environments, target, processor), `operators`, `networks`, `protocols`, `faults`.
    """
    protocols: Counter[str] = Counter()
    used: Counter[str] = Counter()
    candidates: list[pa.Array] = []
    devices: JsonDict = {}
    for source in sources:
        counts: dict[str, Counter[str]] = {name: Counter() for name in _COUNTED}
        devices[str(source.device_id)] = _facts(source, counts, candidates)
        protocols.update(counts["protocol"])
        used.update(counts["workload_id"])
    workloads_by_id = sources[0].workloads
    workloads = [
        workloads_by_id[workload_id]
        for workload_id in map(WorkloadId, sorted(used))
        if workload_id in workloads_by_id
    ]
    operators: Counter[str] = Counter()
    for name, count in used.items():
        workload = workloads_by_id.get(WorkloadId(name))
        operators["not known" if workload is None else workload.operator] += count
    distinct = pc.unique(pa.chunked_array(candidates, pa.string()))
    return {
        FORMAT_KEY: FORMAT,
        "name": about.name,
        "about": about.about,
        "license": about.license,
        "made_by": about.made_by,
        "published_with": f"tensor-fleet {metadata.version('tensor-fleet')}",
        "created_at": datetime.fromtimestamp(now_secs, UTC).isoformat(timespec="seconds"),
        "table_version": sources[0].reader.version,
        "records": sum(device["records"] for device in devices.values()),
        "candidates": len(distinct),
        "workloads": len(workloads),
        "devices": devices,
        "operators": _operators(workloads, operators),
        "networks": dict(sorted(Counter(n for workload in workloads for n, _ in workload.networks).items())),
        "protocols": [
            {"records": count, "protocol": json.loads(text)} for text, count in protocols.most_common()
        ],
        "faults": [*about.faults, *_faults(devices)],
    }


def card_text(card: Json, size_bytes: int) -> str:
    """The card that `data_card` made as Markdown, with the size of the file of records."""
    from fleet.report.model_card import card_environment

    environment = card_environment()
    environment.filters |= {"json": canonical_json, "counts": _counts, "share": _share}
    return environment.get_template("data_card.md").render(card=card, mib=f"{size_bytes / 2**20:.1f}")


def _facts(source: Source, counts: Mapping[str, Counter[str]], candidates: list[pa.Array]) -> JsonDict:
    """What the card says of a device, by one pass over its rows.

    Args:
        source: The device.
        counts: Get its records by the values of `_COUNTED`.
        candidates: Get their ids, in pieces; one may stand in several.
    """
    first, last = float("inf"), float("-inf")

    def batches() -> Iterator[pa.RecordBatch]:
        nonlocal first, last
        for batch in source.batches(tuple(dict.fromkeys((*READING_COLUMNS, *_COUNTED)))):
            for name, counter in counts.items():
                value_counts = pc.value_counts(batch.column(name)).to_pylist()
                counter.update({entry["values"]: entry["counts"] for entry in value_counts})
            candidates.append(pc.unique(batch.column("candidate_id")))
            times = pc.min_max(batch.column("measured_at")).as_py()
            first, last = min(first, times["min"]), max(last, times["max"])
            yield batch

    quality = trust(source.device_id, batches())
    spec, descriptor = source.spec, source.descriptor
    return {
        "records": counts["outcome"].total(),
        "outcomes": dict(sorted(counts["outcome"].items())),
        "origins": dict(sorted(counts["origin"].items())),
        **{
            name: quality[name] for name in ("candidates", "quarantined", "suspect", "suspect_share", "noise")
        },
        "environments": len(counts["environment_id"]),
        "first_at": first,
        "last_at": last,
        "family": None if spec is None else str(spec.family),
        "target": None if spec is None else spec.target,
        "threads": None if spec is None else spec.threads,
        "host": None if descriptor is None else descriptor.host,
        "processor": None if descriptor is None else descriptor.cpu_model,
        "kernel": None if descriptor is None else descriptor.kernel,
        "software": {} if descriptor is None else dict(descriptor.versions),
    }


def _operators(workloads: Sequence[Workload], records: Mapping[str, int]) -> dict[str, dict[str, int]]:
    counts = Counter(workload.operator for workload in workloads)
    return {
        operator: {"workloads": counts.get(operator, 0), "records": records[operator]}
        for operator in sorted(records, key=lambda operator: (-records[operator], operator))
    }


def _faults(devices: Mapping[str, Json]) -> list[str]:
    """What the numbers themselves warn of."""
    faults = []
    for name, card in devices.items():
        if card["noise"] is None:
            why = "drifted in its last A/A run" if card["origins"].get(NOISE) else "has no A/A run"
            faults.append(f"{name} {why}: how far its numbers repeat is not known.")
        if (card["suspect_share"] or 0.0) >= _MUCH_SUSPECT:
            faults.append(
                f"{card['suspect_share']:.1%} of the records of {name} are suspect: it drifted meanwhile."
            )
        if card["environments"] > 1:
            faults.append(
                f"{name} was measured in {card['environments']} environments; compare records of one only."
            )
    return faults


def _share(value: float | None) -> str:
    return "not known" if value is None else f"{value:.1%}"


def _counts(values: Mapping[str, int]) -> str:
    return ", ".join(f"{name} {count:,}" for name, count in values.items()) or "none"
