"""Writes words of messages: numbers with their nouns, times, indefinite articles, and the nearest known name."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from difflib import get_close_matches
from typing import Any


def counted(number: int, noun: str, plural: str = "") -> str:
    """A number with its noun, whose plural takes an s unless `plural` is given: "1 step", "2 steps", "3 classes"."""
    return f"{number} {noun if number == 1 else plural or noun + 's'}"


def with_article(noun: str) -> str:
    """A noun after "a" or "an", by its first letter: "an Explorer", "a Program"."""
    return f"{'an' if noun[:1].lower() in tuple('aeiou') else 'a'} {noun}"


def near(name: str, known: Iterable[str]) -> str:
    """Text that asks whether the known name nearest to a misspelt one is meant: ". Did you mean 'budget'?"; "" if none
    is near."""
    return next((f". Did you mean {found!r}?" for found in get_close_matches(name, list(known), 1, cutoff=0.7)), "")


def spelled_values(values: Mapping[str, Any]) -> str:
    """Named values, such as sizes of dimensions: "B=2, T=128"."""
    return ", ".join(f"{name}={value}" for name, value in values.items())


def spelled_bytes(count: float) -> str:
    """Text of `count` bytes in the largest of the units byte, KiB, MiB, GiB, TiB that is not above it: "12.3 MiB"."""
    if count < 1 << 10:
        return f"{count:.0f} bytes"
    scale, unit = next(
        (s, u) for s, u in ((1 << 40, "TiB"), (1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")) if count >= s
    )
    return f"{count / scale:.4g} {unit}"


def spelled_us(us: float) -> str:
    """A time given in µs, in µs, ms or s: "12.3 µs", "4.56 ms", "7.89 s"."""
    if us >= 1e6:
        return f"{us / 1e6:.2f} s"
    return f"{us / 1000:.2f} ms" if us >= 1000 else f"{us:.1f} µs"


_ENDS = {
    "seconds": "stopped at the time limit", "nodes": "stopped at the limit of e-nodes", "bytes": "stopped at the memory limit",
    "iterations": "stopped at the limit of rounds", "interrupted": "stopped on request",
}  # fmt: skip


def rewriting_end(stopped: str) -> str:
    """How the rewriting of a block ended, in words, from `SaturationReport.stopped`: "saturated" is one."""
    return _ENDS.get(stopped, stopped)


__all__ = ["counted", "near", "rewriting_end", "spelled_bytes", "spelled_us", "with_article"]
