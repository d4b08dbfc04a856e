"""What a region is, and how far one may go: which operations it holds, and what of them is read as it lies."""

from __future__ import annotations

from dataclasses import dataclass

from ..egraph.graph import Tensor
from ..egraph.ops import OPS

ROWS = frozenset(("sum", "max", "min", "mean", "softmax", "log_softmax", "logsumexp", "layer_norm", "rms_norm", "group_norm",
                  "max_pool", "avg_pool"))  # fmt: skip
AGAIN = frozenset(("softmax", "log_softmax", "logsumexp", "layer_norm", "rms_norm", "group_norm"))
"""Reductions that walk their rows more than once: what is computed below them is computed anew each time."""
PRODUCTS = frozenset(("matmul", "linear", "attention", "masked_attention", "conv"))
ATTENTION = frozenset(("attention", "masked_attention"))
INDEXED = frozenset(("cast", "where", "gather", "gather_elements", "broadcast_to", "concat", "pad", "rope", "full", "iota", "permute", "reshape", "slice", "flip", "windows", "batch_norm"))  # fmt: skip
ALL = 99  # products on a path beyond which there are no more
NARROW = 256  # columns of a layer that one kernel computes with the layers behind it, each row of it held whole


@dataclass(frozen=True)
class Reach:
    """How far a region goes: products on a path from its output, and whether reductions are inlined above them
    (between the output and a product), at a product's operands, and beside no product at all. `left_only`: operands of a
    product other than the first, which programs for other rows read again, are read as they lie in memory. `rows_bare`: so are
    rows that are walked more than once. `spread_bare`: so are values spread over more elements that no pointwise operations
    alone compute; of the operands that `left_only` names, these and nothing else. `layers`: products are those of matrices, with
    at most `NARROW` columns where another one follows."""

    name: str
    products: int
    rows_above: bool
    rows_below: bool
    pointwise_below: bool = True
    left_only: bool = False
    rows_bare: bool = False
    spread_bare: bool = False
    layers: bool = False


#: From the smallest to the largest.
REACHES = (
    Reach("pointwise", 0, False, False),
    Reach("rows", 0, True, True),
    Reach("rows as they lie", 0, True, True, rows_bare=True),
    Reach("product", 1, False, False, pointwise_below=False),
    Reach("product, prologue", 1, False, False),
    Reach("product, row prologue", 1, False, True),
    Reach("product, row prologue on the left", 1, False, True, left_only=True),
    Reach("two products", 2, True, False, pointwise_below=True),
    Reach("two products, row prologue", 2, True, True),
    Reach("three narrow layers", 3, False, False, layers=True),
    Reach("pointwise, statistics as they lie", 0, False, False, spread_bare=True),
    Reach("product, spread as it lies", 1, False, False, pointwise_below=False, spread_bare=True),
    Reach(
        "product, row prologue on the left, statistics as they lie", 1, False, True, left_only=True, spread_bare=True
    ),
)


@dataclass(frozen=True)
class Region:
    """A class as a term over leaves; `leaves` maps the term's inputs to their classes, in order of first use; `inner` are
    the classes that the term computes on its way, with their terms; `statistics` those leaves that are spread over more
    elements and read as they lie for that."""

    cls: int
    term: Tensor
    leaves: tuple[tuple[Tensor, int], ...]
    reach: str
    inner: tuple[tuple[Tensor, int], ...] = ()
    statistics: tuple[int, ...] = ()

    @property
    def classes(self) -> tuple[int, ...]:
        """What a kernel for it makes."""
        return (self.cls,)

    @property
    def terms(self) -> tuple[Tensor, ...]:
        """The term of each class that it makes."""
        return (self.term,)


def kind_of(op: str) -> str:
    """What an operation is for regions: rows that are reduced, a product, cheap, values written to places, or opaque."""
    if op in ROWS:
        return "rows"
    if op in PRODUCTS:
        return "product"
    if op == "scatter_elements":  # a region may end with it: values go to places of what is in memory
        return "written"
    return "cheap" if op in INDEXED or OPS[op].pointwise else "opaque"
