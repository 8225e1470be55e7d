"""The corpus of hostile logs that were found once: `tests/hostile_corpus`, one file or folder a find.

Its README says where each comes from. `benchmarks.hostile` and
`tests/benchmarks/test_hostile.py` read all of them.
"""

from __future__ import annotations

from pathlib import Path

from benchmarks.hostile_files import Case

CORPUS = Path(__file__).resolve().parents[1] / "tests" / "hostile_corpus"
#: Stands in a file of the corpus for the file that code in it would make.
MARKER = b"@MARKER@"


def corpus_names() -> list[str]:
    """Names of all finds, sorted."""
    return sorted(one.name for one in CORPUS.iterdir() if one.name != "README.md")


def corpus_case(name: str, marker_folder: str) -> Case:
    """One find as a case; of a folder, the log is the file with tuning records."""
    path = CORPUS / name
    files = [path] if path.is_file() else sorted(path.iterdir(), key=lambda one: "workload" in one.name)
    content = tuple((one.name.encode(), _marked(one, name, marker_folder)) for one in files)
    return Case(
        name=name,
        dialect="corpus",
        form="gz" if files[0].suffix == ".gz" else "plain",
        files=content,
        lines=content[0][1].count(b"\n"),
        markers=content[0][1].count(marker_folder.encode()),
    )


def _marked(path: Path, name: str, marker_folder: str) -> bytes:
    return path.read_bytes().replace(MARKER, f"{marker_folder}/corpus-{name}".encode())
