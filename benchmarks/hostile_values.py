"""Values that no honest log holds: numbers, texts, targets, and faults put into honest values and bytes.

Called by the other makers of hostile logs. Everything is drawn from the generator given, so equal seeds give
equal values.
"""

from __future__ import annotations

import json
import sys
from functools import cache
from pathlib import Path
from random import Random
from typing import Any

from fleet.json_types import JsonDict

SEEDS = Path(__file__).resolve().parents[1] / "tests" / "hostile_corpus" / "seeds"
#: More levels than any value has here; the stack of a thread holds them.
_DEEP = 50_000
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
    return rng.choice((*seed_json()["numbers"], *(rng.getrandbits(bits) for bits in range(4, 64, 6))))


def text(rng: Random) -> str:
    """A text, mostly a hostile one."""
    if rng.random() < 0.08:
        return rng.choice('ab[{"\\\u00e9') * rng.choice((100, 1_000, 5_000, 70_000))
    return str(rng.choice(seed_json()["texts"]))


def value(rng: Random, depth: int = 3) -> Any:
    """Any JSON value."""
    kind = rng.randrange(9 if depth else 5)
    if kind < 4:
        return (number if kind < 2 else text)(rng)
    if kind == 4:
        return rng.choice((None, True, False))
    if kind < 7:
        return [value(rng, depth - 1) for _ in range(rng.randrange(4))]
    if kind == 7:
        return {text(rng)[:200]: value(rng, depth - 1) for _ in range(rng.randrange(3))}
    nested: Any = 1
    for _ in range(rng.choice((3, 50, 190, 260, 600))):
        nested = [nested]
    return nested


def with_fault(rng: Random, whole: Any) -> Any:
    """Put one fault anywhere into a JSON value, in place; returns the value, or what replaces it."""
    holder: Any = None
    inside, key = whole, None
    while isinstance(inside, list | dict) and inside and (holder is None or rng.random() < 0.8):
        holder = inside
        key = rng.choice(list(holder)) if isinstance(holder, dict) else rng.randrange(len(holder))
        inside = holder[key]
    if holder is None:
        return value(rng)
    kind = rng.randrange(6)
    if kind == 0:
        del holder[key]
    elif kind == 1 and isinstance(holder, list):
        holder[key:key] = [inside] * rng.choice((1, 2, 40))
    elif kind == 2:
        holder[key] = [inside]
    elif kind < 5 and isinstance(inside, str | int | float):
        holder[key] = (text if isinstance(inside, str) else number)(rng)
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
    if rng.random() < 0.1:
        return deep_text(whole, (" , ", " :  "))
    return deep_text(whole, is_ascii=rng.random() < 0.2)


def deep_text(whole: Any, separators: tuple[str, str] = (",", ":"), *, is_ascii: bool = True) -> bytes:
    """JSON of a value nested more deeply than Python counts."""
    before = sys.getrecursionlimit()
    sys.setrecursionlimit(_DEEP)
    try:
        text = json.dumps(whole, separators=separators, ensure_ascii=is_ascii)
        return text.encode(errors="surrogatepass")
    finally:
        sys.setrecursionlimit(before)


def damaged(rng: Random, data: bytes) -> bytes:
    """Change some bytes as a broken disk, a cut transfer or an editor would."""
    if not data:
        return b"\x00"
    place = rng.randrange(len(data))
    before, after = data[:place], data[place:]
    changes: tuple[bytes, ...] = (
        before,
        before + bytes([after[0] ^ 1 << rng.randrange(8)]) + after[1:],
        before + rng.choice(_TOKENS) + after,
        before + rng.randbytes(rng.choice((1, 8, 200))) + after,
        before + after[rng.choice((1, 5, 100)) :],
        before + after[:64] * 3 + after,
        data.replace(b"\n", b"\r\n", rng.choice((1, 5, -1))),
    )
    return rng.choice(changes)
