"""Writes words of messages: numbers with their nouns, times, and indefinite articles."""

from __future__ import annotations


def counted(number: int, noun: str) -> str:
    """A number with its noun, whose plural takes an s: "1 step", "2 steps"."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def with_article(noun: str) -> str:
    """A noun after "a" or "an", by its first letter: "an Explorer", "a Program"."""
    return f"{'an' if noun[:1].lower() in tuple('aeiou') else 'a'} {noun}"


def spelled_us(us: float) -> str:
    """A time given in µs, in µs or ms: "12.3 µs", "4.56 ms"."""
    return f"{us / 1000:.2f} ms" if us >= 1000 else f"{us:.1f} µs"


__all__ = ["counted", "spelled_us", "with_article"]
