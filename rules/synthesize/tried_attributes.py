"""Lists attributes to try when terms are enumerated, and computes the sizes of results as expressions in the variables'
sizes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from ...egraph.ops.ops import OPS, Type
from ...egraph.patterns.pattern_attrs import Apply, Attr, AttrConstant
from .term_values import Sizes, UniverseEntry


def _total(parts: Sequence[Attr]) -> Attr:
    found = parts[0]
    for part in parts[1:]:
        found = Apply("add", (found, part))
    return found


def _vec(*items: int) -> Attr:
    return Apply("vec", tuple(map(AttrConstant, items)))


def _axis(x: UniverseEntry) -> Iterator[dict[str, Attr]]:
    for i in range(x.type.rank):
        yield {"axis": AttrConstant(i)}


def _axes(x: UniverseEntry) -> Iterator[dict[str, Attr]]:
    for i in range(x.type.rank):
        if x.type.shape[i] != 1:
            yield {"axes": _vec(i)}


_PERMS: dict[int, tuple[tuple[int, ...], ...]] = {2: ((1, 0),), 3: ((0, 2, 1),), 4: ((1, 0, 2, 3), (0, 1, 3, 2))}


def _perm(x: UniverseEntry) -> Iterator[dict[str, Attr]]:
    for perm in _PERMS.get(x.type.rank, ()):
        yield {"perm": _vec(*perm)}


def _cuts(x: UniverseEntry) -> Iterator[dict[str, Attr]]:
    """Attributes of the slices to try: both parts at every concat boundary of every axis.

    For an axis without a boundary: its first element and the rest.
    """
    for i, parts in enumerate(x.sizes):
        whole = _total(parts)
        spots: list[Attr] = [_total(parts[:k]) for k in range(1, len(parts))]
        if len(parts) == 1 and x.shape[i] > 1:
            spots = [AttrConstant(1)]
        for spot in spots:
            yield {"axis": AttrConstant(i), "start": AttrConstant(0), "stop": spot, "step": AttrConstant(1)}
            yield {"axis": AttrConstant(i), "start": spot, "stop": whole, "step": AttrConstant(1)}


def _pads(x: UniverseEntry) -> Iterator[dict[str, Attr]]:
    for i in range(x.type.rank):
        for lo, hi in ((1, 0), (0, 1)):
            yield {"axis": AttrConstant(i), "lo": AttrConstant(lo), "hi": AttrConstant(hi), "value": AttrConstant(0.0)}


def _conv(x: UniverseEntry) -> Iterator[dict[str, Attr]]:
    for pad in (1, 0):
        yield {"strides": _vec(1, 1), "pads": _vec(*(pad,) * 4), "dilations": _vec(1, 1), "groups": AttrConstant(1)}


def _pool(x: UniverseEntry) -> Iterator[dict[str, Attr]]:
    for kernel, stride, pad in ((3, 1, 1), (2, 2, 0)):
        yield {"kernel": _vec(kernel, kernel), "strides": _vec(stride, stride), "pads": _vec(*(pad,) * 4),
               "dilations": _vec(1, 1)}  # fmt: skip


_TRIED: dict[tuple[str, ...], Callable[[UniverseEntry], Iterator[dict[str, Attr]]]] = {
    (): lambda x: iter(({},)), ("axis",): _axis, ("axes",): _axes, ("perm",): _perm,
    ("axis", "start", "stop", "step"): _cuts, ("axis", "lo", "hi", "value"): _pads,
    ("strides", "pads", "dilations", "groups"): _conv, ("kernel", "strides", "pads", "dilations"): _pool,
}  # fmt: skip


def attributes_of(op: str) -> Callable[[UniverseEntry], Iterator[dict[str, Attr]]] | None:
    """Function from an op's first operand to the attribute values to try; None for an op that is not enumerated."""
    entry = OPS[op]
    if entry.law in (
        "gather",
        "gather_elements",
        "scatter_elements",
        "cross_entropy",
        "rope",
        "attention",
        "channel_norm",
    ):
        return None
    return _TRIED.get(tuple(entry.attrs))


def result_sizes(
    op: str, args: Sequence[UniverseEntry], attrs: Mapping[str, Any], given: Mapping[str, Attr], result: Type
) -> Sizes:
    """The sizes of the value of an op as expressions where they follow from the operands' sizes, else as numbers.

    `attrs`: the op's attributes as numbers; `given`: the same as expressions. `result`: type of the value.
    """
    law, x = OPS[op].law, args[0]
    same = x.type.rank == result.rank
    found: list[tuple[Attr, ...]] = list(x.sizes) if same else [(AttrConstant(d),) for d in result.shape]
    if law == "matmul":
        found = [*x.sizes[:-1], args[1].sizes[-1]]
    elif law == "conv":
        found = [x.sizes[0], args[1].sizes[0], *x.sizes[2:]]
    elif law == "permute":
        found = [x.sizes[p] for p in attrs["perm"]]
    elif law == "concat":
        found[attrs["axis"]] = x.sizes[attrs["axis"]] + args[1].sizes[attrs["axis"]]
    elif law == "slice":
        found[attrs["axis"]] = _part(x.sizes[attrs["axis"]], given["start"], given["stop"])
    elif law == "pad":
        lo, hi = (((given[n],) if attrs[n] else ()) for n in ("lo", "hi"))
        found[attrs["axis"]] = (*lo, *x.sizes[attrs["axis"]], *hi)
    elif law in ("pointwise", "compare", "where"):
        for i, size in enumerate(result.shape):
            found[i] = next(a.sizes[i] for a in args if a.type.shape[i] == size)
    elif law == "reduce":
        for i in attrs["axes"]:
            found[i] = (AttrConstant(1),)
    return tuple(found)


def _part(parts: tuple[Attr, ...], start: Attr, stop: Attr) -> tuple[Attr, ...]:
    """The size of a slice: the parts between two concat boundaries, or the difference of the bounds."""
    for k in range(1, len(parts)):
        if stop == _total(parts[:k]) and start == AttrConstant(0):
            return parts[:k]
        if start == _total(parts[:k]):
            return parts[k:]
    return (stop,) if start == AttrConstant(0) else (Apply("sub", (stop, start)),)


__all__ = ["attributes_of", "result_sizes"]
