"""Draws the inputs with which a graph is verified: random values in the domains of the operations that read them.

Indices are in range, including the first and the last, and negative ones where negative indices are allowed. Values
that the graph compares with a constant or with positions are near that constant or the positions. Divisors are not
zero. Integers used only in integer arithmetic cover their whole dtype and wrap around. Floats are normal numbers, with
the mean and deviation of the graph's typical values where these are known, positive if a logarithm or root is taken of
them. In the second input a share of the floats is zero, has few bits (causing ties, also behind factors: ties.py), is a
thousand times as large, or ties with an element of another input that it is compared with; in the third, some operands
of logarithms and roots are not positive, and some rows, columns and blocks are zero, small or of one sign
(uniform_lines.py); for a graph whose results depend on a property of a whole tensor (such as its maximum), further
inputs have one such property in all elements. Inputs that are weights of a deep graph (such as a training step's) are
scaled as weights are initialized, so that values neither grow nor vanish from layer to layer.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from ...egraph.ir.graph import Graph
from ...egraph.types import dtypes
from ...egraph.types.dims import concrete
from .index_bounds import GIVEN
from .input_distributions import DRAWN, EDGE, InputDistribution, input_distributions
from .ties import made_alike
from .uniform_lines import make_lines_uniform, make_whole_uniform

Array = np.ndarray[Any, Any]
ODD = (0.0, -0.0, 0.5, -0.5, 1.0, -1.0, 2.0, -2.0, 1.5, 2.5, 8.0, -8.0)
LARGE = (1e-3, -1e-3, 100.0, -100.0, 3e3, -3e3)  # only if no value of the graph is a 16-bit float
SHARE = 0.125  # share of special values
FEW = 1 << 20  # maximum axis size whose indices are shuffled
LARGE_INT = 70_000  # the same in the second and third input, if no exponential occurs
#: Elements of the block that large inputs repeat: a prime, so that no stride and no tile size is a multiple of it.
PERIOD = (1 << 24) + 43


def random_indices(shape: tuple[int, ...], bound: int, rng: np.random.Generator) -> Array:
    """Array of the given shape of random integers below a bound, arranged like a Latin square: no duplicates along an
    axis of at most `bound` elements."""
    if math.prod(shape) == 0:
        return np.zeros(shape, np.int64)
    steps = (rng.permutation(n).reshape(-1, *[1] * (len(shape) - 1 - i)) for i, n in enumerate(shape))
    places = np.broadcast_to(sum(steps, start=rng.integers(bound)), shape) % bound
    return np.asarray(rng.permutation(bound)[places] if bound <= FEW else places)


def whole_numbers(
    shape: tuple[int, ...], dtype: str, role: InputDistribution, rng: np.random.Generator, turn: int
) -> Array:
    """Array of the given shape of integers for one input in its dtype, drawn from the distribution `role`. `turn`:
    index of the verification input."""
    info = np.iinfo(dtypes.numpy_dtype(dtype))
    if role.bound:
        found = random_indices(shape, role.bound, rng)
        if role.signed and info.min < 0:
            found = np.where(rng.random(shape) < 0.25, found - role.bound, found)
        return found.astype(dtypes.numpy_dtype(dtype))
    if role.exponent:
        return rng.integers(0, 4, shape).astype(dtypes.numpy_dtype(dtype))
    found = _free(shape, info, role, rng, turn)
    near = sorted({min(max(c + d, info.min), info.max) for c in role.near for d in (-1, 0, 1)})
    if near:
        found = np.where(rng.random(shape) < 0.6, rng.choice(np.array(near, found.dtype), shape), found)
    if role.divisor:
        found = np.where(found == 0, np.array(3, found.dtype), found)
    return np.asarray(found).astype(dtypes.numpy_dtype(dtype))


def _free(shape: tuple[int, ...], info: Any, role: InputDistribution, rng: np.random.Generator, turn: int) -> Array:
    """Integers of a dtype (`info`: its limits) for an input that is no index."""
    dtype, low = info.dtype, int(info.min)
    if role.counted:
        return np.asarray(rng.integers(0, min(role.counted, int(info.max)), shape)).astype(dtype)
    if role.floats and not (role.arithmetic or role.divisor):
        found = np.asarray(rng.integers(0, 2, shape)).astype(dtype)
        if not turn or role.exponential:
            return found
        some = rng.integers(max(low, -LARGE_INT), min(int(info.max), LARGE_INT), shape).astype(dtype)
        return np.where(rng.random(shape) < SHARE, some, found)
    small = rng.integers(max(low, -9), 10, shape).astype(dtype)
    if role.floats:
        some = rng.integers(max(low, -EDGE), EDGE + 1, shape).astype(dtype)
        return np.where(rng.random(shape) < 0.5, small, some)
    large = rng.integers(low, int(info.max), shape, dtype=dtype, endpoint=True)
    ends = rng.choice(np.array([low, low + 1, int(info.max), int(info.max) - 1, 0, 1], dtype), shape)
    pick = rng.random(shape)
    return np.where(pick < 0.4, small, np.where(pick < 0.8, large, ends))


def odd_numbers(role: InputDistribution) -> tuple[float, ...]:
    """Special floats of the second input: zeros, numbers with few bits, large ones."""
    found: tuple[float, ...] = ODD + LARGE if role.large else ODD
    if role.weight:
        found = tuple(role.deviation * x for x in ODD if abs(x) <= 2)
    found += tuple(c * f for c in sorted(role.limits) for f in (1.0, 0.75, 1.5))
    ties = sorted(x for x in role.ties if (x > 0 or not role.positive) and (abs(x) <= 2 or not role.weight))
    found = tuple(abs(x) for x in found if x) if role.positive else found
    return found + tuple(ties) * (len(found) // max(1, len(ties)) or 1)


def odd_share(role: InputDistribution) -> float:
    """Share of `odd_numbers` among the floats of the second input."""
    return 2 * SHARE if role.ties else SHARE


def inputs(graph: Graph, rng: np.random.Generator, turn: int = 0, kinds: Sequence[str] = GIVEN) -> dict[str, Array]:
    """Arrays for inputs and states (or leaves of other `kinds`), by name. `turn`: index of the verification input."""
    known, found = input_distributions(graph, kinds), {}
    for leaf in (leaf for kind in kinds for leaf in (graph.inputs if kind == "input" else graph.leaves(kind))):
        shape, name, kind = concrete(leaf.shape), str(leaf.attr("name")), dtypes.category(leaf.dtype)
        role = known.get(name) or InputDistribution()
        found[name] = _drawn(shape, leaf.dtype, kind, role, rng, turn)
    for name, x in found.items():
        role = known.get(name) or InputDistribution()
        if turn == 1 and role.alike:
            found[name] = made_alike(found, name, role.alike, SHARE, rng, role.positive)
        elif turn == 2 and (lines := kinds_of_lines(role, dtypes.name_of(x.dtype))):
            make_lines_uniform(x, lines, rng)
        elif turn > 2 and (lines := kinds_of_lines(role, dtypes.name_of(x.dtype))):
            make_whole_uniform(x, lines, turn)
    return found


def kinds_of_lines(role: InputDistribution, dtype: str) -> Sequence[str]:
    """Kinds of uniform lines (uniform_lines.py) of an input of the third verification set."""
    if role.weight or role.bound or role.counted or role.divisor or role.exponent or role.positive:
        return ()
    if dtype == "bool":
        return "false", "true"
    signs = ("positive",) if dtype.startswith("u") else ("positive", "negative")
    return ("zero", *signs, "small") if dtypes.is_float(dtype) and role.large else ("zero", *signs)


def repeated(shape: tuple[int, ...], draw: Callable[[tuple[int, ...]], Array]) -> Array:
    """Draw an array of a shape with `draw`; for shapes of more than DRAWN elements, a block of PERIOD elements is drawn
    and repeated, because drawing needs several times the memory of its result (float64, masks)."""
    return np.resize(draw((PERIOD,)), shape) if math.prod(shape) > DRAWN else draw(shape)


def _drawn(
    shape: tuple[int, ...], dtype: str, kind: str, role: InputDistribution, rng: np.random.Generator, turn: int
) -> Array:
    """Values for one leaf. Large leaves, except indices, repeat a block of values."""
    draw = partial(_block, dtype=dtype, kind=kind, role=role, rng=rng, turn=turn)
    return draw(shape) if role.bound else repeated(shape, draw)


def _block(
    shape: tuple[int, ...], dtype: str, kind: str, role: InputDistribution, rng: np.random.Generator, turn: int
) -> Array:
    if kind == "bool":
        return np.asarray(rng.random(shape) < 0.5)
    if kind == "int":
        return whole_numbers(shape, dtype, role, rng, turn)
    return _floats(shape, role, rng, turn).astype(dtypes.numpy_dtype(dtype))


def _floats(shape: tuple[int, ...], role: InputDistribution, rng: np.random.Generator, turn: int) -> Array:
    x = np.asarray(role.mean + role.deviation * rng.standard_normal(shape))
    if role.positive:
        away = np.abs(x) + 0.1 * role.deviation
        x = np.where(rng.random(shape) < SHARE, x, away) if turn == 2 else away
    if turn == 1:
        x = np.where(rng.random(shape) < odd_share(role), rng.choice(np.array(odd_numbers(role)), shape), x)
    return np.asarray(x)


def special_floats(values: Mapping[str, Array], rng: np.random.Generator) -> dict[str, Array]:
    """The values with NaN, infinities, signed zeros and denormals mixed into floats, for bitwise comparison of
    programs."""
    found = {}
    for name, x in values.items():
        if dtypes.is_float(dtypes.name_of(x.dtype)):
            with np.errstate(over="ignore", under="ignore"):
                odd = rng.choice(
                    np.array((np.nan, np.inf, -np.inf, -0.0, 0.0, 1e-40, -1e-40, 3e38, 1.0)), x.shape
                ).astype(x.dtype)
            x = np.where(rng.random(x.shape) < SHARE, odd, x)
        found[name] = np.asarray(x)
    return found


__all__ = [
    "inputs",
    "odd_numbers",
    "odd_share",
    "random_indices",
    "repeated",
    "special_floats",
    "whole_numbers",
]
