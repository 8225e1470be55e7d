"""`fleet import` as programs see it, and what is left of one that fails."""

from __future__ import annotations

import pytest

from fleet.cli.interchange import FormatOption
from fleet.interchange.export_store import FORMATS

pytestmark = pytest.mark.usefixtures("elsewhere")


def test_the_formats_of_the_help_are_those_of_the_export() -> None:
    assert [form.value for form in FormatOption] == list(FORMATS)
