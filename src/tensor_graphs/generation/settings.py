"""Checks the arguments of a generation before anything runs, so that an error leaves a generator as it was."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields
from difflib import get_close_matches
from numbers import Integral
from typing import Any

import numpy as np

from ..errors import UsageError
from ..models.huggingface.checkpoint import Config
from ..models.huggingface.step import positions_of
from ..options import Options
from ..plain import as_float
from .sampling import Kind

Prompt = str | Sequence[int] | np.ndarray[Any, Any]
OWN = (
    "folder", "budget", "max_length", "batch", "backend", "trust", "quantize", "quantize_head", "draft", "draft_tokens", "reuse",
)  # fmt: skip  # parameters of `Generator` itself
LENGTH = 1024  # default of `max_length`
MIN_POSITIVE = 1e-30  # of temperature, so that logits divided by it stay finite in float32, and of `top_p`


@dataclass(frozen=True)
class Sampling:
    """Settings of how tokens are chosen. `temperature` 0: the most likely token. `top_k` 0 and `top_p` 1: no limit.
    `seed`: of the random draws."""

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    seed: int = 0

    def __post_init__(self) -> None:
        _number("temperature", self.temperature, 0.0, math.inf, "0 takes the most likely token")
        _number("top_p", self.top_p, 0.0, 1.0, "a probability above 0, at most 1")
        if not self.top_p > 0:
            raise UsageError(f"invalid argument top_p={self.top_p!r}", hint="a probability above 0, at most 1")
        whole_number("top_k", self.top_k, 0, "a number of tokens, or 0 for no limit")
        whole_number("seed", self.seed, 0, "a whole number from 0 on")
        if self.seed >= 1 << 64:
            raise UsageError(f"invalid argument seed={self.seed}", hint="a whole number below 2**64")

    @property
    def kind(self) -> Kind:
        """Name of the sampler that these settings need: "greedy", "plain" (no limit) or "filtered" (`top_k` or
        `top_p`)."""
        if self.temperature == 0:
            return "greedy"
        return "plain" if self.top_k == 0 and self.top_p == 1 else "filtered"

    def states(self, vocabulary: int, key: int = 0) -> dict[str, tuple[Any, str]]:
        """(value, dtype) of each state of a sampler, by name; samplers with different keys below 2**32 draw
        independently.
        """
        seed = int(self.seed) ^ key << 32
        return {
            "temperature": ([[max(float(self.temperature), MIN_POSITIVE) if self.temperature else 1.0]], "float32"),
            "top_k": ([[min(int(self.top_k), vocabulary) or vocabulary]], "int64"),
            "top_p": ([[max(float(self.top_p), MIN_POSITIVE) if self.top_p < 1 else 2.0]], "float32"),
            "seed": ([[seed & 0xFFFFFFFF, seed >> 32]], "int64"),
            "draws": ([[0]], "int64"),
        }


def _number(name: str, value: Any, low: float, high: float, hint: str) -> None:
    if isinstance(value, bool) or not low <= as_float(value) <= high or math.isinf(value):
        raise UsageError(f"invalid argument {name}={repr(value)[:80]}", hint=hint)


def whole_number(name: str, value: Any, least: int, hint: str) -> int:
    """The argument `name` as a whole number of at least `least`. Raises UsageError, with a hint, for other values."""
    if not isinstance(value, Integral) or isinstance(value, bool) or value < least:
        raise UsageError(f"invalid argument {name}={value!r}", hint=hint)
    return int(value)


def options_of(given: dict[str, Any], budget: float) -> dict[str, Any]:
    """The given options of `tg.optimize`, unchanged. Raises UsageError for unknown names and invalid values.

    `budget` is checked with them, but not part of the result.
    """
    known = {f.name for f in fields(Options)}
    if unknown := sorted(set(given) - known):
        close = [name for one in unknown for name in get_close_matches(one, [*known, *OWN], 1)]
        hint = f"do you mean {', '.join(close)}?" if close else "they are those of tg.optimize"
        raise UsageError(f"no options of a Generator are called {unknown}", hint=hint)
    Options(budget=budget, **given)
    return given


def length_of(max_length: Any, config: Config) -> int:
    """Largest number of tokens of a row (sequence of the batch): the argument, by default 1024, or fewer if the model
    has fewer positions.

    Raises UsageError for more than the model's positions.
    """
    longest = positions_of(config)
    if max_length is None:
        return min(LENGTH, longest)
    length = whole_number("max_length", max_length, 2, "a number of tokens from 2 on")
    if length > longest:
        raise UsageError(f"max_length={length} exceeds the {longest} positions of the model")
    return length


def prompts_of(value: Prompt | Sequence[Prompt], most: int) -> list[Prompt]:
    """Argument as a list of prompts, from one prompt or several.

    Raises UsageError if it is neither, or a sequence of more than `most` items, before they are read (a range has no
    limit).
    """
    if isinstance(value, str) or (isinstance(value, np.ndarray) and value.ndim <= 1):
        return [value]
    if not isinstance(value, Sequence | np.ndarray):
        raise UsageError(f"a prompt is text or a list of token ids, not {type(value).__name__}")
    if not isinstance(value, np.ndarray):
        _bounded(value, most)
    items: list[Any] = list(value)
    for item in items:
        if isinstance(item, Sequence) and not isinstance(item, str):
            _bounded(item, most)
    return items if any(isinstance(p, str | Sequence | np.ndarray) for p in items) else [items]


def _bounded(items: Sequence[Any], most: int) -> None:
    try:
        count = len(items)
    except OverflowError:  # a range of more than 2**63 numbers
        count = most + 1
    if count > most:
        raise UsageError(f"a prompt of more than {most} tokens",
                         hint="a shorter prompt, or a Generator with a larger max_length or batch")  # fmt: skip


def token_ids(prompt: Any, vocabulary: int) -> list[int]:
    """Prompt of token ids as a list.

    Raises UsageError if it is empty, not of whole numbers, or outside the vocabulary.
    """
    try:
        array = np.asarray(prompt)
    except (TypeError, ValueError, RuntimeError):
        array = np.zeros(0)
    if array.size == 0 and array.ndim <= 1:
        raise UsageError("the prompt is empty", hint="give at least one token")
    if array.ndim != 1 or array.dtype.kind not in "iu":
        raise UsageError(f"a prompt is text or a list of token ids, not {str(prompt)[:80]}")
    outside = array[(array < 0) | (array >= vocabulary)]
    if outside.size:
        raise UsageError(f"token {int(outside[0])} is outside the vocabulary of {vocabulary}")
    return [int(v) for v in array]


def stops_of(stop: Any, default: Sequence[int], vocabulary: int) -> tuple[frozenset[int], tuple[str, ...]]:
    """Token ids and texts that end a row (sequence of the batch), as (ids, texts), from the argument `stop`: texts and
    token ids below `vocabulary`, or None for the model's own end tokens, `default`.

    Raises UsageError for anything else.
    """
    if stop is None:
        return frozenset(default), ()
    items = [stop] if isinstance(stop, str | Integral) else list(stop) if isinstance(stop, Sequence) else None
    if items is None or isinstance(stop, bytes | bytearray | memoryview):
        raise UsageError(
            f"invalid argument stop={stop!r}", hint="token ids and texts, or None for the model's own end tokens"
        )
    texts = tuple(s for s in items if isinstance(s, str))
    numbers = [s for s in items if not isinstance(s, str)]
    if any(not s for s in texts):
        raise UsageError(
            "invalid argument stop: it has an empty text", hint="token ids and texts of at least one character"
        )
    return frozenset(token_ids(numbers, vocabulary) if numbers else ()), texts
