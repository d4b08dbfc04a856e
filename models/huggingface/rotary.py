"""Builds rotary position embeddings: frequencies with their scaling rules, and tables of cos and sin."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import ceil, floor, log, pi, sqrt
from typing import Any

import numpy as np

from ...egraph.builders import builders as t
from ...egraph.composites import composite_ops as c
from ...egraph.ir.tensor import Tensor
from ...egraph.types.dims import Dim, DimExpr
from ...errors import BadModelError, UnsupportedError
from .checkpoint import Config

#: Scaling rule -> fields without which it would be another one.
REQUIRED = {"linear": ("factor",), "llama3": ("factor", "low_freq_factor", "high_freq_factor")}


@dataclass(frozen=True)
class Rope:
    """Rotary position embedding: `frequencies`, radians per position of each pair of a head's elements.

    `magnitude`: factor on cos and sin. Sequences longer than `short` use the frequencies `long`, unless that is None.
    With fewer pairs than half of a head's elements, the other elements stay as they are.
    """

    frequencies: np.ndarray[Any, Any]
    magnitude: float = 1.0
    long: np.ndarray[Any, Any] | None = None
    short: int = 0

    def of_length(self, length: Dim) -> Tensor:
        """Frequencies for sequences of a length, [1, pairs] float32; chosen in the graph if the length is free."""
        near = self.frequencies.reshape(1, -1)
        if self.long is None or (isinstance(length, int) and length <= self.short):
            return t.constant(near)
        far = t.constant(self.long.reshape(1, -1))
        if not isinstance(length, DimExpr):
            return far
        counted = t.reshape(t.sum(t.ones((length,), "int64")), (1, 1))
        return t.where(t.gt(counted, self.short), far, t.constant(near))


def tables(positions: Tensor, rope: Rope, length: Dim, dtype: str) -> tuple[Tensor, Tensor]:
    """Return the (cos, sin) tables [..., T, 2 * pairs] of positions [..., T, 1] in sequences of up to `length`.

    Computed in float32, cast to `dtype`.
    """
    angle = t.cast(positions, "float32") * t.with_rank(rope.of_length(length), positions.rank)
    waves = [f(t.concat([angle, angle], -1)) for f in (t.cos, t.sin)]
    waves = waves if rope.magnitude == 1.0 else [w * rope.magnitude for w in waves]
    cos, sin = (t.cast(w, dtype) for w in waves)
    return cos, sin


def rotated(x: Tensor, cos: Tensor, sin: Tensor, *, interleaved: bool = False) -> Tensor:
    """Apply rotary embeddings to heads x [..., head]: their first elements are rotated, as many as the tables are
    wide.

    `interleaved`: pairs are neighbouring elements. In the result the first elements of all pairs come before the second
    ones; products of queries and keys in this order are those of the heads as they were.
    """
    if interleaved:
        apart = t.reshape(x, (*x.shape[:-1], x.shape[-1] // 2, 2))
        x = t.reshape(t.transpose(apart), x.shape)
    pairs, size = cos.shape[-1], x.shape[-1]
    if pairs == size:
        return c.rope(x, cos, sin)
    return t.concat([c.rope(t.slice_axis(x, -1, 0, pairs), cos, sin), t.slice_axis(x, -1, pairs, size)], -1)


def rope_of(theta: float, size: int, scaling: Config, positions: int) -> Rope:
    """Return the rotary frequencies theta**(-2i/size), scaled according to `rope_scaling`.

    `positions` is the longest sequence of the model. The type `dynamic` rescales only sequences longer than that. Such
    sequences are refused here, so `dynamic` equals the default. `size`: rotated elements of a head. Raises
    UnsupportedError for other types, BadModelError for values that give no finite frequencies.
    """
    try:
        with np.errstate(all="ignore"):
            found = _scaled(theta, size, scaling, positions)
    except (ArithmeticError, ValueError) as error:  # a division by zero, a logarithm of no positive number
        raise BadModelError(f"no rotary frequencies: {error}", where=scaling.where) from None
    if not all(np.isfinite(f).all() for f in (found.frequencies, found.long) if f is not None):
        raise BadModelError("the rotary frequencies are not finite", where=scaling.where)
    return found


def _scaled(theta: float, size: int, scaling: Config, positions: int) -> Rope:
    base = np.float32(theta) ** (np.arange(0, size, 2).astype(np.float32) / np.float32(size))
    found = (np.float32(1.0) / base).astype(np.float32)
    kind = scaling.text("rope_type", scaling.text("type", "default"))
    if kind == "dynamic":
        scaling.refuse(original_max_position_embeddings=positions)
    if kind in ("default", "dynamic"):
        return Rope(found)
    for name in REQUIRED.get(kind, ()):
        if scaling.fields.get(name) is None:
            raise BadModelError(
                f"config field {name!r} is missing, which rope_type={kind!r} needs", where=scaling.where
            )
    if kind == "linear":
        return Rope((found / np.float32(scaling.number("factor", 1.0))).astype(np.float32))
    if kind == "llama3":
        return Rope(_llama3(found, scaling))
    if kind in ("longrope", "su") or (kind == "yarn" and "short_factor" in scaling.fields):  # two older names
        return _longrope(base, scaling, positions)
    if kind == "yarn":
        return _yarn(found, theta, scaling, positions)
    raise UnsupportedError(f"rope_type={kind!r} is not supported", where=scaling.where,
                           hint="known: default, dynamic, linear, llama3, longrope, yarn")  # fmt: skip


def _longrope(base: np.ndarray[Any, Any], scaling: Config, positions: int) -> Rope:
    """Return LongRoPE-scaled frequencies (arXiv 2402.13753).

    One factor per pair, one list of factors for sequences up to the original length and one for longer ones.
    """
    original = scaling.size("original_max_position_embeddings", positions)
    near, far = (scaling.numbers(f"{name}_factor", len(base)) for name in ("short", "long"))
    ratio = scaling.number("factor", positions / original)
    magnitude = 1.0 if ratio <= 1 or original <= 1 else sqrt(1 + log(ratio) / log(original))
    short, long = (np.float32(1.0) / (np.array(f, np.float32) * base).astype(np.float32) for f in (near, far))
    rope = Rope(short, scaling.number("attention_factor", magnitude))
    return replace(rope, long=long, short=original) if positions > original else rope


def _yarn(found: np.ndarray[Any, Any], theta: float, scaling: Config, positions: int) -> Rope:
    """Return YaRN-scaled rotary frequencies (arXiv 2309.00071).

    Pairs with many rotations over the original length keep their frequency; pairs with few rotations are slowed by
    `factor`, by default the longest sequence over the original length; a linear ramp blends the pairs between.
    """
    length = scaling.size("original_max_position_embeddings", positions)
    factor = scaling.number("factor", positions / length)
    if factor <= 0 or theta <= 1:
        raise BadModelError("factor is not positive, or rope_theta not above 1", where=scaling.where)
    size = 2 * len(found)
    ends = [
        size * log(length / (scaling.number(name, default) * 2 * pi)) / (2 * log(theta))
        for name, default in (("beta_fast", 32.0), ("beta_slow", 1.0))
    ]
    low, high = (floor(ends[0]), ceil(ends[1])) if scaling.flag("truncate", True) else ends
    low, high = max(low, 0), min(high, size - 1)
    ramp = np.clip((np.arange(len(found), dtype=np.float32) - low) / (high - low or 0.001), 0, 1)
    above, below = scaling.number("mscale", 0.0), scaling.number("mscale_all_dim", 0.0)
    if not (above and below):
        above, below = 1.0, 0.0
    grown = max(log(factor), 0.0) / 10
    magnitude = (above * grown + 1) / (below * grown + 1)
    frequencies = (found / np.float32(factor) * ramp + found * (1 - ramp)).astype(np.float32)
    return Rope(frequencies, scaling.number("attention_factor", magnitude))


def _llama3(found: np.ndarray[Any, Any], scaling: Config) -> np.ndarray[Any, Any]:
    """Return Llama-3-scaled frequencies: low ones divided by `factor`, high ones kept, the rest blended."""
    factor, low = scaling.number("factor", 8.0), scaling.number("low_freq_factor", 1.0)
    high, length = scaling.number("high_freq_factor", 4.0), scaling.size("original_max_position_embeddings", 8192)
    if high == low:
        raise BadModelError("low_freq_factor equals high_freq_factor", where=scaling.where)
    waves = 2 * pi / found
    share = (length / waves - low) / (high - low)
    blended = (1 - share) * found / factor + share * found
    slow, fast = waves > length / low, waves < length / high
    return np.where(slow, found / factor, np.where(fast, found, blended)).astype(np.float32)
