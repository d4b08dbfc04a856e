"""Generator of malformed files: damaged versions of valid ones, reproducible by a seed.

Bytes are flipped, cut, repeated and put together from two files. Where a file holds JSON (alone, gzipped, or behind the
length that a safetensors file begins with), its values are also exchanged for ones of other types, huge numbers, deep
nests, odd texts and paths, and its keys are repeated.
"""

from __future__ import annotations

import gzip
import json
import random
import zlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

LONGEST = 1 << 20  # bytes of a hostile file
TEXTS = (
    "", "\0", "..", "/etc/passwd", "../../x", "a" * 5000, "\u202e", "\ud800", "é" * 300, "nan", "-0.0", "1e999", "input", "float128", "cuda",
    "9" * 5000, "(" * 2000, "a" + "*a" * 400, "__import__('os')", "{}", "view", "C:\\x", "~", "%s%n", "state:x", "//", "-" * 3000 + "1",
)  # fmt: skip
NUMBERS = (
    0, -1, 1, 2, 7, 255, 1 << 31, (1 << 31) - 1, -(1 << 31), 1 << 32, (1 << 62) + 1, 1 << 63, 1 << 64, -(1 << 63), 10**400, 1e308, -1e-320,
    0.5, float("nan"), float("inf"), -float("inf"), True, False, None,
)  # fmt: skip


def nest(depth: int, kind: int = 0) -> Any:
    """JSON values nested to a depth: lists (`kind` 0), or objects with one of two keys (1, 2)."""
    found: Any = 0
    for _ in range(depth):
        found = [found] if kind == 0 else {"tuple": [found]} if kind == 1 else {"sum": [[1, [found]]]}
    return found


def odd(rng: random.Random) -> Any:
    """A value that a reader may not expect."""
    return rng.choice((
        lambda: rng.choice(NUMBERS), lambda: rng.choice(TEXTS), list, dict, lambda: [rng.choice(NUMBERS)] * rng.choice((1, 2, 40)),
        lambda: {rng.choice(TEXTS): rng.choice(NUMBERS)}, lambda: nest(rng.choice((3, 65, 300, 900)), rng.randrange(3)),
    ))()  # fmt: skip


# ---------------------------------------------------------------- JSON
def _places(value: Any) -> list[tuple[Any, Any]]:
    """All (container, key) pairs of a parsed document."""
    found, todo = [], [value]
    while todo:
        one = todo.pop()
        items = list(one.items()) if isinstance(one, dict) else list(enumerate(one)) if isinstance(one, list) else []
        found += [(one, key) for key, _ in items]
        todo += [v for _, v in items]
    return found


def twisted(document: Any, rng: random.Random) -> str:
    """The text of a document with one to three of its values replaced, removed, exchanged, moved or repeated."""
    document = json.loads(json.dumps(document))
    for _ in range(rng.choice((1, 1, 2, 3))):
        places = _places(document)
        if not places:
            document = odd(rng)
            break
        at, key = rng.choice(places)
        other, there = rng.choice(places)
        match rng.randrange(6):
            case 0:
                del at[key]
            case 1:
                at[key] = _copied(other, there, rng)
            case 2 if isinstance(at, list):
                at.insert(key, at[key] if rng.random() < 0.5 else odd(rng))
            case 3 if isinstance(at, dict):
                at[rng.choice(TEXTS)] = at.pop(key)
            case 4 if type(at[key]) in (int, float):
                at[key] = at[key] + rng.choice((-1, 1, 1 << 31)) if rng.random() < 0.7 else -at[key]
            case _:
                at[key] = odd(rng)
    text = _dumped(document)
    if rng.random() < 0.05:
        text = text.replace("{", '{"nodes": 0, "nodes": 1, ', 1)  # a key that occurs twice
    return text


def _copied(container: Any, key: Any, rng: random.Random) -> Any:
    """A value of another place, or an odd one where that place is gone or nested too deeply to copy."""
    try:
        return json.loads(json.dumps(container[key]))
    except (LookupError, RecursionError):
        return odd(rng)


def _dumped(document: Any) -> str:
    try:
        return json.dumps(document)
    except (RecursionError, ValueError):
        return "[" * 100_000


# ---------------------------------------------------------------- bytes
def damaged(content: bytes, other: bytes, rng: random.Random) -> bytes:
    """Bytes that are flipped, cut, doubled, overwritten, or joined with those of another file."""
    found = bytearray(content)
    for _ in range(rng.choice((1, 1, 2, 4, 8))):
        n = len(found)
        at = rng.randrange(n) if n else 0
        match rng.randrange(8):
            case 0 if n:
                found[at] ^= 1 << rng.randrange(8)
            case 1:
                del found[at:]
            case 2 if n:
                found[at] = rng.choice((0, 1, 127, 128, 255))
            case 3:
                found[at:at] = found[at : at + rng.randrange(1, 64)] * rng.choice((1, 2, 50))
            case 4:
                found[at : at + 8] = rng.choice((0, 1, -1, 1 << 31, 1 << 62)).to_bytes(8, "little", signed=True)
            case 5:
                del found[at : at + rng.randrange(1, 32)]
            case 6 if other:
                begin = rng.randrange(len(other))
                found[at:] = other[begin:]
            case _:
                found[at:at] = rng.choice(TEXTS).encode("utf-8", "surrogatepass")
    return bytes(found[:LONGEST])


def _parsed(content: bytes) -> Any:
    try:
        return json.loads(content)
    except (ValueError, RecursionError):
        return None


def hostile(content: bytes, other: bytes, rng: random.Random) -> bytes:
    """One malformed version of a valid file; `other` is a second valid one."""
    if content[:2] == b"\x1f\x8b" and rng.random() < 0.7:
        try:
            return gzip.compress(hostile(gzip.decompress(content), b"", rng), 1, mtime=0)
        except (OSError, EOFError, zlib.error):
            return damaged(content, other, rng)
    if rng.random() < 0.3:
        return damaged(content, other, rng)
    if (document := _parsed(content)) is not None:
        return twisted(document, rng).encode("utf-8", "surrogatepass")[:LONGEST]
    length = int.from_bytes(content[:8], "little")
    if 8 + length <= len(content) and isinstance(header := _parsed(content[8 : 8 + length]), dict):
        return _safetensors(header, content[8 + length :], rng)
    lines = content.split(b"\n")
    if len(lines) > 1 and rng.random() < 0.6:
        at = rng.randrange(len(lines))
        inner = _parsed(lines[at])
        lines[at] = (
            twisted(inner, rng).encode("utf-8", "surrogatepass") if inner is not None else damaged(lines[at], b"", rng)
        )
        return b"\n".join(lines)[:LONGEST]
    return damaged(content, other, rng)


def _safetensors(header: dict[str, Any], data: bytes, rng: random.Random) -> bytes:
    """A safetensors file whose header, or the graph in whose header, was twisted; its length is right."""
    graph = (
        header.get("__metadata__", {}).get("tensor_graphs") if isinstance(header.get("__metadata__"), dict) else None
    )
    if (
        isinstance(graph, str)
        and rng.random() < 0.75
        and (inner := _parsed(graph.encode("utf-8", "surrogatepass"))) is not None
    ):
        header = {**header, "__metadata__": {**header["__metadata__"], "tensor_graphs": twisted(inner, rng)}}
        text = _dumped(header)
    else:
        text = twisted(header, rng)
    raw = text.encode("utf-8", "surrogatepass")
    raw += b" " * (-len(raw) % 8)
    return (len(raw).to_bytes(8, "little") + raw + data)[:LONGEST]


def corpus(good: Sequence[bytes], count: int, seed: int = 0) -> Iterator[bytes]:
    """Yields `count` malformed files made from valid ones."""
    for i in range(count):
        rng = random.Random(f"{seed} {i}")
        yield hostile(rng.choice(good), rng.choice(good), rng)


Maker = Callable[[bytes, bytes, random.Random], bytes]

__all__ = ["corpus", "damaged", "hostile", "nest", "odd", "twisted"]
