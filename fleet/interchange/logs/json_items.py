"""Items of one large JSON document, one at a time: a tuner's cache is an object of thousands of results.

Called by the readers of such files. Memory is bounded by the longest item, whatever the file holds. Python's
own parser is used, for these tools write `Infinity` and `NaN`, which are no JSON.
"""

from __future__ import annotations

import codecs
import json
import re
from collections.abc import Collection, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from fleet.interchange.logs.json_values import NOT_JSON, Rejected
from fleet.interchange.logs.lines import LogLines

#: Characters of one item, and of one value of the head, at most.
MAX_ITEM_CHARS: Final = 4 << 20
#: Characters that are held as long as no item needs more, and fewest that are left before more are read.
_USUAL_CHARS, _LEAST_CHARS = 1 << 20, 1 << 16
#: Values of the head at most.
_MAX_HEAD = 64

#: Reasons of a document that ends elsewhere than expected.
TOO_LONG: Final = "an item is too long"
FOLLOWED: Final = "something else follows the document"

_SPACES = re.compile(r"[ \t\n\r]*")
_PARSE = json.JSONDecoder().raw_decode


class _Window:
    """A piece of the text that moves through the file."""

    def __init__(self, chunks: Iterator[bytes]) -> None:
        self._chunks = chunks
        self._decode = codecs.getincrementaldecoder("utf-8-sig")("replace").decode
        self._text = ""
        self._at = 0
        self._ended = False
        self.passed = 0

    def _fill(self, characters: int) -> None:
        pieces = [self._text[self._at :]]
        self.passed += self._at
        length = len(pieces[0])
        while length < characters and not self._ended:
            chunk = next(self._chunks, None)
            self._ended = chunk is None
            pieces.append(self._decode(chunk or b"", self._ended))
            length += len(pieces[-1])
        self._text, self._at = "".join(pieces), 0

    def peek(self) -> str:
        """Next character that is no space; empty at the end."""
        while True:
            if len(self._text) - self._at < _LEAST_CHARS and not self._ended:
                self._fill(_USUAL_CHARS)
            spaces = _SPACES.match(self._text, self._at)
            self._at = spaces.end() if spaces else self._at
            if self._at < len(self._text):
                return self._text[self._at]
            if self._ended:
                return ""

    def skip(self, character: str) -> bool:
        """Step over a character, if it is next."""
        if self.peek() != character:
            return False
        self._at += 1
        return True

    def value(self) -> Any:
        """Parse what comes next.

        Raises:
            Rejected: It is cut, too long, nested too deeply, or no JSON.
        """
        self.peek()
        try:
            value, end = self._parsed()
        except RecursionError:
            raise Rejected("nested too deeply") from None
        except ValueError as error:
            raise self._fault(error) from None
        if end - self._at > MAX_ITEM_CHARS:
            raise Rejected(TOO_LONG, f"{end - self._at:,} characters")
        self._at = end
        return value

    def _parsed(self) -> tuple[Any, int]:
        """Value and end, with more of the file where the window ends too early."""
        try:
            value, end = _PARSE(self._text, self._at)
            if end < len(self._text) or self._ended:
                return value, end
        except ValueError:
            if self._ended or len(self._text) - self._at > MAX_ITEM_CHARS:
                raise
        self._fill(MAX_ITEM_CHARS + 1)
        return _PARSE(self._text, self._at)

    def _fault(self, error: ValueError) -> Rejected:
        place = getattr(error, "pos", self._at)
        where = f"character {self.passed + place:,}"
        at_end = place >= len(self._text) - 64 or "Unterminated" in str(error)
        if not self._ended and len(self._text) - self._at > MAX_ITEM_CHARS and at_end:
            return Rejected(TOO_LONG, where)
        # The parser names the beginning of a text that does not end, else the place where it stopped.
        if self._ended and at_end:
            return Rejected("truncated", where)
        return Rejected(NOT_JSON, got=f"{where}: {self._text[place : place + 20]}")


class JsonItems:
    """One document: an object whose values are taken whole, but for one, whose items come one by one.

    Args:
        chunks: Bytes of the file.
        listed: Keys of the object or list whose items are wanted.
        open_end: Whether the tool itself leaves off the closing brackets.

    Attributes:
        head: The other values of the object met so far.
        listed_key: Key of the items that come now, or came last.
    """

    def __init__(self, chunks: Iterator[bytes], listed: Collection[str], *, open_end: bool = False) -> None:
        self._window = _Window(chunks)
        self._listed = listed
        self.listed_key = ""
        self._open_end = open_end
        self.head: dict[str, Any] = {}

    def __iter__(self) -> Iterator[Any]:
        """Yield the items in order; of an object its values.

        Raises:
            Rejected: The document is damaged from here on; nothing more comes.
        """
        if not self._window.skip("{"):
            raise Rejected(NOT_JSON, "expected an object")
        while not self._window.skip("}"):
            key = self._key()
            if key in self._listed and self._window.peek() in ("{", "["):
                self.listed_key = key
                yield from self._items()
            elif len(self.head) >= _MAX_HEAD:
                raise Rejected("too many values beside the configurations", f"more than {_MAX_HEAD}")
            else:
                self.head[key] = self._window.value()
            if not self._goes_on("}"):
                return
        if self._window.peek():
            raise Rejected(FOLLOWED)

    def _items(self) -> Iterator[Any]:
        is_object = self._window.skip("{") or not self._window.skip("[")
        end = "}" if is_object else "]"
        while not self._window.skip(end):
            if not self._window.peek() and self._open_end:
                return
            if is_object:
                self._key()
            yield self._window.value()
            if not self._goes_on(end):
                return

    def _key(self) -> str:
        if self._window.peek() != '"':
            raise self._lacks("a key")
        key = self._window.value()
        if not self._window.skip(":"):
            raise self._lacks("':'")
        return str(key)

    def _lacks(self, what: str) -> Rejected:
        return Rejected(NOT_JSON if self._window.peek() else "truncated", f"expected {what}")

    def _goes_on(self, end: str) -> bool:
        """Step over a comma; False where the tool left off the end of the document."""
        following = self._window.peek()
        if following == "":
            if self._open_end:
                return False
            raise self._lacks(f"'{end}'")
        if following != end and not self._window.skip(","):
            raise self._lacks(f"',' or '{end}'")
        return True


@dataclass(frozen=True, slots=True)
class Document:
    """How a tool lays out a file of its results: one JSON object, whose values may come in any order."""

    #: Key of the list or object that holds the results.
    listed: str
    #: Whether the tool leaves off the closing brackets while it tunes.
    open_end: bool = False

    def items(self, lines: LogLines) -> JsonItems:
        """Open the results of a file."""
        return JsonItems(lines.chunks(), {self.listed}, open_end=self.open_end)

    def head(self, path: Path) -> dict[str, Any]:
        """All values beside the results, before and behind them; damage ends it early.

        So a file is read twice: any key behind the results may change what they mean.
        """
        items = self.items(LogLines(path))
        with suppress(Rejected):
            for _ in items:
                pass
        return items.head
