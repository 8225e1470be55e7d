"""`fleet import` as programs see it, and what is left of one that fails."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from fleet.cli.interchange import FormatOption
from fleet.interchange.export_store import FORMATS
from fleet.store.store import Store
from tests.cli_fixtures import json_of, refusal
from tests.log_fixtures import CUDA_TARGET, autotvm, write_log

pytestmark = pytest.mark.usefixtures("elsewhere")


@pytest.mark.parametrize("lines", [["# about", "text"], [autotvm(0), autotvm(1, target=CUDA_TARGET)]])
@pytest.mark.parametrize("is_there", [False, True])
def test_an_import_that_fails_leaves_no_new_store_behind(lines: list[Any], is_there: bool) -> None:
    write_log(Path("log.json"), lines)
    store = Path("some/where/store")
    if is_there:
        store.mkdir(parents=True)
    for _ in range(2):
        refusal("import", "log.json", "--device", "board-7", "--store", str(store))
        assert list(store.iterdir()) == [] if is_there else not Path("some").exists()
    # One that holds anything stays as it was.
    write_log(Path("good.json"), [autotvm(0)])
    json_of("import", "good.json", "--device", "board-7", "--store", str(store))
    refusal("import", "log.json", "--device", "board-8", "--store", str(store))
    assert Store.read(store).rows == 1


def test_the_formats_of_the_help_are_those_of_the_export() -> None:
    assert [form.value for form in FormatOption] == list(FORMATS)
