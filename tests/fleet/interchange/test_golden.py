"""Logs of every dialect (`golden/CASE/logs`), and all that becomes of them (`golden/CASE/expected.json`).

`python -m tests.fleet.interchange.test_golden` writes the expectations anew, after a change that is meant.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterable
from operator import itemgetter
from pathlib import Path
from typing import Any

import pytest

from agents.records import Candidate, as_json_dict
from fleet.interchange.export_store import export
from fleet.store.store import Store
from tests.log_fixtures import records, run
from tests.table_fixtures import rows

GOLDEN = Path(__file__).parent / "golden"
#: Formats that the records of each case are exported in, its own first.
FORMS = {
    case: forms.split()
    for case, forms in rows("""
        ansor                -> ansor
        ansor_earlier        -> ansor
        autotvm              -> autotvm
        autotvm_arm          -> autotvm
        helion               -> helion t4
        helion_shapes        -> helion
        kernel_tuner         -> kernel_tuner t4
        kernel_tuner_bare    -> kernel_tuner
        kernel_tuner_forms   -> kernel_tuner
        meta_schedule        -> meta_schedule
        meta_schedule_alone  -> ansor
        meta_schedule_apart  ->
        meta_schedule_faulty -> meta_schedule
        miopen               ->
        names_behind         -> t4
        t4                   -> t4 kernel_tuner
        triton               -> triton t4
        triton_keys          -> triton
    """)
}


#: Of a report.
COUNTED = (
    *("targets", "lines", "imported", "duplicates", "rejected_by_reason"),
    *("dialects", "outcomes", "networks"),
)


def listed(values: Iterable[Any], *keys: str) -> list[dict[str, Any]]:
    """Values as JSON has them, ordered by some keys."""
    return sorted(map(as_json_dict, values), key=itemgetter(*keys))


def imported(case: str, folder: Path) -> dict[str, Any]:
    """What an import of a case's logs leaves in the store of a folder."""
    report = run(folder, GOLDEN / case / "logs").to_json()
    store = Store.read(folder / "store")
    entry = store.devices()["dev-a"]
    return {
        "report": {name: report[name] for name in COUNTED},
        "device": [as_json_dict(entry.spec), as_json_dict(entry.descriptor)],
        "workloads": listed(store.workloads().values(), "workload_id"),
        "records": listed(records(folder), "candidate_id", "attempt"),
    }


def exported(folder: Path, form: str) -> dict[str, Any]:
    """What an export of a folder's store in some format writes, and what it leaves out."""
    out = folder / form
    result = export(Store.read(folder / "store"), out, form)
    files = {str(path.relative_to(out)): path.read_text() for path in result.files}
    return {"records": result.records, "skipped": dict(result.skipped), "files": files}


def everything(case: str, folder: Path) -> dict[str, Any]:
    """Import and exports of a case."""
    return imported(case, folder) | {"exports": {form: exported(folder, form) for form in FORMS[case]}}


@pytest.mark.parametrize("case", FORMS)
def test_a_log_becomes_the_same_records_and_these_the_same_files(case: str, tmp_path: Path) -> None:
    expected = json.loads((GOLDEN / case / "expected.json").read_text())
    assert json.loads(json.dumps(everything(case, tmp_path))) == expected
    for record in records(tmp_path):  # the importer makes ids its own, faster way
        by_name = Candidate(workload_id=record.workload_id, trace=record.trace, dialect=record.dialect)
        assert record.candidate_id == by_name.candidate_id
    for form, written in expected["exports"].items():
        again = tmp_path / f"again {form}"
        again.mkdir()
        report = run(again, tmp_path / form)
        assert (report.rejected, report.imported) == (0, written["records"])
        if case != "meta_schedule_alone":  # its records leave as lines of another tuner
            before = {record.record_id: record for record in records(tmp_path)}
            after = {record.record_id: record for record in records(again)}
            assert after == {name: before[name] for name in after}
            assert len(before) - len(after) == sum(written["skipped"].values())


def write_all() -> None:
    """Write what is expected of every case."""
    for case in FORMS:
        with tempfile.TemporaryDirectory() as folder:
            text = json.dumps(everything(case, Path(folder)), indent=1, sort_keys=True)
        (GOLDEN / case / "expected.json").write_text(text + "\n")


if __name__ == "__main__":
    write_all()
