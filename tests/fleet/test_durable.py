from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from fleet.errors import StoreError, StoreFull, disk_errors

DELTALAKE = "Generic LocalFileSystem error\n   \x1b[31m↳\x1b[0m No space left on device (os error 28)\n"


@pytest.mark.parametrize(
    ("error", "kind", "words"),
    [
        (OSError(DELTALAKE), StoreFull, "No space left on device"),
        (OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)), StoreFull, "No space left on device"),
        (OSError("first line\nsecond"), StoreError, "first line;"),
        (PermissionError(errno.EACCES, "Permission denied"), StoreError, "denied"),
    ],
)
def test_an_error_of_the_disk_is_one_line_whoever_reports_it(
    error: OSError, kind: type[StoreError], words: str
) -> None:
    with pytest.raises(StoreError, match=words) as caught, disk_errors("testing", Path("x")):
        raise error
    assert type(caught.value) is kind
    assert "\n" not in str(caught.value)
    assert "\x1b" not in str(caught.value)
