"""Translates ONNX control flow to expressions: If with a known condition; Loop and Scan unrolled when the trip count is
known."""

from __future__ import annotations

from collections.abc import Sequence

from ...egraph.builders import builders as t
from ...egraph.ir.tensor import Tensor
from ...egraph.types.dims import DimExpr
from ...errors import ShapeError
from .node import Node, Result, operator, resolve
from .values import Opaque, SymbolicInts, Value

#: Largest trip count that is unrolled.
MOST_ITERATIONS = 512


def _stacked(n: Node, parts: Sequence[Value], axis: int = 0, backwards: bool = False) -> Tensor:
    if not parts:
        raise n.unsupported("zero iterations")
    if any(isinstance(v, Opaque) for v in parts):
        raise n.unsupported("sequences, or sizes that depend on data, as scan outputs")
    found = [v.tensor() if isinstance(v, SymbolicInts) else v for v in parts if not isinstance(v, Opaque)]
    return t.stack(found[::-1] if backwards else found, resolve(axis, found[0].rank + 1))


@operator("Identity")
def _identity(n: Node) -> Result:
    return n.value(0)


@operator("If", limits="conditions that depend on data")
def _if(n: Node) -> Result:
    n.single(0)
    condition = n.array(0)
    found = n.branch(n.attr("then_branch") if bool(condition.reshape(-1)[0]) else n.attr("else_branch"))
    if len(found) != len(n.outputs):
        raise ShapeError(f"a branch has {len(found)} outputs, but the node {len(n.outputs)}")
    return found


@operator("Loop", limits=f"trip counts that depend on data or are above {MOST_ITERATIONS}")
def _loop(n: Node) -> Result:
    """Unroll a loop. Operands: trip count, initial condition, loop-carried values."""
    for i in (0, 1):
        if n.has(i):
            n.single(i)
    limit = n.known(0)
    if n.has(0) and (limit is None or isinstance(limit.reshape(-1)[0], DimExpr)):
        raise n.unsupported("the trip count depends on data or on a free dimension")
    rounds = MOST_ITERATIONS + 1 if limit is None else int(limit.reshape(-1)[0])
    going = n.inputs[1] if n.has(1) else None
    carried: list[Value] = [n.value(i) for i in range(2, len(n.inputs))]
    kept: list[list[Value]] = [[] for _ in range(len(n.outputs) - len(carried))]
    for number in range(rounds):
        if not _holds(n, going):
            break
        if number == MOST_ITERATIONS:
            raise n.unsupported(f"more than {MOST_ITERATIONS} iterations")
        going_now: Value = t.full((), 1, "bool") if going is None else going
        going, *results = n.branch(n.attr("body"), [t.full((), number, "int64"), going_now, *carried])
        carried = _sorted_out(n, results, len(carried), kept)
    return [*carried, *(_stacked(n, parts) if n.wanted(len(carried) + i) else None for i, parts in enumerate(kept))]


def _sorted_out(n: Node, results: list[Value], carried: int, kept: list[list[Value]]) -> list[Value]:
    """Append a body's results after the first `carried` to the lists of stacked ones, and return the carried ones.
    Raises ShapeError if the body gives another number of results than the node has."""
    if len(results) != carried + len(kept):
        raise ShapeError(
            f"the body gives {len(results)} values, the node has {carried} carried and {len(kept)} stacked"
        )
    for parts, value in zip(kept, results[carried:]):
        parts.append(value)
    return results[:carried]


def _holds(n: Node, condition: Value | None) -> bool:
    if condition is None:
        return True
    known = n.context.known(condition)
    if known is None:
        raise n.unsupported("the loop condition depends on data")
    return bool(known.reshape(-1)[0])


@operator("Scan", limits=f"free dimensions to scan over, and axes longer than {MOST_ITERATIONS}")
def _scan(n: Node) -> Result:
    """Unroll a scan over the positions of the scanned operands, which are the last `num_scan_inputs`."""
    count = n.attr("num_scan_inputs")
    if count > len(n.inputs):
        raise ShapeError(f"num_scan_inputs is {count} of {len(n.inputs)} operands")
    carried: list[Value] = [n.value(i) for i in range(len(n.inputs) - count)]
    scanned = [n.x(i) for i in range(len(n.inputs) - count, len(n.inputs))]
    axes = [resolve(a, x.rank) for a, x in zip(n.numbers("scan_input_axes", count), scanned)]
    turned = _directions(n, "scan_input_directions", count)
    sizes = {x.shape[axis] for x, axis in zip(scanned, axes)}
    rounds = next(iter(sizes), 0)
    if len(sizes) != 1 or isinstance(rounds, DimExpr) or rounds > MOST_ITERATIONS:
        raise n.unsupported(f"over {', '.join(map(str, sizes))} positions")
    outputs = len(n.outputs) - len(carried)
    kept: list[list[Value]] = [[] for _ in range(outputs)]
    for number in range(rounds):
        slices = [
            _position(x, axis, rounds - 1 - number if back else number) for x, axis, back in zip(scanned, axes, turned)
        ]
        results = n.branch(n.attr("body"), [*carried, *slices])
        carried = _sorted_out(n, results, len(carried), kept)
    places, order = n.numbers("scan_output_axes", outputs), _directions(n, "scan_output_directions", outputs)
    return [*carried, *(_stacked(n, *each) for each in zip(kept, places, order))]


def _directions(n: Node, name: str, count: int) -> list[bool]:
    """Return for each of `count` scanned values whether its positions are taken backwards."""
    found = n.numbers(name, count)
    if not set(found) <= {0, 1}:
        raise ShapeError(f"{name}={found} is not 0 or 1 for each")
    return [bool(d) for d in found]


def _position(x: Tensor, axis: int, place: int) -> Tensor:
    return t.squeeze(t.slice_axis(x, axis, place, place + 1), axis)
