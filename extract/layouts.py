"""In which layouts kernels that are generated look at images: all in one, where they may lie in either.

An image can lie row-major or with its channels innermost. A kernel that reads k of them and writes one could be looked at in
2 ** (k + 1) ways, and of a large model that took most of the time in which anything was to be measured. A good plan has its images in
one layout; it changes where it must: at what is given, at what a library or a view has in one layout only, and at the outputs. Between
two layouts there is always a copy.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from enum import Enum
from typing import NamedTuple

from ..egraph.ops import OPS
from ..egraph.view import EGraphView
from .kernel import Strides

WINDOWS = frozenset(("conv", "max_pool", "avg_pool", "group_norm", "batch_norm"))  # they have an image, and make one
ALONG = frozenset(
    ("cast", "concat", "pad", "slice", "flip", "where")
)  # what they read lies as what they make, as in pointwise ops


def images(view: EGraphView) -> frozenset[int]:
    """The classes of a view that are images: what convolutions, pools and norms of channels read and make, and what is made of
    that, or makes it, element by element."""
    rank = [t.rank for t in view.types]
    beside: dict[int, set[int]] = {}
    todo: list[int] = []
    for node, op in enumerate(view.op):
        kids, cls = view.kids(node).tolist(), int(view.cls[node])
        if op in WINDOWS:
            todo += [cls, kids[0]]
        elif op in ALONG or OPS[op].pointwise:
            for kid in kids:
                if rank[kid] == rank[cls]:
                    beside.setdefault(cls, set()).add(kid)
                    beside.setdefault(kid, set()).add(cls)
    found: set[int] = set()
    while todo:
        cls = todo.pop()
        if cls not in found and rank[cls] > 2:
            found.add(cls)
            todo += beside.get(cls, ())
    return frozenset(found)


class Lies(Enum):
    """How an image lies."""

    ROWS = "row-major"
    TURNED = "channels innermost"


class Places(NamedTuple):
    """What a kernel reads and writes: of each operand the layouts that it may have (by number), and which of them are those of an
    image that may lie in either; whether its result is such an image, how the kernel writes it, and whether it must be row-major."""

    allowed: Sequence[Sequence[int]]
    images: Sequence[Mapping[Lies, int]]
    free: bool
    writes: Lies
    asked_for: bool

    @property
    def uniform(self) -> Iterator[list[list[int]]]:
        """The layouts of the operands where all images lie alike; and, where the result can lie as they do, the result as well."""
        for lies in Lies:
            if (
                self.free
                and any(self.images)
                and lies is not self.writes
                and not (self.asked_for and self.writes is Lies.ROWS)
            ):
                continue
            other = Lies.TURNED if lies is Lies.ROWS else Lies.ROWS
            yield [[n for n in one if n != known.get(other)] for one, known in zip(self.allowed, self.images)]


def between(layouts: Sequence[Strides], turned: Strides | None) -> Mapping[Lies, int]:
    """The numbers of an image's two layouts among all that a class may have; none where it has only one of them."""
    if turned is None or turned not in layouts[1:]:
        return {}
    return {Lies.ROWS: 0, Lies.TURNED: layouts.index(turned)}


__all__ = ["Lies", "Places", "between", "images"]
