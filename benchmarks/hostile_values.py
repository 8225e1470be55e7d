"""Values that no honest log holds: numbers, texts, targets, and faults put into honest values and bytes.

Called by the other makers of hostile logs. Everything is drawn from the generator given, so equal seeds give
equal values.
"""

from __future__ import annotations

import contextlib
import json
import sys
from functools import cache
from pathlib import Path
from random import Random
from typing import Any

import orjson

from fleet.json_types import JsonDict

SEEDS = Path(__file__).resolve().parents[1] / "tests" / "hostile_corpus" / "seeds"
#: More levels than any value has here; the stack of a thread holds them.
_DEEP = 50_000
_LENGTHS = (100, 1_000, 5_000, 70_000)
#: What stands in the place of a whole file.
_OTHERS = (b"null", b"[]", b"{}", b"[" * 100_000, b'{"a":' * 5_000, b"", b"\xff\xfe", b'{"schema":null}')
_TOKENS = (b"NaN", b"Infinity", b"-Infinity", b"1e400", b"-1e999", b"00", b"1.", b"'x'", b"nul", b"\xff")


@cache
def seed_json(name: str = "values") -> JsonDict:
    """A file of seeds; `values` has numbers at the edges, texts that broke programs, sizes of models."""
    found: JsonDict = json.loads((SEEDS / f"{name}.json").read_text())
    return found


def number(rng: Random) -> Any:
    """A number, mostly a hostile one."""
    return (
        rng.choice(seed_json()["numbers"])
        if rng.random() < 0.7
        else rng.randrange(1, 1 << rng.randrange(1, 64))
    )


def text(rng: Random) -> str:
    """A text, mostly a hostile one."""
    if rng.random() < 0.08:
        return rng.choice('ab[{"\\\u00e9') * rng.choice(_LENGTHS)
    return str(rng.choice(seed_json()["texts"]))


def value(rng: Random, depth: int = 3) -> Any:
    """Any JSON value."""
    kind = rng.randrange(9 if depth else 5)
    if kind < 2:
        return number(rng)
    if kind < 4:
        return text(rng)
    if kind == 4:
        return rng.choice((None, True, False))
    if kind < 7:
        return [value(rng, depth - 1) for _ in range(rng.randrange(4))]
    if kind == 7:
        return nested(rng.choice((3, 50, 190, 260, 600)))
    return {text(rng)[:200]: value(rng, depth - 1) for _ in range(rng.randrange(3))}


def nested(levels: int) -> Any:
    """Lists in lists."""
    made: Any = 1
    for _ in range(levels):
        made = [made]
    return made


def with_fault(rng: Random, whole: Any) -> Any:
    """Put one fault anywhere into a JSON value, in place; returns the value, or what replaces it."""
    if not isinstance(whole, list | dict) or not whole:
        return value(rng)
    holder: Any = whole
    while True:
        key = rng.choice(list(holder)) if isinstance(holder, dict) else rng.randrange(len(holder))
        inside = holder[key]
        if isinstance(inside, list | dict) and inside and rng.random() < 0.8:
            holder = inside
            continue
        break
    kind = rng.randrange(6)
    if kind == 0:
        del holder[key]
    elif kind == 1 and isinstance(holder, list):
        holder[key:key] = [inside] * rng.choice((1, 2, 40))
    elif kind == 2:
        holder[key] = [inside]
    elif isinstance(inside, str) and kind < 5:
        holder[key] = text(rng)
    elif isinstance(inside, int | float) and kind < 5:
        holder[key] = number(rng)
    else:
        holder[key] = value(rng)
    return whole


def with_faults(rng: Random, whole: Any, counts: tuple[int, ...] = (1, 3)) -> Any:
    """Put some faults into a JSON value, one after the other."""
    for _ in range(rng.choice(counts)):
        whole = with_fault(rng, whole)
    return whole


def spoil(rng: Random, path: Path) -> None:
    """Put faults into the values or bytes of a file, or something else in its place."""
    data = path.read_bytes()
    if rng.random() < 0.2:
        path.write_bytes(rng.choice(_OTHERS))
    elif path.suffix != ".json" or rng.random() < 0.3:
        path.write_bytes(damaged(rng, data))
    else:
        path.write_bytes(deep_text(with_faults(rng, json.loads(data))))


def line_of(rng: Random, whole: Any) -> bytes:
    """Write a value as one line, now and then in another way than most programs do."""
    style = rng.randrange(12)
    if style > 2:
        with contextlib.suppress(orjson.JSONEncodeError):  # a number beyond 64 bits, or a deep value
            return orjson.dumps(whole)
    return deep_text(whole, (" , ", " :  ") if style == 0 else (",", ":"))


def deep_text(whole: Any, separators: tuple[str, str] = (",", ":")) -> bytes:
    """JSON of a value nested more deeply than Python counts."""
    before = sys.getrecursionlimit()
    sys.setrecursionlimit(_DEEP)
    try:
        return json.dumps(whole, separators=separators).encode()
    finally:
        sys.setrecursionlimit(before)


def damaged(rng: Random, data: bytes) -> bytes:
    """Change some bytes as a broken disk, a cut transfer or an editor would."""
    if not data:
        return b"\x00"
    place = rng.randrange(len(data))
    kind = rng.randrange(7)
    if kind == 0:
        return data[:place]
    if kind == 1:
        return data[:place] + bytes([data[place] ^ 1 << rng.randrange(8)]) + data[place + 1 :]
    if kind == 2:
        return data[:place] + rng.choice(_TOKENS) + data[place:]
    if kind == 3:
        return data[:place] + rng.randbytes(rng.choice((1, 8, 200))) + data[place:]
    if kind == 4:
        return data[:place] + data[place + rng.choice((1, 5, 100)) :]
    if kind == 5:
        return data.replace(b"\n", b"\r\n", rng.choice((1, 5, -1)))
    return data[:place] + data[place : place + 64] * 3 + data[place:]
