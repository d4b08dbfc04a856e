"""Draws the inputs with which a graph is verified: random values in the domains of the operations that read them.

Indices are in range, including the first and the last, and negative ones where negative indices are allowed. Values
that the graph compares with a constant or with positions are near that constant or the positions. Divisors are not
zero. Integers used only in integer arithmetic cover their whole dtype and wrap around. Floats are normal numbers, with
the mean and deviation of the graph's typical values where these are known, positive if a logarithm or root is taken of
them. In the second input a share of the floats is zero, has few bits (causing ties, also behind factors: ties.py), is a
thousand times as large, or ties with an element of another input that it is compared with; in
the third, some operands of logarithms and roots are not positive, and some rows, columns and blocks are zero, small
or of one sign (uniform_lines.py); where a graph decides by whole tensors, further inputs are so as a whole. Inputs that
are weights of a deep graph (such as a
training step's) are scaled as weights are initialized, so that values neither grow nor vanish from layer to layer.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np

from ...egraph.evaluate.interpret import GRAPHS, expanded
from ...egraph.ir.graph import Graph
from ...egraph.ir.memo import memo
from ...egraph.ir.places import visible_places
from ...egraph.ir.tensor import Tensor
from ...egraph.types import dtypes
from ...egraph.types.dims import concrete
from ...egraph.types.dtypes import HALVES
from .index_bounds import GIVEN, index_bounds, sources
from .ties import Alike, alike_inputs, made_alike, tied_inputs
from .uniform_lines import make_lines_uniform, make_whole_uniform

Array = np.ndarray[Any, Any]
ODD = (0.0, -0.0, 0.5, -0.5, 1.0, -1.0, 2.0, -2.0, 1.5, 2.5, 8.0, -8.0)
LARGE = (1e-3, -1e-3, 100.0, -100.0, 3e3, -3e3)  # only if no value of the graph is a 16-bit float
LIMIT = 1e4  # largest constant that floats are drawn near: -1e9 and the like only mask
SHARE = 0.125  # share of special values
EDGE = 100  # bound of integers that floats are computed from
LARGE_INT = 70_000  # the same in the second and third input, if no exponential occurs
DRAWN = 1 << 26  # maximum elements drawn individually; larger inputs repeat a block
DEEP = 4  # products of computed values with inputs, in a graph whose inputs are scaled as weights
PERIOD = (
    1 << 24
) + 43  # elements of the block: a prime, so that no stride and no tile size is a multiple of the period


@dataclass
class InputDistribution:
    """Distribution of one verification input's values.

    `divisor`, `exponent`, `positive`: whether the values divide, are exponents, or are operands of a logarithm or
    root. `mean`, `deviation`: of floats.
    """

    mean: float = 0.0
    deviation: float = 1.0
    bound: int = 0  # indices of an axis of this size, if not 0
    signed: bool = False  # whether negative indices are allowed
    near: set[int] = field(default_factory=set)  # constants that integers are compared with
    limits: set[float] = field(default_factory=set)  # constants that floats are compared with or limited to
    ties: set[float] = field(default_factory=set)  # floats for which an operand of rounding or a comparison is a tie
    alike: tuple[Alike, ...] = ()  # values of other inputs with which floats tie; not of weights and large inputs
    counted: int = 0  # bound of the positions that the value is compared with; 0 if it is compared with none
    divisor: bool = False
    exponent: bool = False
    arithmetic: bool = False  # operands of integer arithmetic
    floats: bool = False  # integers or bools that floats depend on
    positive: bool = False
    large: bool = True  # whether large floats are allowed
    exponential: bool = False  # whether an exponential occurs: integers may be masks, which are 0 and 1
    weight: bool = False  # a factor of computed values in a deep graph: special values are as small as the others


def input_distributions(graph: Graph, kinds: Sequence[str] = GIVEN) -> dict[str, InputDistribution]:
    """Distribution of each input and state (or leaf of other `kinds`), by name. Callers must not change them: those of
    the last `GRAPHS` graphs are kept until the end of an optimization."""
    typical = tuple((name, (mean, deviation)) for name, (mean, deviation) in sorted(graph.typical.items()))
    return dict(_distributions(graph.roots, typical, tuple(kinds)))


@memo(GRAPHS)
def _distributions(
    roots: tuple[Tensor, ...], typical: tuple[tuple[str, tuple[float, float]], ...], kinds: tuple[str, ...]
) -> dict[str, InputDistribution]:
    graph = Graph(roots, tuple(map(str, range(len(roots)))), (), typical=dict(typical))
    found = {str(n.attr("name")): InputDistribution() for n in graph.nodes() if n.op in kinds}
    for name, bound in index_bounds(graph, kinds).items():
        found[name].bound = bound
    for name in found.keys() & graph.typical.keys():
        found[name].mean, found[name].deviation = graph.typical[name]
    nodes = expanded(graph).nodes()
    narrow = any(n.dtype in HALVES for n in nodes)
    exponential = any(n.op == "exp" for n in nodes)
    for role in found.values():
        role.large, role.exponential = not narrow, exponential
    _spread(graph, nodes, found, kinds)
    for name, count in visible_places(nodes, kinds).items():
        found[name].counted = count
    for name, ties in tied_inputs(nodes, kinds, EDGE if narrow else LIMIT).items():
        found[name].ties = ties
    for name, alike in alike_inputs(nodes, kinds, DRAWN).items():
        found[name].alike = tuple(sorted(alike))
    fans = _fan_ins(nodes)
    for name in fans.keys() & found.keys() if len(fans) > DEEP else ():
        found[name].weight, found[name].alike = True, ()
        if name not in graph.typical:
            found[name].deviation = fans[name] ** -0.5
    return found


def _fan_ins(nodes: Sequence[Tensor]) -> dict[str, int]:
    """Contracted sizes of the inputs that are only factors of computed values, in products, through views and casts."""
    fans: dict[str, int] = {}
    others: set[str] = set()
    for node in nodes:
        if node.is_leaf or (len(node.args) == 1 and (node.entry.moves or node.op == "cast")):
            continue
        leaves = [next(iter(sources(a)), None) for a in node.args]
        for at, leaf in enumerate(leaves):
            if leaf is None or leaf.op != "input":
                continue
            name = str(leaf.attr("name"))
            factor = node.entry.kind == "contraction" and any(x is None for x in leaves[:at] + leaves[at + 1 :])
            if factor and node.op in ("matmul", "conv"):
                shape = concrete(node.args[0 if node.op == "matmul" else 1].shape)
                fans[name] = max(shape[-1] if node.op == "matmul" else math.prod(shape[1:]), 1)
            else:
                others.add(name)
    return {name: size for name, size in fans.items() if name not in others}


def _spread(graph: Graph, nodes: Sequence[Tensor], found: dict[str, InputDistribution], kinds: Sequence[str]) -> None:
    """Set roles of inputs from the operations that use them, also through views and casts, integer arithmetic and
    sign-preserving ops."""
    moved: dict[int, frozenset[str]] = {}
    whole: dict[int, frozenset[str]] = {}
    signs: dict[int, frozenset[str]] = {}
    wrapped, counted = (
        {
            str(leaf.attr("name"))
            for n in graph.nodes() if n.entry.index_operand is not None and n.entry.negative_indices is negative
            for leaf in sources(n.args[n.entry.index_operand]) if leaf.op in kinds
        }
        for negative in (True, False)
    )  # fmt: skip
    none: frozenset[str] = frozenset()
    for node in nodes:
        if node.is_leaf:
            own = frozenset((str(node.attr("name")),)) if node.op in kinds else none
            moved[id(node)] = whole[id(node)] = signs[id(node)] = own
            continue
        args = [id(a) for a in node.args]
        categories = [dtypes.category(a.dtype) for a in node.args]
        from_ = [moved[a] for a in args]
        moved[id(node)] = (
            none.union(*from_)
            if node.entry.moves or (node.op == "cast" and categories[0] in ("int", dtypes.category(node.dtype)))
            else none
        )
        is_float = dtypes.is_float(node.dtype)
        reads = none.union(*(whole[a] for a, k in zip(args, categories) if k != "float"))
        whole[id(node)] = none if is_float else reads
        if is_float and node.entry.index_operand is None:
            for name in reads:
                found[name].floats = True
        if not is_float and node.entry.integer_arithmetic and categories[0] == "int":
            for name in reads:
                found[name].arithmetic = True
        _roles_of_operands(node, from_, found)
        square = node.op == "mul" and node.args[0] is node.args[1]
        below = none.union(*(signs[a] for a, k in zip(args, categories) if k == "float"))
        signs[id(node)] = below if node.entry.positive_of_positive and not square else none
        if node.entry.domain == "positive" and not _whole_power(node):
            for name in signs[args[0]]:
                found[name].positive = True
    for name, role in found.items():
        role.signed = role.bound > 0 and (name in wrapped or role.signed) and name not in counted


def _roles_of_operands(node: Tensor, from_: Sequence[frozenset[str]], found: dict[str, InputDistribution]) -> None:
    """Set the roles that an operation requires of its operands.

    `from_`: for each operand, the inputs that reach it through views and casts.
    """
    if node.op in ("floordiv", "mod"):
        for name in from_[1]:
            found[name].divisor = True
    if node.op == "pow" and not dtypes.is_float(node.dtype):
        for name in from_[1]:
            found[name].exponent = True
    if node.op == "cast" and node.dtype == "bool":
        for name in from_[0]:
            found[name].near.add(0)
    if node.op in ("lt", "le") and any(n.op == "full" and n.attr("value") == 0 for a in node.args for n in sources(a)):
        for name in from_[0] | from_[1]:  # the graph handles negative indices itself
            found[name].signed = True
    if node.op in ("lt", "le", "eq", "maximum", "minimum"):
        for names, other in zip(from_, node.args[::-1]):
            base = next(iter(sources(other)), None)
            for name in names:
                if base is not None and base.op == "iota" and node.op in ("lt", "le", "eq"):
                    found[name].counted = int(concrete(base.shape)[base.attr("axis")])
                elif base is not None and base.op == "full" and not dtypes.is_float(base.dtype):
                    found[name].near.add(int(base.attr("value")))
                elif base is not None and base.op == "full" and abs(base.attr("value")) <= LIMIT:
                    found[name].limits.add(float(base.attr("value")))


def _whole_power(node: Tensor) -> bool:
    """Whether a node is a power with a constant integer exponent, which is defined for negative bases."""
    if node.op != "pow":
        return False
    base = next(iter(sources(node.args[1])), None)
    return base is not None and base.op == "full" and float(base.attr("value")).is_integer()


# ---------------------------------------------------------------- values
FEW = 1 << 20  # maximum axis size whose indices are shuffled


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
    "InputDistribution",
    "input_distributions",
    "inputs",
    "odd_numbers",
    "odd_share",
    "random_indices",
    "repeated",
    "special_floats",
    "whole_numbers",
]
