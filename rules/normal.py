"""Rules towards a normal form, for proofs only: blocks and sums leave contractions, constants and slices reach the leaves.

Each is the expanding side of a law whose collecting side is in force elsewhere (or would repeat itself there): on a model
it would only make more and smaller kernels. Two terms that are equal by linearity and by the geometry of their blocks meet
in the normal form, up to the order of sums and products, which commutativity and associativity settle.
"""

from __future__ import annotations

from ..egraph.rule import Rule, table

_CONV = "strides=s, pads=p, dilations=d"
_POOL = "kernel=k, strides=s, pads=p, dilations=d"

CONTRACTIONS = table("blocks of contractions", "proof", [
    Rule("split-columns", "x @ concat(a, b, axis=i)", "concat(x @ a, x @ b, axis=rank(x) - 1)", when=("i == rank(a) - 1",),
         growth="expands", doc="a product by weights side by side is two products side by side"),
    Rule("split-rows", "concat(x, y, axis=i) @ w", "concat(x @ w, y @ w, axis=i)", when=("i == rank(x) - 2",), growth="expands",
         doc="a product of rows one above the other is two products"),
    Rule("split-contraction-right", "x @ concat(a, b, axis=i)",
         "slice(x, axis=rank(x) - 1, start=0, stop=size(a, -2)) @ a + slice(x, axis=rank(x) - 1, start=size(a, -2), stop=size(x, -1)) @ b",
         when=("i == rank(a) - 2",), growth="expands", doc="a product by weights one above the other is a sum of products"),
    Rule("split-conv-inputs", f"conv(concat(x, y, axis=1), w, {_CONV}, groups=1)",
         f"conv(x, slice(w, axis=1, start=0, stop=size(x, 1)), {_CONV}, groups=1)"
         f" + conv(y, slice(w, axis=1, start=size(x, 1), stop=size(w, 1)), {_CONV}, groups=1)",
         growth="expands", doc="a convolution of channels side by side is a sum of convolutions"),
    Rule("split-conv-weights", f"conv(x, concat(a, b, axis=1), {_CONV}, groups=1)",
         f"conv(slice(x, axis=1, start=0, stop=size(a, 1)), a, {_CONV}, groups=1)"
         f" + conv(slice(x, axis=1, start=size(a, 1), stop=size(x, 1)), b, {_CONV}, groups=1)",
         growth="expands", doc="a convolution by weights side by side is a sum of convolutions"),
    Rule("split-filters", f"conv(x, concat(a, b, axis=0), {_CONV}, groups=1)",
         f"concat(conv(x, a, {_CONV}, groups=1), conv(x, b, {_CONV}, groups=1), axis=1)", growth="expands",
         doc="stacked filters are two convolutions side by side"),
    Rule("split-grouped-filters", f"conv(x, concat(a, b, axis=0), {_CONV}, groups=g)",
         f"concat(conv(slice(x, axis=1, start=0, stop=size(a, 0) * g // (size(a, 0) + size(b, 0)) * size(a, 1)), a, {_CONV}, groups=size(a, 0) * g // (size(a, 0) + size(b, 0))),"
         f" conv(slice(x, axis=1, start=size(a, 0) * g // (size(a, 0) + size(b, 0)) * size(a, 1), stop=size(x, 1)), b, {_CONV}, groups=g - size(a, 0) * g // (size(a, 0) + size(b, 0))), axis=1)",
         when=("size(a, 0) * g % (size(a, 0) + size(b, 0)) == 0", "0 < size(a, 0)", "0 < size(b, 0)"), growth="expands",
         doc="filters stacked where a group ends are two convolutions of their own channels"),
    Rule("split-groups", f"conv(concat(x, y, axis=1), w, {_CONV}, groups=g)",
         f"concat(conv(x, slice(w, axis=0, start=0, stop=size(x, 1) // size(w, 1) * (size(w, 0) // g)), {_CONV}, groups=size(x, 1) // size(w, 1)),"
         f" conv(y, slice(w, axis=0, start=size(x, 1) // size(w, 1) * (size(w, 0) // g), stop=size(w, 0)), {_CONV}, groups=size(y, 1) // size(w, 1)), axis=1)",
         when=("size(x, 1) % size(w, 1) == 0", "0 < size(x, 1)", "0 < size(y, 1)"), growth="expands",
         doc="channels that meet where a group ends are convolved by their own filters"),
    Rule("split-batch", f"conv(concat(x, y, axis=0), w, {_CONV}, groups=g)",
         f"concat(conv(x, w, {_CONV}, groups=g), conv(y, w, {_CONV}, groups=g), axis=0)", growth="expands",
         doc="two batches are convolved one by one"),
    Rule("conv-of-sum", f"conv(x + y, w, {_CONV}, groups=g)", f"conv(x, w, {_CONV}, groups=g) + conv(y, w, {_CONV}, groups=g)",
         when=("shape(x) == shape(y)",), growth="expands", doc="a convolution distributes over its inputs"),
    Rule("conv-by-sum", f"conv(x, v + w, {_CONV}, groups=g)", f"conv(x, v, {_CONV}, groups=g) + conv(x, w, {_CONV}, groups=g)",
         when=("shape(v) == shape(w)",), growth="expands", doc="a convolution distributes over its weights"),
])  # fmt: skip

POOLS = table("blocks of pools", "proof", [
    *(Rule(f"split-{op.replace('_', '-')}", f"{op}(concat(x, y, axis=i), {_POOL})",
           f"concat({op}(x, {_POOL}), {op}(y, {_POOL}), axis=i)", when=("i < 2",), growth="expands",
           doc="channels or batches are pooled one by one") for op in ("avg_pool", "max_pool")),
    Rule("avg-pool-of-sum", f"avg_pool(x + y, {_POOL})", f"avg_pool(x, {_POOL}) + avg_pool(y, {_POOL})",
         when=("shape(x) == shape(y)",), growth="expands", doc="a mean of a sum is a sum of means"),
])  # fmt: skip

_ELEMENTWISE = ("add", "mul")
ELEMENTWISE = table("blocks of elements", "proof", [
    *(Rule(f"{op}-to-concat", f"{op}(concat(x, y, axis=i), z)",
           f"concat({op}(x, slice(z, axis=i, start=0, stop=size(x, i))), {op}(y, slice(z, axis=i, start=size(x, i), stop=size(z, i))), axis=i)",
           when=("size(z, i) == size(x, i) + size(y, i)",), growth="expands", exact=True, doc="an operand is cut where the other one is joined")
      for op in _ELEMENTWISE),
    *(Rule(f"{op}-into-concat", f"{op}(concat(x, y, axis=i), z)", f"concat({op}(x, z), {op}(y, z), axis=i)",
           when=("size(z, i) == 1",), growth="expands", exact=True, doc="an operand that is constant along the axis goes to both parts")
      for op in _ELEMENTWISE),
    *(Rule(f"{op}-of-concat", f"{op}(concat(x, y, axis=i))", f"concat({op}(x), {op}(y), axis=i)", growth="expands", exact=True,
           doc="an elementwise op of each part") for op in ("relu", "sigmoid", "tanh")),
    Rule("slice-across-concat", "slice(concat(x, y, axis=i), axis=i, start=s, stop=e)",
         "concat(slice(x, axis=i, start=s, stop=size(x, i)), slice(y, axis=i, start=0, stop=e - size(x, i)), axis=i)",
         when=("s < size(x, i)", "size(x, i) < e"), growth="expands", exact=True, doc="a slice of both parts"),
])  # fmt: skip

RULES = (*CONTRACTIONS, *POOLS, *ELEMENTWISE)
