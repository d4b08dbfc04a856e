"""Lowers einsum to matrix products: the einsum of NumPy, ONNX and torch."""

from __future__ import annotations

from collections.abc import Sequence

from ...egraph.builders import builders as t
from ...egraph.ir.tensor import Tensor
from ...egraph.types.dims import volume
from ...errors import ShapeError


def einsum(equation: str, operands: Sequence[Tensor]) -> Tensor:
    """Einstein sum of `operands` by NumPy's `equation`, contracted pairwise from left to right by matrix products.

    Labels absent from the result are summed. Without `->` the result has the labels that occur once, sorted. Raises
    ShapeError if labels and shapes do not match.
    """
    terms, result = _labels(equation, operands)
    pairs = [_diagonal(x, labels) for x, labels in zip(operands, terms)]
    x, labels = pairs[0]
    for i, (y, other) in enumerate(pairs[1:], 1):
        later = set(result).union(*(ls for _, ls in pairs[i + 1 :]))
        x, labels = _pair(x, labels, y, other, later)
    if unknown := sorted(set(result) - set(labels)):
        raise ShapeError(f"no operand of {equation!r} has the labels {unknown}")
    gone = [v for v in labels if v not in result]
    x, labels = _summed(x, labels, gone)
    return t.permute(x, [labels.index(v) for v in result])


def _summed(x: Tensor, labels: list[str], gone: Sequence[str]) -> tuple[Tensor, list[str]]:
    """Sum x over the axes labelled `gone`, in x's dtype. Returns (tensor, remaining labels)."""
    if not gone:
        return x, labels
    return t.sum(x, [labels.index(v) for v in gone], dtype=x.dtype), [v for v in labels if v not in gone]


def positions(x: Tensor, axis: int) -> Tensor:
    """Return the indices along one axis of x as an iota; the other axes have size 1."""
    return t.iota([x.shape[axis] if i == axis else 1 for i in range(x.rank)], axis)


def _diagonal(x: Tensor, labels: list[str]) -> tuple[Tensor, list[str]]:
    """Reduce repeated labels of one operand to their diagonal. Returns (tensor, distinct labels)."""
    for label in sorted({v for v in labels if labels.count(v) > 1}):
        while labels.count(label) > 1:
            first, last = labels.index(label), len(labels) - 1 - labels[::-1].index(label)
            if x.shape[first] != x.shape[last]:
                raise ShapeError(f"the label {label!r} stands for axes of size {x.shape[first]} and {x.shape[last]}")
            keep = t.eq(positions(x, first), positions(x, last))
            x = t.sum(t.where(keep, x, t.zeros((1,) * x.rank, x.dtype)), last, dtype=x.dtype)
            labels = labels[:last] + labels[last + 1 :]
    return x, labels


def _labels(equation: str, operands: Sequence[Tensor]) -> tuple[list[list[str]], list[str]]:
    """Parse an equation. Returns (labels of each operand, labels of the result).

    An ellipsis is expanded to labels of its own, aligned at the right.
    """
    left, arrow, right = equation.replace(" ", "").partition("->")
    terms = left.split(",")
    if len(terms) != len(operands):
        raise ShapeError(f"the equation has {len(terms)} operands, not {len(operands)}")
    found: list[list[str]] = []
    widest = 0
    for term, x in zip(terms, operands):
        before, dots, after = term.partition("...")
        extra = x.rank - len(before) - len(after)
        if extra < 0 or (extra and not dots):
            raise ShapeError(f"{term!r} does not fit a rank-{x.rank} value")
        widest = max(widest, extra)
        found.append([*before, *(f"...{i}" for i in range(-extra, 0)), *after])
    dotted = [f"...{i}" for i in range(-widest, 0)]
    if arrow:
        before, dots, after = right.partition("...")
        return found, [*before, *(dotted if dots else []), *after]
    letters = [v for term in found for v in term if not v.startswith("...")]
    return found, [*dotted, *sorted(v for v in set(letters) if letters.count(v) == 1)]


def _aligned(x: Tensor, labels: list[str], order: list[str]) -> Tensor:
    """Transpose x to the label order `order`, with size-1 axes for labels that x lacks."""
    x = t.permute(x, [labels.index(v) for v in order if v in labels])
    sizes = iter(x.shape)
    return t.reshape(x, [next(sizes) if v in labels else 1 for v in order])


def _pair(a: Tensor, la: list[str], b: Tensor, lb: list[str], later: set[str]) -> tuple[Tensor, list[str]]:
    """Contract two operands by a matrix product. Returns (tensor, labels).

    Shared labels in `later` become batch axes, other shared labels are contracted. Labels of only one operand that are
    not in `later` are summed first.
    """
    alone_a = [v for v in la if v not in lb and v not in later]
    alone_b = [v for v in lb if v not in la and v not in later]
    a, la = _summed(a, la, alone_a)
    b, lb = _summed(b, lb, alone_b)
    inner = [v for v in la if v in lb and v not in later]
    batch = [v for v in la if v in lb and v in later]
    rows, columns = [v for v in la if v not in lb], [v for v in lb if v not in la]
    if not inner:
        order = [*batch, *rows, *columns]
        return t.mul(_aligned(a, la, order), _aligned(b, lb, order)), order
    sizes = {v: a.shape[la.index(v)] for v in la} | {
        v: b.shape[lb.index(v)] for v in lb if v not in la or b.shape[lb.index(v)] != 1
    }
    m, k, width = (volume(tuple(sizes[v] for v in labels)) for labels in (rows, inner, columns))
    before_a, before_b = [a.shape[la.index(v)] for v in batch], [b.shape[lb.index(v)] for v in batch]
    left = t.reshape(_aligned(a, la, [*batch, *rows, *inner]), [*before_a, m, k])
    right = t.reshape(_aligned(b, lb, [*batch, *inner, *columns]), [*before_b, k, width])
    out = t.matmul(left, right)
    return t.reshape(out, [sizes[v] for v in [*batch, *rows, *columns]]), [*batch, *rows, *columns]


__all__ = ["einsum", "positions"]
