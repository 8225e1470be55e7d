"""A child process that takes network files of strangers through their check, and through the real reader.

Started by `benchmarks.hostile_run` like `benchmarks.hostile_child`, whose loop it runs.
"""

from __future__ import annotations

import io
from dataclasses import replace
from typing import Any

from agents.networks.archive import rewrite_archive
from agents.networks.network_name import NetworkRefusedError
from agents.networks.reader import ask
from agents.records import Family
from benchmarks.hostile_child import main
from benchmarks.hostile_files import Case
from benchmarks.hostile_networks import make_archive
from benchmarks.hostile_run import Question
from benchmarks.hostile_stages import Work

#: Archives of a run.
FILES = 600
#: Archives that one confined process reads: it takes some ten seconds to start.
_TOGETHER = 6
#: One in so many goes through that process.
_READ_EVERY = 10
_READER_SECS = 280.0
#: What no copy may hold of an attack.
_ATTACKS = (b"__import__", b"mkdir", b"torch.os", b"antigravity")


def network_questions(files: int) -> list[Question]:
    """The questions of so many network files."""
    checked = [Question(case=f"network-{number}", stages=("archive",)) for number in range(files)]
    # The check refuses most; some attacks on the graph pass it, without what they carry.
    groups = range(0, files // _READ_EVERY, _TOGETHER)
    return checked + [Question(case=f"networks-{start}", stages=("reader",)) for start in groups]


def archive_case(work: Work) -> None:
    """The check of an archive, which writes it again.

    Raises:
        AssertionError: The refusal is not one line, or the copy still holds the attack.
    """
    copy = io.BytesIO()
    try:
        with work.log().open("rb") as opened:
            inputs = rewrite_archive(opened, copy, "network.pt2")
    except NetworkRefusedError as refusal:
        if not str(refusal).isprintable():
            raise AssertionError(f"the refusal is not one line: {refusal!r}") from None
        raise
    left = [attack for attack in _ATTACKS if attack in copy.getvalue() + inputs]
    assert not left, f"the copy holds {left}"


def reader_case(work: Work) -> None:
    """Some archives in the confined process of `fleet workloads FILE`.

    Raises:
        AssertionError: It did not answer for each of them.
    """
    files = [str(work.logs / name.decode()) for name, _ in work.case.files]
    question = {"op": "workloads", "networks": files, "family": Family.CPU}
    try:
        answer = ask(question, timeout_secs=_READER_SECS)
    except NetworkRefusedError as error:
        raise AssertionError(f"the process did not answer for each file: {error}") from error
    assert set(files) == {*answer["workloads"], *answer["refused"]}
    assert all(reason.isprintable() for reason in answer["refused"].values()), answer["refused"]


def _make(question: dict[str, Any]) -> Case:
    kind, _, number = question["corpus"].partition("-")
    seed, start, markers = question["seed"], int(number), question["markers"]
    first = make_archive(seed, start, markers)
    if kind == "network":
        return first
    several = [make_archive(seed, start + more, markers) for more in range(_TOGETHER)]
    files = tuple((f"{place}.pt2".encode(), case.files[0][1]) for place, case in enumerate(several))
    markers_inside = sum(case.markers for case in several)
    return replace(
        first, name=question["corpus"], dialect="network reader", files=files, markers=markers_inside
    )


if __name__ == "__main__":
    main(_make, {"archive": archive_case, "reader": reader_case})
