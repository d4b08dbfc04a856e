"""Holds functions that the samplers of several ops share: choice of ranks, sizes, dtypes and attributes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ...egraph.ops.ops import OPS
from ...egraph.patterns.pattern import PatternCall, Term
from .ranks import least_rank
from .sampler import INTS, NotYet, Sampler, Sizes, Want

Handler = Callable[[Sampler, PatternCall, Want], None]


def result_dtype(s: Sampler, term: Term) -> str:
    """Dtype in which the root of a rule's left side is sampled."""
    if not isinstance(term, PatternCall):
        return s.dtype_for(term)
    law = OPS[term.op].law
    if law == "compare":
        return "bool"
    if law in ("arg_reduce", "along_index"):
        return "int64"
    if OPS[term.op].logic is not None:
        return "bool" if has_bool(term) else s.dtype or s.rng.choice(("bool", "bool", *INTS))
    if law in ("from_float8", "unpack"):
        return s.float
    if law == "cast":
        return str(s.attr(term, "dtype", lambda: s.rng.choice(("float32", "float16", "float64", "int32"))))
    return s.dtype_for(*(term.args[1:] if law == "where" else term.args[:1] if law == "gather" else term.args))


def has_bool(term: Term) -> bool:
    """Whether a term contains a comparison, whose result is bool."""
    if not isinstance(term, PatternCall):
        return False
    return OPS[term.op].law == "compare" or any(map(has_bool, term.args))


def rank_of(s: Sampler, call: PatternCall, want: Want) -> int:
    """Rank of an elementwise op's result and operands: that of the wanted shape, else of an operand whose type is
    known, else drawn."""
    if want.shape is not None:
        return len(want.shape)
    for a in call.args:
        found = s.known(a)
        if found is not None:
            return found.rank
    return max(least_rank(call), s.rng.choices((0, 1, 2, 3, 4), (1, 6, 10, 8, 6))[0])


def wanted_sizes(s: Sampler, call: PatternCall, want: Want) -> tuple[Sizes, ...]:
    """For each axis of the result the set of sizes that the context allows; if it allows any rank, a rank is drawn,
    with any sizes."""
    return want.shape if want.shape is not None else (None,) * rank_of(s, call, want)


def with_axis(shape: tuple[Sizes, ...], axis: int, sizes: Sizes) -> tuple[Sizes, ...]:
    """`shape`, the allowed sizes of each axis, with those of one axis replaced by `sizes`."""
    return (*shape[:axis], sizes, *shape[axis + 1 :])


def propose_axes(s: Sampler, allowed: list[int]) -> tuple[int, ...]:
    """Up to three random axes out of `allowed`, in ascending order."""
    count = min(len(allowed), s.rng.choices((0, 1, 2, 3), (1, 14, 5, 1))[0])
    return tuple(sorted(s.rng.sample(allowed, count)))


def draw_attributes(s: Sampler, call: PatternCall, rank: int = 0) -> None:
    """Draws the attributes of a call whose only effect on shapes is to name axes of a value of this rank."""
    draw: dict[str, Callable[[], Any]] = {
        "axis": lambda: s.rng.randrange(max(rank, 1)),
        "axes": lambda: propose_axes(s, list(range(rank))),
        "descending": lambda: s.rng.random() < 0.5,
        "causal": lambda: s.rng.random() < 0.3,
        "window": lambda: s.rng.choice((0, 0, 0, 2)),
        "softcap": lambda: s.rng.choice((0.0, 0.0, 5.0)),
        "mode": lambda: s.rng.choice(("set", "add", "max")),
        "groups": lambda: 1,
        "dtype": lambda: s.float,
        "name": lambda: "leaf",
    }
    for name, _ in call.attrs:
        s.attr(call, name, draw.get(name, lambda: s.rng.choice((0.5, 1.0, 0.125, 1e-5, 2.0, -0.25))))


def not_yet() -> Any:
    """Stands for the function that draws an attribute's value, where the attribute must not be drawn yet, because a
    later operand may determine it: raises NotYet."""
    raise NotYet


def one_size(s: Sampler, sizes: Sizes) -> int | None:
    """One of the wanted sizes; None if any size is allowed."""
    return None if sizes is None else s.pick(sizes)
