"""Finds how the inputs that verify a graph are distributed, by the operations that read them and by the graph's typical
values."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from ...egraph.evaluate.interpret import GRAPHS, expanded
from ...egraph.ir.graph import Graph
from ...egraph.ir.memo import memo
from ...egraph.ir.places import visible_places
from ...egraph.ir.tensor import Tensor
from ...egraph.types import dtypes
from ...egraph.types.dims import concrete
from ...egraph.types.dtypes import HALVES
from .index_bounds import GIVEN, index_bounds, sources
from .ties import Alike, alike_inputs, tied_inputs

LIMIT = 1e4  # largest constant that floats are drawn near: -1e9 and the like only mask
EDGE = 100  # bound of integers that floats are computed from
DRAWN = 1 << 26  # maximum elements drawn individually; larger inputs repeat a block
DEEP = 4  # products of computed values with inputs, in a graph whose inputs are scaled as weights


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


__all__ = ["DRAWN", "EDGE", "InputDistribution", "input_distributions"]
