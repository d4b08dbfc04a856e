"""Writes words of messages: numbers with their nouns, and indefinite articles."""

from __future__ import annotations


def counted(number: int, noun: str) -> str:
    """A number with its noun, whose plural takes an s: "1 step", "2 steps"."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def with_article(noun: str) -> str:
    """A noun after "a" or "an", by its first letter: "an Explorer", "a Program"."""
    return f"{'an' if noun[:1].lower() in tuple('aeiou') else 'a'} {noun}"


__all__ = ["counted", "with_article"]
