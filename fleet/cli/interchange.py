"""Verbs that exchange measurements with other tools: `fleet import` and `fleet export`.

Registered by `fleet.cli.app`. Each verb reads settings, calls the module that does the step, and prints what
came of it, as one JSON value with `--json`. Loads nothing heavy before a verb runs.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from fleet.cli.options import KnownDevicesOption, StoreSettings, say_places
from fleet.cli.output import JsonOption, print_json
from fleet.cli.request_command import request_command
from fleet.daemon.engine_options import EngineOptions
from fleet.errors import FleetError
from fleet.requests.import_logs import ImportLogs
from fleet.terminal_text import print_rows, print_text


@request_command(ImportLogs)
def import_(request: ImportLogs, options: EngineOptions, as_json: bool) -> None:
    """Have logs imported and print what they held."""
    from fleet.daemon.embedded import run
    from fleet.interchange.line_reader import tools

    settings = options.read()
    say_places(settings, options.config, options.store)
    report = run(request, options)
    if report is None:
        return
    if as_json:
        print_json(report)
    else:
        _print_import(report, settings.store.path)
    if not any(report[key] for key in ("imported", "duplicates", "files_known")):
        *others, last = tools()
        raise FleetError(
            f"no measurement in {', '.join(request.paths)}: expected files of "
            f"{', '.join(others)} or {last}; docs/import.md shows each"
        )


def _print_import(report: Mapping[str, Any], store: str) -> None:
    from fleet.interchange.import_report import NO_MEASUREMENTS

    seconds = f"{report['seconds']:.1f} s"
    if report["lines_per_s"]:
        seconds += f", {report['lines_per_s']:,.0f} lines/s"
    rows = [("lines", f"{report['lines']:,}", f"{report['files']} files, {seconds}")]
    rows.append(("imported", f"{report['imported']:,}", "new records"))
    earlier_files = f", {report['files_known']} files were imported before" if report["files_known"] else ""
    rows.append(("duplicates", f"{report['duplicates']:,}", f"the store has them{earlier_files}"))
    reasons = sorted(report["rejected_by_reason"].items(), key=lambda item: (-item[1], item[0]))
    for reason, count in reasons:
        rows.append(("not meant" if reason in NO_MEASUREMENTS else "rejected", f"{count:,}", reason))
    print_rows((f"device {report['device']}", "", ""), rows)
    for reason, _ in reasons:
        if reason in report["first_examples"] and reason not in NO_MEASUREMENTS:
            print_text(f"first {reason}: {report['first_examples'][reason]}")
    print_text(f"measurements: {_joined(report['dialects']) or 'none'}")
    print_text(f"outcomes: {_joined(report['outcomes']) or 'none'}")
    if report["networks"]:
        print_text(f"networks: {', '.join(report['networks'])}")
    if report["described_by"]:
        print_text(
            f"workloads: {report['workloads_new']:,} new; device described by {report['described_by']}"
            f" ({', '.join(report['targets'])})"
        )
    for path, damage in report["damaged"].items():
        print_text(f"damaged: {path}: {damage}; what came before the damage was imported")
    if skipped := report["files_skipped"]:
        rest = f" and {len(skipped) - 5} more" if len(skipped) > 5 else ""
        print_text(f"not logs: {', '.join(Path(path).name for path in skipped[:5])}{rest}")
    print_text(f"store {store}, table version {report['table_version']}")


def _joined(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{name} {count:,}" for name, count in sorted(counts.items(), key=lambda item: -item[1]))


#: The keys of `fleet.interchange.export_store.FORMATS`, which help must not load.
ExportFormat = Literal[
    "parquet", "meta_schedule", "ansor", "autotvm", "kernel_tuner", "t4", "triton", "helion"
]


def export(
    destination: Annotated[Path, typer.Argument(help="File or folder to write.")],
    settings: StoreSettings,
    form: Annotated[ExportFormat, typer.Option("--format", help="Format of the files.")] = "parquet",
    device: KnownDevicesOption = None,
    replace: Annotated[bool, typer.Option("--replace", help="Replace an earlier export there.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Write records in the format of another tool; the store stays as it is.

    Example: fleet export out/board-7.parquet --device board-7
    """
    from fleet.interchange.export_store import export as export_records
    from fleet.store.store import Store

    reader = Store.read(settings.store.path)
    result = export_records(reader, destination, form, tuple(device or ()), replace=replace)
    if as_json:
        print_json(asdict(result))
        return
    rows = [("written", f"{result.records:,}", ", ".join(map(str, result.files[:3])))]
    if len(result.files) > 3:
        rows.append(("", "", f"and {len(result.files) - 3} more files"))
    rows += [("left out", f"{count:,}", reason) for reason, count in result.skipped.items()]
    print_rows((f"records as {form}", "", ""), rows)
    print_text(f"store {settings.store.path}, table version {result.table_version}")
