"""What the published features of TLP leave out of a store's candidates. Used by `benchmarks.learning`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

from agents.records import Candidate
from fleet.models.versions import DatasetSnapshot, published_layout
from fleet.store.reader import StoreReader
from transfer.features.extractor import Extractor
from transfer.features.published_features import step_vector
from transfer.language.to_ansor import to_ansor_steps

#: Kinds that are listed.
_LISTED = 8


def lost_by_published(reader: StoreReader, snapshot: DatasetSnapshot) -> dict[str, Any]:
    """Count what published TLP never sees of the candidates of a snapshot.

    Returns:
        `primitives` of all schedules; `no_step`: shares of them without a step of Ansor's, all and by kind;
        `behind_the_last_row`: share that lies behind the last row; `fields_cut`: share of the fields of the
        rows kept; `schedules_cut`: share of schedules with a step behind the last row.
    """
    layout = published_layout([snapshot.devices[snapshot.dataset.device_ids[0]][0]])
    read = Extractor().read
    no_step: Counter[str] = Counter()
    primitives = behind = fields = fields_cut = schedules = schedules_cut = 0
    for one in candidates_of(reader, snapshot):
        sequence = read(one, snapshot.workloads[one.workload_id])
        steps = to_ansor_steps(sequence, no_step)
        widths = [len(step_vector(step, layout)) for step in steps[: layout.steps]]
        primitives += len(sequence)
        behind += len(steps) - len(widths)
        fields += sum(widths)
        fields_cut += sum(max(0, width - layout.width) for width in widths)
        schedules += 1
        schedules_cut += len(steps) > layout.steps
    return {
        "primitives": primitives,
        "no_step": {
            "all": _share(no_step.total(), primitives),
            **{kind: _share(count, primitives) for kind, count in no_step.most_common(_LISTED)},
        },
        "behind_the_last_row": _share(behind, primitives),
        "fields_cut": _share(fields_cut, fields),
        "schedules_cut": _share(schedules_cut, schedules),
    }


def as_sentence(lost: dict[str, Any]) -> str:
    """For people, above the tables."""
    shares = lost["no_step"]
    kinds = ", ".join(f"{kind} {share:.1%}" for kind, share in shares.items() if kind != "all")
    return (
        f"Of {lost['primitives']:,} primitives the published features have no row for {shares['all']:.1%} "
        f"({kinds}), and cut {lost['behind_the_last_row']:.1%} behind the last row, of "
        f"{lost['schedules_cut']:.0%} of the schedules. Of the fields of the rows they cut "
        f"{lost['fields_cut']:.1%}."
    )


def _share(part: int, whole: int) -> float:
    return round(part / whole, 4) if whole else 0.0


def candidates_of(reader: StoreReader, snapshot: DatasetSnapshot) -> Iterator[Candidate]:
    """Each candidate of the dataset once, from the first row that holds it."""
    missing = set(snapshot.dataset.candidate_ids)
    names = ("candidate_id", "workload_id", "trace", "dialect")
    for _, batch in reader.columns(
        names, device_ids=snapshot.dataset.device_ids, version=snapshot.table_version
    ):
        for row, candidate_id in enumerate(batch.column("candidate_id").to_pylist()):
            if candidate_id in missing:
                missing.remove(candidate_id)
                yield Candidate(**{name: batch.column(name)[row].as_py() for name in names[1:]})
