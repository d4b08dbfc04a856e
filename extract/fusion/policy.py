"""Defines fusion groups (terms for one kernel) and fusion policies: which operations a group may contain, and which
operands stay in memory."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from ...egraph.ir.tensor import Tensor

UNLIMITED_PRODUCTS = 99  # more products than any path has
MAX_NARROW_COLUMNS = 256  # largest width of a layer fused with the next layers, whose rows are held whole


@dataclass(frozen=True)
class FusionPolicy:
    """Limits on the contents of a fusion group, and on the operands that stay in memory.

    An inlined operation is computed inside the group's kernel; a leaf is an operand that is read from memory. A path
    leads from the group's output to one of its operands. `name` identifies the policy in the groups grown under it.

    `products`: number of matrix products on a path. `rows_above`: whether reductions are inlined on a path that has
    fewer than `products` products so far, or none; `rows_below`: whether those at the operands of a path's product
    number `products` are. `rows_beside`: those on paths without a product are inlined also without `rows_above`, with
    what they read, but no products (a norm by which a product's result is divided). `rows_bare`: operands of reductions
    that need several passes are leaves.

    `pointwise_below`: whether elementwise operations at a product's operands are inlined. `left_only`: operands of a
    product other than the first are leaves, because thread blocks for other rows read them again. `spread_bare`: values
    broadcast over more elements (statistics) are leaves, unless elementwise operations alone compute them; with it,
    `left_only` makes only the statistics of those other operands leaves.

    `layers`: products are GEMMs, with at most `MAX_NARROW_COLUMNS` columns if another GEMM follows. `packed`: weights
    computed from fewer bytes (dequantized ones) are inlined; otherwise they are leaves, computed once at load time.
    `scans`: running sums are inlined, and a group has at least one.
    """

    name: str
    products: int
    rows_above: bool
    rows_below: bool
    pointwise_below: bool = True
    left_only: bool = False
    rows_bare: bool = False
    spread_bare: bool = False
    layers: bool = False
    packed: bool = False
    rows_beside: bool = False
    scans: bool = False


#: From the smallest to the largest.
FUSION_POLICIES = (
    FusionPolicy("pointwise", 0, False, False),
    FusionPolicy("rows", 0, True, True),
    FusionPolicy("rows as they lie", 0, True, True, rows_bare=True),
    FusionPolicy("product", 1, False, False, pointwise_below=False),
    FusionPolicy("product, prologue", 1, False, False),
    FusionPolicy("product, row prologue", 1, False, True),
    FusionPolicy("product, row prologue on the left", 1, False, True, left_only=True, rows_beside=True),
    FusionPolicy("two products", 2, True, False, pointwise_below=True),
    FusionPolicy("two products, row prologue", 2, True, True),
    FusionPolicy("three narrow layers", 3, False, False, layers=True),
    FusionPolicy("pointwise, statistics as they lie", 0, False, False, spread_bare=True),
    FusionPolicy("product, spread as it lies", 1, False, False, pointwise_below=False, spread_bare=True),
    FusionPolicy(
        "product, row prologue on the left, statistics as they lie", 1, False, True, left_only=True, spread_bare=True
    ),
    FusionPolicy("running sums", 0, False, False, scans=True),
)


#: A product alone whose weights are computed from fewer bytes inside the group.
PACKED_PRODUCT = FusionPolicy("product, packed weights", 1, False, False, pointwise_below=False, packed=True)


def with_packed(policies: Iterable[FusionPolicy]) -> tuple[FusionPolicy, ...]:
    """The policies, followed by a copy of each that inlines packed weights (`FusionPolicy.packed`)."""
    plain = tuple(policies)
    return (*plain, *(replace(p, name=f"{p.name}, packed weights", packed=True) for p in plain))


@dataclass(frozen=True)
class FusionGroup:
    """A fusion group: a term that one generated kernel computes, with its output e-class `cls`.

    `leaves`: (input of the term, e-class), in order of first use. `policy`: name of the fusion policy. `inner`: (term,
    e-class) of intermediate values. `statistics`: e-classes of leaves that are broadcast over more elements and
    therefore read from memory.
    """

    cls: int
    term: Tensor
    leaves: tuple[tuple[Tensor, int], ...]
    policy: str
    inner: tuple[tuple[Tensor, int], ...] = ()
    statistics: tuple[int, ...] = ()

    @property
    def classes(self) -> tuple[int, ...]:
        """E-classes that a kernel for the group writes."""
        return (self.cls,)

    @property
    def terms(self) -> tuple[Tensor, ...]:
        """Term of each e-class that a kernel for the group writes."""
        return (self.term,)
