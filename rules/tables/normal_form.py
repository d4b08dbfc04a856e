"""Lists rules towards a canonical form, for proofs only.

Concats and sums move out of contractions, constants and slices to the leaves.

Each is the expanding direction of a law whose collecting direction is applied to models elsewhere (or would apply
endlessly there); on a model it would only create more and smaller kernels. Two terms that are equal by linearity and by
the geometry of their blocks reach the same canonical form, up to commutativity and associativity of sums and
products.
"""

from __future__ import annotations

from ...egraph.ops.ops import OPS
from ...egraph.patterns.rule import Rule, table

_ODD = tuple(op.name for op in OPS.values() if op.symmetry == "odd")
_CONV = "strides=s, pads=p, dilations=d"
_POOL = "kernel=k, strides=s, pads=p, dilations=d"

CONTRACTIONS = table("blocks of contractions", "proof", [
    Rule("split-columns", "x @ concat(a, b, axis=i)", "concat(x @ a, x @ b, axis=rank(x) - 1)", when=("i == rank(a) - 1",),
         growth="expands", doc="a product with column-concatenated weights is a concatenation of products"),
    Rule("split-rows", "concat(x, y, axis=i) @ w", "concat(x @ w, y @ w, axis=i)", when=("i == rank(x) - 2",), growth="expands",
         doc="a product of row-concatenated operands is a concatenation of products"),
    Rule("split-contraction-right", "x @ concat(a, b, axis=i)",
         "slice(x, axis=rank(x) - 1, start=0, stop=size(a, -2)) @ a + slice(x, axis=rank(x) - 1, start=size(a, -2), stop=size(x, -1)) @ b",
         when=("i == rank(a) - 2",), growth="expands", doc="a product with row-concatenated weights is a sum of products"),
    Rule("split-conv-inputs", f"conv(concat(x, y, axis=1), w, {_CONV}, groups=1)",
         f"conv(x, slice(w, axis=1, start=0, stop=size(x, 1)), {_CONV}, groups=1)"
         f" + conv(y, slice(w, axis=1, start=size(x, 1), stop=size(w, 1)), {_CONV}, groups=1)",
         growth="expands", doc="a convolution of concatenated input channels is a sum of convolutions"),
    Rule("split-conv-weights", f"conv(x, concat(a, b, axis=1), {_CONV}, groups=1)",
         f"conv(slice(x, axis=1, start=0, stop=size(a, 1)), a, {_CONV}, groups=1)"
         f" + conv(slice(x, axis=1, start=size(a, 1), stop=size(x, 1)), b, {_CONV}, groups=1)",
         growth="expands", doc="a convolution with weights concatenated along input channels is a sum of convolutions"),
    Rule("split-filters", f"conv(x, concat(a, b, axis=0), {_CONV}, groups=1)",
         f"concat(conv(x, a, {_CONV}, groups=1), conv(x, b, {_CONV}, groups=1), axis=1)", growth="expands",
         doc="concatenated filters give concatenated convolutions"),
    Rule("split-grouped-filters", f"conv(x, concat(a, b, axis=0), {_CONV}, groups=g)",
         f"concat(conv(slice(x, axis=1, start=0, stop=size(a, 0) * g // (size(a, 0) + size(b, 0)) * size(a, 1)), a, {_CONV}, groups=size(a, 0) * g // (size(a, 0) + size(b, 0))),"
         f" conv(slice(x, axis=1, start=size(a, 0) * g // (size(a, 0) + size(b, 0)) * size(a, 1), stop=size(x, 1)), b, {_CONV}, groups=g - size(a, 0) * g // (size(a, 0) + size(b, 0))), axis=1)",
         when=("size(a, 0) * g % (size(a, 0) + size(b, 0)) == 0", "0 < size(a, 0)", "0 < size(b, 0)"), growth="expands",
         doc="filters concatenated at a group boundary are two convolutions of their own channels"),
    Rule("split-groups", f"conv(concat(x, y, axis=1), w, {_CONV}, groups=g)",
         f"concat(conv(x, slice(w, axis=0, start=0, stop=size(x, 1) // size(w, 1) * (size(w, 0) // g)), {_CONV}, groups=size(x, 1) // size(w, 1)),"
         f" conv(y, slice(w, axis=0, start=size(x, 1) // size(w, 1) * (size(w, 0) // g), stop=size(w, 0)), {_CONV}, groups=size(y, 1) // size(w, 1)), axis=1)",
         when=("size(x, 1) % size(w, 1) == 0", "0 < size(x, 1)", "0 < size(y, 1)"), growth="expands",
         doc="channels concatenated at a group boundary are convolved by their own filters"),
    Rule("split-batch", f"conv(concat(x, y, axis=0), w, {_CONV}, groups=g)",
         f"concat(conv(x, w, {_CONV}, groups=g), conv(y, w, {_CONV}, groups=g), axis=0)", growth="expands",
         doc="concatenated batches are convolved separately"),
    Rule("split-left-batches", "concat(a, b, axis=i) @ w",
         "concat(a @ slice(w, axis=i, start=0, stop=size(a, i)), b @ slice(w, axis=i, start=size(a, i), stop=size(w, i)), axis=i)",
         when=("i < rank(a) - 2", "rank(w) == rank(a)", "size(w, i) == size(a, i) + size(b, i)"), growth="expands",
         doc="concatenated batches are multiplied separately"),
    Rule("split-right-batches", "x @ concat(a, b, axis=i)",
         "concat(slice(x, axis=i, start=0, stop=size(a, i)) @ a, slice(x, axis=i, start=size(a, i), stop=size(x, i)) @ b, axis=i)",
         when=("i < rank(a) - 2", "size(x, i) == size(a, i) + size(b, i)"), growth="expands",
         doc="concatenated batches are multiplied separately"),
    Rule("join-contraction",
         "slice(x, axis=i, start=a, stop=b) @ slice(w, axis=j, start=c, stop=d) + slice(x, axis=i, start=b, stop=e) @ slice(w, axis=j, start=d, stop=f)",
         "slice(x, axis=i, start=a, stop=e) @ slice(w, axis=j, start=c, stop=f)", when=("i == rank(x) - 1", "j == rank(w) - 2"),
         growth="collects", doc="a sum of products over adjacent ranges of the contraction axis is one product"),
    Rule("join-conv-inputs",
         f"conv(slice(x, axis=1, start=a, stop=b), slice(w, axis=1, start=k, stop=l), {_CONV}, groups=1)"
         f" + conv(slice(x, axis=1, start=b, stop=e), slice(w, axis=1, start=l, stop=m), {_CONV}, groups=1)",
         f"conv(slice(x, axis=1, start=a, stop=e), slice(w, axis=1, start=k, stop=m), {_CONV}, groups=1)", growth="collects",
         doc="a sum of convolutions over adjacent input channels is one convolution"),
    Rule("conv-of-sum", f"conv(x + y, w, {_CONV}, groups=g)", f"conv(x, w, {_CONV}, groups=g) + conv(y, w, {_CONV}, groups=g)",
         when=("shape(x) == shape(y)",), growth="expands", doc="a convolution is linear in its input"),
    Rule("conv-by-sum", f"conv(x, v + w, {_CONV}, groups=g)", f"conv(x, v, {_CONV}, groups=g) + conv(x, w, {_CONV}, groups=g)",
         when=("shape(v) == shape(w)",), growth="expands", doc="a convolution is linear in its weight"),
])  # fmt: skip

#: The identity matrix: ones where the first two indices agree, else zeros. int64, because narrower dtypes cannot hold
#: every index.
_UNIT = "cast(eq(iota(axis=0, shape=s, dtype='int64'), iota(axis=1, shape=s, dtype='int64')), dtype=f)"
#: Window sums of x with the window size s[2:].
_BOX = (
    "reshape(sum(windows(windows(pad(pad(x, axis=2, lo=q[0], hi=q[2]), axis=3, lo=q[1], hi=q[3]), axis=2, size=s[2], stride=p[0], dilation=d[0]),"
    " axis=3, size=s[3], stride=p[1], dilation=d[1]), axes=(4, 5)), shape=(size(x, 0), size(x, 1),"
    " (size(x, 2) + q[0] + q[2] - d[0] * (s[2] - 1) - 1) // p[0] + 1, (size(x, 3) + q[1] + q[3] - d[1] * (s[3] - 1) - 1) // p[1] + 1))"
)
_WINDOW = "strides=p, pads=q, dilations=d"


def _box(size: str) -> str:
    """The identity kernel with `size` channels and the window size of s."""
    first, second = (f"iota(axis={i}, shape=replace(replace(s, 0, {size}), 1, {size}), dtype='int64')" for i in (0, 1))
    return f"cast(eq({first}, {second}), dtype=f)"


KERNELS = table("kernels", "proof", [
    Rule("defer-filter-scale", "conv(x, w * z, strides=s, pads=p, dilations=d, groups=g)",
         "conv(x, w, strides=s, pads=p, dilations=d, groups=g) * reshape(z, shape=replace(ones(rank(w)), 1, size(z, 0)))",
         when=("replace(shape(z), 0, 1) == ones(rank(w))", "fits(z, w)"), doc="a per-filter factor is pulled out of a convolution"),
    Rule("batch-of-conv", f"slice(conv(x, w, {_CONV}, groups=g), axis=0, start=a, stop=b)",
         f"conv(slice(x, axis=0, start=a, stop=b), w, {_CONV}, groups=g)", doc="a slice of the batch commutes with a convolution"),
    Rule("channels-of-conv", f"slice(conv(x, w, {_CONV}, groups=1), axis=1, start=a, stop=b)",
         f"conv(x, slice(w, axis=0, start=a, stop=b), {_CONV}, groups=1)", doc="a slice of output channels needs only these filters"),
    Rule("trim-kernel-channels", "conv(x, pad(w, axis=1, lo=l, hi=h), strides=s, pads=p, dilations=d, groups=1)",
         "conv(slice(x, axis=1, start=l, stop=size(x, 1) - h), w, strides=s, pads=p, dilations=d, groups=1)", growth="collects",
         doc="input channels with zero weights are dropped"),
    Rule("first-group", f"conv(x, w, {_CONV}, groups=g)",
         f"concat(conv(slice(x, axis=1, start=0, stop=size(w, 1)), slice(w, axis=0, start=0, stop=size(w, 0) // g), {_CONV}, groups=1),"
         f" conv(slice(x, axis=1, start=size(w, 1), stop=size(x, 1)), slice(w, axis=0, start=size(w, 0) // g, stop=size(w, 0)), {_CONV}, groups=g - 1), axis=1)",
         when=("1 < g",), growth="expands", doc="the first group is split off as a convolution"),
    Rule("product-of-diagonals", f"(x * {_UNIT}) @ (y * {_UNIT})", f"(x * y) * {_UNIT}", when=("len(s) == 2", "s == shape(x)", "s == shape(y)"),
         doc="a product of diagonal matrices is elementwise"),
    Rule("unit-of-one", _UNIT, "full(value=1.0, shape=s, dtype=f)", when=("s[0] == 1", "s[1] == 1"), exact=True,
         doc="the identity matrix of size one is the number one"),
    Rule("unit-box-filter", f"conv(x, {_UNIT}, strides=p, pads=q, dilations=d, groups=1)", _BOX,
         when=("len(s) == 4", "s[0] == s[1]"), growth="expands", doc="an identity kernel with equal weights over the window is a window sum"),
    Rule("split-box", f"conv(concat(x, y, axis=1), {_UNIT}, {_WINDOW}, groups=1)",
         f"concat(conv(x, {_box('size(x, 1)')}, {_WINDOW}, groups=1), conv(y, {_box('size(y, 1)')}, {_WINDOW}, groups=1), axis=1)",
         when=("s[0] == s[1]",), growth="expands", doc="window sums are computed per channel"),
    Rule("slice-box", f"slice(conv(x, {_UNIT}, {_WINDOW}, groups=1), axis=1, start=a, stop=b)",
         f"conv(slice(x, axis=1, start=a, stop=b), {_box('b - a')}, {_WINDOW}, groups=1)",
         when=("s[0] == s[1]",), doc="a slice of channels commutes with window sums"),
    Rule("box-filter", "conv(x, full(value=v, shape=s, dtype=f), strides=p, pads=q, dilations=d, groups=g)",
         f"{_BOX} * full(value=v, shape=(1, 1, 1, 1), dtype=f)",
         when=("rank(x) == 4", "s[0] == g", "s[1] == 1"), growth="expands", doc="a kernel of equal weights is a window sum"),
])  # fmt: skip

POOLS = table("blocks of pools", "proof", [
    *(Rule(f"split-{op.replace('_', '-')}", f"{op}(concat(x, y, axis=i), {_POOL})",
           f"concat({op}(x, {_POOL}), {op}(y, {_POOL}), axis=i)", when=("i < 2",), growth="expands",
           doc="concatenated channels or batches are pooled separately") for op in ("avg_pool", "max_pool")),
    Rule("avg-pool-of-sum", f"avg_pool(x + y, {_POOL})", f"avg_pool(x, {_POOL}) + avg_pool(y, {_POOL})",
         when=("shape(x) == shape(y)",), growth="expands", doc="average pooling is linear"),
    Rule("avg-pool-of-avg-pool",
         "avg_pool(avg_pool(x, kernel=k, strides=s, pads=p, dilations=(1, 1)), kernel=l, strides=t, pads=(0, 0, 0, 0), dilations=(1, 1))",
         "avg_pool(x, kernel=(k[0] * l[0], k[1] * l[1]), strides=(s[0] * t[0], s[1] * t[1]), pads=p, dilations=(1, 1))",
         when=("s == k",), growth="collects", doc="two average pools over adjacent windows are one"),
    Rule("max-pool-factor", f"max_pool(x * relu(c), {_POOL})", f"max_pool(x, {_POOL}) * relu(c)", both=True,
         when=("scalar(c)",), doc="a nonnegative (finite) factor preserves the order"),
    Rule("max-pool-of-max-pool",
         "max_pool(max_pool(x, kernel=k, strides=s, pads=(0, 0, 0, 0), dilations=(1, 1)), kernel=l, strides=t, pads=(0, 0, 0, 0), dilations=(1, 1))",
         "max_pool(x, kernel=(k[0] + (l[0] - 1) * s[0], k[1] + (l[1] - 1) * s[1]), strides=(s[0] * t[0], s[1] * t[1]), pads=(0, 0, 0, 0), dilations=(1, 1))",
         when=("s[0] <= k[0]", "s[1] <= k[1]"), growth="collects", doc="two max pools whose windows leave no gap are one"),
    Rule("max-pool-of-padded-max-pool",
         "max_pool(max_pool(x, kernel=k, strides=(1, 1), pads=p, dilations=(1, 1)), kernel=l, strides=t, pads=q, dilations=(1, 1))",
         "max_pool(x, kernel=(k[0] + l[0] - 1, k[1] + l[1] - 1), strides=t, pads=(p[0] + q[0], p[1] + q[1], p[2] + q[2], p[3] + q[3]), dilations=(1, 1))",
         when=tuple(f"q[{i}] < l[{i % 2}]" for i in range(4)), growth="collects",
         doc="two max pools with stride-1 inner windows are one; padding counts as -inf"),
    Rule("max-pool-summand", f"max_pool(x + c, {_POOL})", f"max_pool(x, {_POOL}) + c", both=True, when=("scalar(c)",),
         doc="a constant (finite) summand preserves the order"),
    Rule("max-pool-doubled", f"max_pool(x + x, {_POOL})", f"max_pool(x, {_POOL}) + max_pool(x, {_POOL})", exact=True,
         doc="doubling preserves the order"),
    Rule("max-pool-of-fill", "max_pool(full(value=v, shape=n, dtype=t), kernel=k, strides=s, pads=p, dilations=(1, 1))",
         "full(value=v, shape=(n[0], n[1], (n[2] + p[0] + p[2] - k[0]) // s[0] + 1,"
         " (n[3] + p[1] + p[3] - k[1]) // s[1] + 1), dtype=t)",
         when=tuple(f"p[{i}] < k[{i % 2}]" for i in range(4)), growth="collects", exact=True,
         doc="max pooling of a fill (no window is empty)"),
    Rule("max-pool-of-one", "max_pool(x, kernel=(1, 1), strides=(1, 1), pads=(0, 0, 0, 0), dilations=d)", "x",
         growth="collects", exact=True, doc="max pooling over a single element"),
])  # fmt: skip

PADDINGS = table("paddings", "proof", [
    Rule("pad-pad-axes", "pad(pad(x, axis=i, lo=a, hi=b, value=v), axis=j, lo=c, hi=d, value=v)",
         "pad(pad(x, axis=j, lo=c, hi=d, value=v), axis=i, lo=a, hi=b, value=v)", exact=True,
         doc="paddings along different axes commute"),
    Rule("pad-beside-concat", "pad(concat(x, y, axis=i), axis=j, lo=a, hi=b, value=v)",
         "concat(pad(x, axis=j, lo=a, hi=b, value=v), pad(y, axis=j, lo=a, hi=b, value=v), axis=i)", when=("i != j",),
         exact=True, both=True, doc="padding along another axis commutes with a concatenation"),
    Rule("slice-beside-pad", "slice(pad(x, axis=i, lo=a, hi=b, value=v), axis=j, start=s, stop=e)",
         "pad(slice(x, axis=j, start=s, stop=e), axis=i, lo=a, hi=b, value=v)", when=("i != j",), exact=True,
         doc="slice before the padding"),
    Rule("permute-of-pad", "permute(pad(x, axis=i, lo=a, hi=b, value=v), perm=p)",
         "pad(permute(x, perm=p), axis=index(p, i), lo=a, hi=b, value=v)", both=False, exact=True, doc="permute before the padding"),
    Rule("pad-factor", "pad(x * z, axis=i, lo=a, hi=b)", "pad(x, axis=i, lo=a, hi=b) * z", both=True,
         when=("size(z, i) == 1",), doc="a (finite) factor that is constant along the axis commutes with zero padding"),
    Rule("pad-of-sums", "pad(x, axis=i, lo=a, hi=b) + pad(y, axis=i, lo=a, hi=b)", "pad(x + y, axis=i, lo=a, hi=b)",
         when=("shape(x) == shape(y)",), both=True, doc="two paddings are combined into one"),
    Rule("pad-of-products", "pad(x, axis=i, lo=a, hi=b) * pad(y, axis=i, lo=a, hi=b)", "pad(x * y, axis=i, lo=a, hi=b)",
         when=("shape(x) == shape(y)",), both=True, exact=True, doc="two paddings are combined into one"),
    *(Rule(f"pad-{op}", f"{op}(pad(x, axis=i, lo=a, hi=b))", f"pad({op}(x), axis=i, lo=a, hi=b)", both=True,
           doc="a function with f(0) = 0 commutes with zero padding") for op in (*_ODD, "abs", "neg")),
    Rule("pad-relu", "relu(pad(x, axis=i, lo=a, hi=b))", "pad(relu(x), axis=i, lo=a, hi=b)", both=True, exact=True,
         doc="relu commutes with zero padding"),
])  # fmt: skip

_ELEMENTWISE = ("add", "mul")
ELEMENTWISE = table("blocks of elements", "proof", [
    *(Rule(f"{op}-to-concat", f"{op}(concat(x, y, axis=i), z)",
           f"concat({op}(x, slice(z, axis=i, start=0, stop=size(x, i))), {op}(y, slice(z, axis=i, start=size(x, i), stop=size(z, i))), axis=i)",
           when=("size(z, i) == size(x, i) + size(y, i)",), growth="expands", exact=True, doc="the other operand is sliced at the concatenation boundary")
      for op in _ELEMENTWISE),
    *(Rule(f"{op}-into-concat", f"{op}(concat(x, y, axis=i), z)", f"concat({op}(x, z), {op}(y, z), axis=i)",
           when=("size(z, i) == 1",), growth="expands", exact=True, doc="an operand that is constant along the axis is applied to both parts")
      for op in _ELEMENTWISE),
    *(Rule(f"{op}-of-concat", f"{op}(concat(x, y, axis=i))", f"concat({op}(x), {op}(y), axis=i)", growth="expands", exact=True,
           doc="an elementwise op is applied to each part") for op in ("relu", "sigmoid", "tanh")),
    *(Rule(f"relu-{op}", f"relu({op}(x))", f"{op}(relu(x))", both=True,
           doc="an increasing function with f(0) = 0 commutes with relu") for op in _ODD if OPS[op].monotone),
    Rule("relu-factor", "relu(x * relu(c))", "relu(x) * relu(c)", both=True, doc="a nonnegative factor is pulled out of relu"),
    Rule("one-more", "x * full(value=v, shape=s, dtype=d) + x",
         "x * (full(value=v, shape=s, dtype=d) + full(value=1.0, shape=s, dtype=d))", growth="expands",
         doc="v * x + x is (v + 1) * x"),
    *(Rule(f"{op}-of-fill", f"{op}(x, full(value=v, shape=s, dtype=d))", f"{op}(x, full(value=v, shape=ones(rank(x)), dtype=d))",
           when=("s == shape(x)",), growth="collects", exact=True, doc="a fill of full shape becomes a broadcast scalar") for op in _ELEMENTWISE),
    Rule("times-zero", "x * full(value=0.0, shape=s, dtype=d)", "full(value=0.0, shape=shape(x), dtype=d)", when=("s == ones(rank(x))",), growth="collects",
         doc="multiplication by zero (finite values)"),
    Rule("reshape-factor", "reshape(x * z, shape=s)", "reshape(x, shape=s) * reshape(z, shape=ones(len(s)))", when=("scalar(z)",), exact=True,
         doc="a scalar factor commutes with a reshape"),
    Rule("permute-number", "permute(x, perm=p)", "x", when=("scalar(x)",), growth="collects", exact=True,
         doc="a permutation of a single element"),
    Rule("rectified-sigmoid", "sigmoid(x)", "relu(sigmoid(x))", growth="expands", exact=True,
         doc="a sigmoid is nonnegative, which lets relu be moved"),
    Rule("rectified-square", "x * x", "relu(x * x)", when=("floating(x)",), growth="expands", exact=True, doc="a square is nonnegative"),
    Rule("tanh-masked", "tanh(x * cast(c, dtype=d))", "tanh(x) * cast(c, dtype=d)", when=("dtype(c) == 'bool'",), both=True,
         doc="a mask of zeros and ones commutes with a function with f(0) = 0"),
    *(Rule(f"rectified-one-{dtype}", f"full(value=1.0, shape=s, dtype='{dtype}')", f"relu(full(value=1.0, shape=s, dtype='{dtype}'))",
           growth="expands", exact=True, doc="one is positive") for dtype in ("float32", "float64")),
    *(Rule(f"rectified-mask-{dtype}", f"cast(c, dtype='{dtype}')", f"relu(cast(c, dtype='{dtype}'))", when=("dtype(c) == 'bool'",),
           growth="expands", exact=True, doc="a mask of zeros and ones is nonnegative") for dtype in ("float32", "float64")),
    *(Rule(f"rectified-{name}", term, f"relu({term})", growth="expands", doc="a value computed from nonnegative values by sums and products is nonnegative")
      for name, term in (("sum", "relu(x) + relu(y)"), ("product", "relu(x) * relu(y)"), ("matmul", "relu(x) @ relu(y)"),
                         ("conv", f"conv(relu(x), relu(w), {_CONV}, groups=g)"))),
    Rule("slice-across-concat", "slice(concat(x, y, axis=i), axis=i, start=s, stop=e)",
         "concat(slice(x, axis=i, start=s, stop=size(x, i)), slice(y, axis=i, start=0, stop=e - size(x, i)), axis=i)",
         when=("s < size(x, i)", "size(x, i) < e"), growth="expands", exact=True, doc="a slice across the concatenation boundary"),
])  # fmt: skip

RULES = (*CONTRACTIONS, *KERNELS, *POOLS, *PADDINGS, *ELEMENTWISE)
