"""Answers in JSON, whatever text is in them. Called by `fleet.api.app`."""

from __future__ import annotations

from typing import Any

from fastapi.responses import JSONResponse
from pydantic import TypeAdapter

from fleet.terminal_text import in_utf8

_ANY: TypeAdapter[Any] = TypeAdapter(Any)


class FleetAnswer(JSONResponse):
    r"""JSON in which a file name that is no UTF-8 is written out, as `\udcff`.

    Python keeps its bytes as halves of surrogate pairs, which no answer can carry. One such name in an alarm
    or in the result of a request must not take the whole view away from everybody.
    """

    def render(self, content: Any) -> bytes:
        """See `JSONResponse`; numbers that are not finite become null."""
        try:
            return _ANY.dump_json(content)
        except ValueError:
            return _ANY.dump_json(_written_out(content))


def _written_out(value: Any) -> Any:
    if isinstance(value, str):
        return in_utf8(value)
    if isinstance(value, dict):
        return {_written_out(key): _written_out(one) for key, one in value.items()}
    return [_written_out(one) for one in value] if isinstance(value, list | tuple) else value
