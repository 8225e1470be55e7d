"""Which line of an error is printed: the reason, and not what stands around it."""

from __future__ import annotations

import pytest

from agents.errors import first_line, last_line


@pytest.mark.parametrize(
    ("text", "first", "last"),
    [
        ("", "ValueError", "ValueError"),
        ("\n  a \n\n b\n", "a", "b"),
        (
            "shapes differ\n\nWhile executing %add : [num_users=1]\nGraphModule: class X\n"
            "Use tlparse to see full graph. (https://github.com/pytorch/tlparse)",
            "shapes differ",
            "shapes differ",
        ),
        (
            'cannot guard on it\nFor more information, run with TORCH_LOGS="dynamic"\n',
            *("cannot guard on it",) * 2,
        ),
        ("Use tlparse to see full graph", *("Use tlparse to see full graph",) * 2),
    ],
)
def test_torch_s_context_is_not_the_reason(text: str, first: str, last: str) -> None:
    error = ValueError(text)
    assert (first_line(error), last_line(error)) == (first, last)
