"""Chooses the layouts in which generated kernels over images are considered: all images row-major, or all
channels-last.

A kernel with k image operands and one image result has 2 ** (k + 1) layout combinations; for a large model, all of them
would take most of the time available for measuring. A good plan keeps all images in one layout and changes it where it
must: at values that are in memory from the start, at library kernels or views that support one layout only, and at the
outputs. A copy kernel between the two layouts is always available.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from enum import Enum
from typing import NamedTuple

from ...egraph.ops.ops import OPS
from ...egraph.view.view import EGraphView
from ..model.kernel import Strides

# ops with an image operand and an image result
IMAGE_OPS = frozenset(("conv", "max_pool", "avg_pool", "group_norm", "batch_norm"))


def image_classes(view: EGraphView) -> frozenset[int]:
    """E-classes of an e-graph that are images: operands and results of convolutions, poolings and channel norms, and
    the e-classes connected to these by elementwise ops."""
    rank = [t.rank for t in view.types]
    beside: dict[int, set[int]] = {}
    todo: list[int] = []
    for node, op in enumerate(view.op):
        children, cls = view.children(node).tolist(), int(view.cls[node])
        if op in IMAGE_OPS:
            todo += [cls, children[0]]
        elif OPS[op].pointwise or (OPS[op].moves and "axis" in OPS[op].attrs):
            for child in children:
                if rank[child] == rank[cls]:
                    beside.setdefault(cls, set()).add(child)
                    beside.setdefault(child, set()).add(cls)
    found: set[int] = set()
    while todo:
        cls = todo.pop()
        if cls not in found and rank[cls] > 2:
            found.add(cls)
            todo += beside.get(cls, ())
    return frozenset(found)


class ImageLayout(Enum):
    """Order of an image's axes in memory: row-major or channels-last."""

    ROWS = "row-major"
    TURNED = "channels innermost"


class KernelImageLayouts(NamedTuple):
    """Layouts that a kernel's image operands and result may have.

    `allowed`: for each operand the indices of its layouts (in the list of its e-class). `images`: for each operand the
    index of each image layout (empty: not an image). `image_result`: whether the result is an image. `writes`: layout
    of the result as the kernel writes it. `asked_for`: whether the result is a root (an output of the model), which
    must be row-major.
    """

    allowed: Sequence[Sequence[int]]
    images: Sequence[Mapping[ImageLayout, int]]
    image_result: bool
    writes: ImageLayout
    asked_for: bool

    @property
    def uniform(self) -> Iterator[list[list[int]]]:
        """Choices of operand layouts in which all image operands have the same one of the two layouts; each choice
        lists the allowed layout indices of every operand.

        An image result must have that layout as well, unless it is a root that the kernel writes row-major.
        """
        for lies in ImageLayout:
            if (
                self.image_result
                and any(self.images)
                and lies is not self.writes
                and not (self.asked_for and self.writes is ImageLayout.ROWS)
            ):
                continue
            other = ImageLayout.TURNED if lies is ImageLayout.ROWS else ImageLayout.ROWS
            yield [[n for n in one if n != known.get(other)] for one, known in zip(self.allowed, self.images)]


def image_layout_indices(layouts: Sequence[Strides], turned: Strides | None) -> Mapping[ImageLayout, int]:
    """Index of each of the two image layouts in `layouts`, the layouts of an e-class; empty if the e-class has only one
    of them.

    `turned`: channels-last strides of the e-class; None if it is never stored so.
    """
    if turned is None or turned not in layouts[1:]:
        return {}
    return {ImageLayout.ROWS: 0, ImageLayout.TURNED: layouts.index(turned)}


__all__ = ["ImageLayout", "KernelImageLayouts", "image_classes", "image_layout_indices"]
