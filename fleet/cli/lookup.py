"""Verbs that look something up: `fleet show` and `workloads`.

Registered by `fleet.cli.app`. They read only, and take no lock. Nothing heavy is loaded before a verb runs.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fleet.api.client import ask
from fleet.cli.models import show as show_version
from fleet.cli.options import DEFAULT_MODELS, ModelsOption, StoreSettings
from fleet.cli.output import JsonOption, print_json, short_moment
from fleet.errors import FleetError
from fleet.json_types import JsonDict
from fleet.terminal_text import print_rows, print_text, say_text

if TYPE_CHECKING:
    from agents.records import Record, Workload, WorkloadId
    from fleet.coverage.lookup import FoundId
    from fleet.store.reader import StoreReader

#: Workloads that are listed unless more are asked for.
_LISTED = 40
#: No upper bound.
_ANY = float("inf")


def show(
    name: Annotated[
        str,
        typer.Argument(metavar="ID", help="Id of a record, candidate, workload, model version or request."),
    ],
    settings: StoreSettings,
    script: Annotated[
        bool, typer.Option("--script", help="Print a Python script that builds and times the candidate.")
    ] = False,
    models: ModelsOption = DEFAULT_MODELS,
    as_json: JsonOption = False,
) -> None:
    """Show a record, candidate, workload, model version or request by its id.

    Six characters of a record's or candidate's id are enough.

    Example: fleet show 3f9c2a --script > reproduce.py
    """
    from fleet.coverage.lookup import find
    from fleet.store.store import Store

    if (models / name).is_dir():
        show_version(name, models, as_json=as_json)
        return
    for request in ask(Path(settings.daemon.root), "/v1/requests") or []:
        if request["id"] == name:
            print_json(request)
            return
    path = Path(settings.store.path)
    reader = Store.read(path)
    match = find(reader, name)
    if match is None:
        raise FleetError(
            f"nothing is named {name!r}: looked for a model version in {models}, a request of a daemon, and "
            f"a record, candidate or workload in {path} (at least six characters of its id)"
        )
    if script:
        say_text(_script(reader, match))
    elif as_json:
        print_json(_as_json(match))
    else:
        _print(match)


def _script(reader: StoreReader, match: FoundId) -> str:
    from agents.records import Candidate
    from fleet.coverage.lookup import MeasuredOn, reproducer

    name = f"{match.kind} {match.id}"
    if not match.records:
        raise FleetError(f"{name} has no schedule: a script is made of a candidate or a record")
    first = match.records[0]
    candidate = Candidate(workload_id=first.workload_id, trace=first.trace, dialect=first.dialect)
    measurements = (
        MeasuredOn(device_id=record.device_id, origin=record.origin, protocol=record.protocol)
        for record in match.records
    )
    try:
        return reproducer(reader, candidate, measurements)
    except FleetError as error:
        raise FleetError(f"{name} gets no script: {error}") from error


def _as_json(match: FoundId) -> JsonDict:
    from agents.records import as_json_dict

    workload = as_json_dict(match.workload) if match.workload else None
    if workload:
        del workload["module_json"]
    value: JsonDict = {"kind": match.kind, "id": match.id, "workload": workload}
    if match.counts is not None:
        return value | {"records_by_device": match.counts}
    return value | {
        "trace": match.records[0].trace,
        "records": [
            {
                "record_id": record.record_id,
                **{key: of for key, of in as_json_dict(record).items() if key != "trace"},
            }
            for record in match.records
        ],
    }


def _print(match: FoundId) -> None:
    workload = match.workload
    rows = [("workload", f"{workload.name} ({workload.workload_id})" if workload else "not in the store")]
    if workload:
        rows.append(("flops", f"{workload.flops:.4g}"))
        rows.append(
            ("networks", ", ".join(f"{name} ({count})" for name, count in workload.networks) or "none")
        )
    if match.counts is not None:
        rows += [(f"records on {name}", f"{count:,}") for name, count in sorted(match.counts.items())]
    elif match.records:
        first = match.records[0]
        rows += [
            ("candidate", first.candidate_id),
            ("dialect", first.dialect),
            ("trace", _trace(first.trace)),
        ]
    print_rows((match.kind, match.id), rows)
    if not match.records:
        return
    print_rows(
        ("record", "device", "outcome", "best", "repeats", "reason", "measured"),
        map(_cells, match.records),
    )
    for record in match.records:
        if record.error:
            print_text(f"{record.record_id[:12]}: {record.error.strip()}")


def _cells(record: Record) -> tuple[object, ...]:
    best = f"{min(record.run_secs) * 1e3:.4g} ms" if record.run_secs else "-"
    notes = record.origin + (", suspect" if record.is_suspect else "")
    moment = short_moment(record.measured_at)
    repeats = len(record.run_secs)
    return (record.record_id[:12], record.device_id, record.outcome, best, repeats, notes, moment)


def _trace(trace: str) -> str:
    """How long a trace is; programs get the text itself (`--json`)."""
    try:
        return f"{len(json.loads(trace)[0])} instructions; --json and --script show them"
    except (ValueError, LookupError, TypeError):
        return f"{len(trace):,} characters; --json shows them"


def workloads(
    settings: StoreSettings,
    contains: Annotated[
        str,
        typer.Argument(
            metavar="TEXT", help="Only workloads with this text in name, id, operator or network."
        ),
    ] = "",
    network: Annotated[
        list[str] | None,
        typer.Option(
            "--network", help="List the workloads of this network instead of the store's; may be given again."
        ),
    ] = None,
    operator: Annotated[
        list[str] | None, typer.Option("--operator", help="Only this operator; may be given again.")
    ] = None,
    min_flops: Annotated[
        float, typer.Option(min=0, help="Only workloads with this many FLOPs or more.")
    ] = 0.0,
    max_flops: Annotated[
        float, typer.Option(min=0, help="Only workloads with this many FLOPs or fewer.")
    ] = _ANY,
    count: Annotated[
        int | None, typer.Option(min=1, help="Choose this many of them, as a collection chooses.")
    ] = None,
    limit: Annotated[int, typer.Option(min=1, help="List at most this many.")] = _LISTED,
    as_json: JsonOption = False,
) -> None:
    """List tensor programs, with the number of records of each, and count them by operator.

    Lists the programs of the store, or with --network the programs of networks, which need no store. A
    network is a built-in name, a file, transformers:NAME, or `corpus` for the whole set of architectures.

    Example: fleet workloads C2D --limit 10

    fleet workloads --network corpus --operator depthwise_conv2d --max-flops 2.5e7
    """
    from fleet.planner.selection import choose_workloads
    from fleet.report.words import counted

    where, listed, counts = _listed(network, settings)
    fit = [
        workload
        for workload in listed
        if _has(workload, contains)
        and min_flops <= workload.flops <= max_flops
        and (not operator or workload.operator in operator)
    ]
    if count is not None:
        fit = choose_workloads(fit, count=count)
    described = [_described(workload, counts) for workload in fit]
    described.sort(key=lambda row: (-row["records"], row["workload"]))
    if as_json:
        print_json(described)
        return
    rows = [
        (
            row["workload"],
            row["operator"],
            f"{row['records']:,}",
            f"{row['flops'] / 1e6:,.3g}",
            len(row["networks"]) if network else ", ".join(row["networks"]),
            row["workload_id"],
        )
        for row in described[:limit]
    ]
    columns = ("workload", "operator", "records", "MFLOP", "networks", "id")
    print_rows(columns, rows, narrow=columns)
    by_operator = _counts_by_operator(fit)
    print_rows(
        ("operator", "workloads", "networks", "MFLOP"),
        [
            (
                name,
                f"{group['workloads']:,}",
                f"{group['networks']:,}",
                f"{group['min_flops'] / 1e6:,.3g} to {group['max_flops'] / 1e6:,.3g}",
            )
            for name, group in by_operator.items()
        ],
    )
    more = f", the first {limit} of them shown; --limit shows more" if len(described) > limit else ""
    workload_count, operators = counted(len(described), "workload"), counted(len(by_operator), "operator")
    print_text(f"{workload_count} in {where}, {operators}{more}")


def _has(workload: Workload, text: str) -> bool:
    """Whether the name, operator, id or a network of a workload has some text, in any case."""
    networks = (name for name, _ in workload.networks)
    words = (workload.name, workload.operator, workload.workload_id, *networks)
    return text.lower() in " ".join(words).lower()


def _described(workload: Workload, records: dict[WorkloadId, int]) -> JsonDict:
    """A workload as `fleet workloads --json` prints it."""
    return {
        "workload": workload.name,
        "workload_id": workload.workload_id,
        "operator": workload.operator,
        "flops": workload.flops,
        "arg_shapes": [list(shape) for shape in workload.arg_shapes],
        "networks": dict(workload.networks),
        "records": records.get(workload.workload_id, 0),
    }


def _counts_by_operator(workloads: list[Workload]) -> dict[str, dict[str, float]]:
    """Of each operator: `workloads`, `networks` that run them, least and most FLOPs; most common first."""
    groups: dict[str, list[Workload]] = {}
    for workload in workloads:
        groups.setdefault(workload.operator, []).append(workload)
    return {
        operator: {
            "workloads": len(group),
            "networks": len({name for workload in group for name, _ in workload.networks}),
            "min_flops": min(workload.flops for workload in group),
            "max_flops": max(workload.flops for workload in group),
        }
        for operator, group in sorted(groups.items(), key=lambda item: (-len(item[1]), item[0]))
    }


def _listed(
    networks: list[str] | None, settings: StoreSettings
) -> tuple[str, list[Workload], dict[WorkloadId, int]]:
    """Where the workloads are from, they themselves, and how many records of each there are."""
    if networks:
        from agents.networks.network_name import networks_here
        from agents.networks.reader import workloads_of_networks
        from agents.records import Family

        names = networks_here(networks) or []
        return ", ".join(networks), workloads_of_networks(names, Family.CPU), {}
    import pyarrow.compute as pc

    from fleet.store.store import Store

    path = Path(settings.store.path)
    reader = Store.read(path)
    counts: dict[WorkloadId, int] = {}
    for _, batch in reader.columns(["workload_id"]):
        for value_count in pc.value_counts(batch.column(0)).to_pylist():
            workload_id = value_count["values"]
            counts[workload_id] = counts.get(workload_id, 0) + value_count["counts"]
    return str(path), list(reader.workloads().values()), counts
