"""Lists rules about matrix products and convolutions.

Associativity, linearity, scale factors that commute with contractions, merging and splitting.
"""

from __future__ import annotations

from ...egraph.patterns.rule import Rule, table

LINEARITY = table("linearity", "algebra", [
    Rule("matmul-associates", "(a @ b) @ c", "a @ (b @ c)", when=("rank(c) <= rank(b)",), both=True,
         doc="associativity of matrix products"),
    Rule("matmul-left-sum", "(a + b) @ c", "a @ c + b @ c", when=("shape(a) == shape(b)",), both=True,
         growth="expands", doc="a product distributes over a sum on its left"),
    Rule("matmul-right-sum", "a @ (b + c)", "a @ b + a @ c", when=("shape(b) == shape(c)",), both=True,
         growth="expands", doc="a product distributes over a sum on its right"),
    Rule("low-rank-folds", "x @ w + (x @ a) @ b", "x @ (w + a @ b)", growth="collects", shortcut=True,
         when=("weight(w)", "weight(a)", "weight(b)", "active(x)", "rank(b) == 2",
               "shape(w) == replace(shape(a), -1, size(b, -1))"),
         doc="a low-rank update is folded into the weight in one step, since the intermediate term x @ (a @ b) is too expensive to be kept"),
    Rule("matmul-left-sign", "neg(a) @ b", "neg(a @ b)", both=True, doc="a negation commutes with a matrix product"),
    Rule("matmul-right-sign", "a @ neg(b)", "neg(a @ b)", both=True, doc="a negation commutes with a matrix product"),
    Rule("conv-input-sum", "conv(x, w, strides=s, pads=p, dilations=d, groups=g) + conv(y, w, strides=s, pads=p, dilations=d, groups=g)",
         "conv(x + y, w, strides=s, pads=p, dilations=d, groups=g)", when=("shape(x) == shape(y)",), growth="collects",
         doc="two convolutions with the same weight are one convolution of the summed inputs"),
    Rule("conv-weight-sum", "conv(x, v, strides=s, pads=p, dilations=d, groups=g) + conv(x, w, strides=s, pads=p, dilations=d, groups=g)",
         "conv(x, v + w, strides=s, pads=p, dilations=d, groups=g)", when=("shape(v) == shape(w)",), growth="collects",
         doc="two convolutions of the same input are one convolution with the summed weights"),
])  # fmt: skip

#: DEFER: a factor that is constant along the contracted axis commutes with the contraction.
SCALES = table("defer", "algebra", [
    Rule("defer-row-scale", "(x * r) @ w", "(x @ w) * r", when=("size(r, -1) == 1",), both=True, keep=True,
         doc="a per-row factor commutes with a matrix product"),
    Rule("defer-row-quotient", "(x / r) @ w", "(x @ w) / r", when=("size(r, -1) == 1",), both=True, keep=True,
         doc="a per-row divisor (a softmax denominator, a norm) commutes with a matrix product"),
    Rule("defer-column-scale", "x @ (w * c)", "(x @ w) * c", both=True, keep=True,
         when=("size(c, -2) == 1", "rank(x) == rank(w)"), doc="a per-column factor commutes with a matrix product"),
    Rule("scale-weight", "(x @ w) * s", "x @ (w * reshape(s, shape=ones(rank(w))))",
         when=("scalar(s)", "weight(s)", "weight(w)"), growth="collects", doc="a constant factor is folded into the weight"),
    Rule("unscale-right", "x @ (w * s)", "(x @ w) * reshape(s, shape=ones(rank(x)))", when=("scalar(s)",),
         doc="a scalar factor is pulled out of the right operand"),
    Rule("fold-input-gain", "(x * g) @ w", "x @ (w * reshape(g, shape=(size(g, -1), 1)))", growth="collects",
         when=("weight(g)", "weight(w)", "rank(w) == 2", "replace(shape(g), -1, 1) == ones(rank(g))", "size(x, -1) == size(g, -1)"),
         doc="a gain per input feature (a norm's) is folded into the weight's rows"),
    Rule("fold-output-gain", "(x @ w) * g", "x @ (w * reshape(g, shape=(1, size(g, -1))))", growth="collects",
         when=("weight(g)", "weight(w)", "rank(w) == 2", "replace(shape(g), -1, 1) == ones(rank(g))"),
         doc="a gain per output feature is folded into the weight's columns"),
    Rule("fold-input-shift", "(x + b) @ w", "x @ w + reshape(reshape(b, shape=(1, size(b, -1))) @ w, shape=replace(ones(rank(x)), -1, size(w, 1)))",
         when=("weight(b)", "weight(w)", "rank(w) == 2", "replace(shape(b), -1, 1) == ones(rank(b))", "size(x, -1) == size(b, -1)"),
         doc="a shift per input feature becomes a bias, computed when the model is loaded"),
    Rule("defer-conv-scale", "conv(x * z, w, strides=s, pads=p, dilations=d, groups=g)",
         "conv(x, w, strides=s, pads=p, dilations=d, groups=g) * z", both=True, keep=True,
         when=("replace(shape(z), 0, 1) == ones(rank(z))",), doc="a per-sample factor commutes with a convolution"),
    Rule("fold-conv-gain", "conv(x, w, strides=s, pads=p, dilations=d, groups=n) * g",
         "conv(x, w * reshape(g, shape=replace(ones(rank(w)), 0, size(g, 1))), strides=s, pads=p, dilations=d, groups=n)",
         when=("weight(g)", "weight(w)", "replace(shape(g), 1, 1) == ones(rank(g))"), growth="collects",
         doc="a gain per output channel (a batch norm's) is folded into the filters"),
])  # fmt: skip

BIAS = table("bias", "algebra", [
    Rule("linear-is-matmul", "linear(x, w, b)", "x @ w + reshape(b, shape=replace(ones(rank(x)), -1, size(b, 0)))",
         growth="expands", doc="a linear layer is a matrix product plus a bias row"),
    Rule("matmul-add-is-linear", "x @ w + b", "linear(x, w, reshape(b, shape=(size(b, -1),)))", growth="collects",
         when=("weight(b)", "floating(x)", "rank(w) == 2", "replace(shape(b), -1, 1) == ones(rank(b))", "size(b, -1) == size(w, 1)"),
         doc="a matrix product plus a bias row is a linear layer"),
    Rule("linear-linear-bias", "linear(x, w, b) + c", "linear(x, w, b + reshape(c, shape=(size(c, -1),)))",
         when=("weight(b)", "weight(c)", "replace(shape(c), -1, 1) == ones(rank(c))", "size(c, -1) == size(b, 0)"), growth="collects",
         shortcut=True, doc="two biases are added into one"),
])  # fmt: skip

_COLUMNS = "concat(a, b, axis=1)"
_CONV = "strides=s, pads=p, dilations=d"

#: CONCAT: contractions that share an operand merge into one; a sum of products becomes one longer product.
MERGES = table("merging", "merge", [
    Rule("merge-matmuls", ("x @ a", "x @ b"),
         (f"slice(x @ {_COLUMNS}, axis=rank(x) - 1, start=0, stop=size(a, 1))",
          f"slice(x @ {_COLUMNS}, axis=rank(x) - 1, start=size(a, 1), stop=size(a, 1) + size(b, 1))"),
         when=("weight(a)", "weight(b)", "active(x)", "rank(a) == 2", "rank(b) == 2", "ordered(x, a, b)"), keep=True,
         growth="expands", doc="matrix products of one input with several weights are one product with the concatenated weights"),
    Rule("merge-linears", ("linear(x, a, p)", "linear(x, b, q)"),
         (f"slice(linear(x, {_COLUMNS}, concat(p, q, axis=0)), axis=rank(x) - 1, start=0, stop=size(a, 1))",
          f"slice(linear(x, {_COLUMNS}, concat(p, q, axis=0)), axis=rank(x) - 1, start=size(a, 1), stop=size(a, 1) + size(b, 1))"),
         when=("weight(a)", "weight(b)", "active(x)", "ordered(x, a, b)", "ordered(p, q)"), keep=True, growth="expands",
         doc="linear layers of one input are one layer with concatenated weights and biases"),
    Rule("merge-convs", ("conv(x, a, strides=s, pads=p, dilations=d, groups=1)", "conv(x, b, strides=s, pads=p, dilations=d, groups=1)"),
         ("slice(conv(x, concat(a, b, axis=0), strides=s, pads=p, dilations=d, groups=1), axis=1, start=0, stop=size(a, 0))",
          "slice(conv(x, concat(a, b, axis=0), strides=s, pads=p, dilations=d, groups=1), axis=1, start=size(a, 0), stop=size(a, 0) + size(b, 0))"),
         when=("weight(a)", "weight(b)", "active(x)", "drop(shape(a), 0) == drop(shape(b), 0)", "ordered(x, a, b)"), keep=True,
         growth="expands", doc="convolutions of one input are one convolution with concatenated filters"),
    Rule("sum-of-products", "x @ a + y @ b", "concat(x, y, axis=rank(x) - 1) @ concat(a, b, axis=0)", keep=True,
         when=("chained(a)", "chained(b)", "weight(a)", "weight(b)", "active(x)", "active(y)", "rank(a) == 2", "rank(b) == 2",
               "size(a, 1) == size(b, 1)", "replace(shape(x), -1, 1) == replace(shape(y), -1, 1)"), growth="expands",
         doc="xA + yB is one product of joined operands (low-rank adapters, recurrent cells)"),
])  # fmt: skip

CONCATENATION = table("concatenation", "layout", [
    Rule("concat-columns", "concat(x @ a, x @ b, axis=i)", "x @ concat(a, b, axis=rank(a) - 1)", growth="collects",
         when=("i == rank(x) - 1", "drop(shape(a), -1) == drop(shape(b), -1)"),
         doc="concatenated products with a common left operand are one product"),
    Rule("concat-rows", "concat(a @ w, b @ w, axis=i)", "concat(a, b, axis=i) @ w", growth="collects",
         when=("i == rank(a) - 2", "rank(w) == 2"), doc="vertically concatenated products with a common right operand are one product"),
    Rule("split-contraction", "concat(x, y, axis=i) @ w",
         "x @ slice(w, axis=0, start=0, stop=size(x, -1)) + y @ slice(w, axis=0, start=size(x, -1), stop=size(w, 0))",
         when=("i == rank(x) - 1", "rank(w) == 2"), growth="expands",
         doc="a product with a concatenated contraction axis is a sum of products"),
    Rule("matmul-absorbs-broadcast", "a @ broadcast_to(b, shape=s)", "a @ b", growth="collects",
         when=("replace(replace(shape(a), -1, 1), -2, 1) == replace(replace(s, -1, 1), -2, 1)",
               "s[-1] == size(b, -1)", "s[-2] == size(b, -2)"), doc="a matrix product broadcasts leading axes itself"),
    Rule("slice-columns", "slice(x @ w, axis=i, start=s, stop=e)", "x @ slice(w, axis=rank(w) - 1, start=s, stop=e)",
         when=("original(w)", "i == rank(x) - 1",), doc="a column slice of a product needs only these columns of the right operand"),
    Rule("slice-rows", "slice(x @ w, axis=i, start=s, stop=e)", "slice(x, axis=i, start=s, stop=e) @ w",
         when=("i == rank(x) - 2",), doc="a row slice of a product needs only these rows of the left operand"),
    Rule("concat-linears", "concat(linear(x, a, p), linear(x, b, q), axis=i)", "linear(x, concat(a, b, axis=1), concat(p, q, axis=0))",
         when=("i == rank(x) - 1",), growth="collects", doc="concatenated linear layers of one input are one layer"),
    Rule("slice-linear", "slice(linear(x, w, b), axis=i, start=s, stop=e)",
         "linear(x, slice(w, axis=1, start=s, stop=e), slice(b, axis=0, start=s, stop=e))", when=("original(w)", "i == rank(x) - 1",),
         doc="a column slice of a linear layer needs only these columns of weight and bias"),
    Rule("concat-channels", "concat(conv(x, a, strides=s, pads=p, dilations=d, groups=1), conv(x, b, strides=s, pads=p, dilations=d, groups=1), axis=1)",
         "conv(x, concat(a, b, axis=0), strides=s, pads=p, dilations=d, groups=1)", growth="collects",
         when=("drop(shape(a), 0) == drop(shape(b), 0)",), doc="channel-concatenated convolutions of one input are one convolution"),
    Rule("concat-batches", f"concat(conv(x, w, {_CONV}, groups=g), conv(y, w, {_CONV}, groups=g), axis=0)",
         f"conv(concat(x, y, axis=0), w, {_CONV}, groups=g)", growth="collects",
         when=("replace(shape(x), 0, 1) == replace(shape(y), 0, 1)",), doc="convolutions of two batches with one weight are one convolution"),
    Rule("concat-groups", f"concat(conv(x, a, {_CONV}, groups=g), conv(y, b, {_CONV}, groups=h), axis=1)",
         f"conv(concat(x, y, axis=1), concat(a, b, axis=0), {_CONV}, groups=g + h)", growth="collects",
         when=("replace(shape(x), 1, 1) == replace(shape(y), 1, 1)", "drop(shape(a), 0) == drop(shape(b), 0)",
               "size(a, 0) * h == size(b, 0) * g"), doc="channel-concatenated convolutions of two inputs are one grouped convolution"),
    Rule("concat-inputs", "conv(x, a, strides=s, pads=p, dilations=d, groups=1) + conv(y, b, strides=s, pads=p, dilations=d, groups=1)",
         "conv(concat(x, y, axis=1), concat(a, b, axis=1), strides=s, pads=p, dilations=d, groups=1)", keep=True,
         when=("replace(shape(x), 1, 1) == replace(shape(y), 1, 1)", "replace(shape(a), 1, 1) == replace(shape(b), 1, 1)",
               "weight(a)", "weight(b)", "active(x)", "active(y)"), growth="expands",
         doc="a sum of convolutions is one convolution of the concatenated inputs"),
])  # fmt: skip

TRANSPOSED = table("transposition", "layout", [
    Rule("transpose-product", "permute(a @ b, perm=p)", "permute(b, perm=p) @ permute(a, perm=p)",
         when=("rank(a) == rank(b)", "p == swap_last(rank(a))"), both=False, doc="the transpose of a product swaps and transposes its operands"),
    Rule("product-of-transposed", "permute(b, perm=p) @ permute(a, perm=p)", "permute(a @ b, perm=p)",
         when=("p == swap_last(rank(a))",), doc="a product of transposed operands, transposed back"),
    Rule("permuted-rows", "permute(x, perm=p) @ w", "permute(x @ w, perm=p)", both=True, when=("rank(w) == 2", "p[-1] == rank(x) - 1"),
         doc="leading axes are permuted before or after a product"),
    Rule("permuted-rows-linear", "linear(permute(x, perm=p), w, b)", "permute(linear(x, w, b), perm=p)", both=True,
         when=("p[-1] == rank(x) - 1",), doc="leading axes are permuted before or after a linear layer"),
    Rule("reshape-product", "reshape(x @ w, shape=s)", "reshape(x, shape=replace(s, -1, size(x, -1))) @ w",
         when=("rank(w) == 2", "1 < len(s)", "s[-1] == size(w, 1)", "0 < size(w, 1)"), doc="leading axes are regrouped before the product"),
    Rule("product-of-reshaped", "reshape(x, shape=s) @ w", "reshape(x @ w, shape=replace(s, -1, size(w, 1)))",
         when=("rank(w) == 2", "1 < rank(x)", "s[-1] == size(x, -1)", "0 < size(x, -1)"), doc="leading axes are regrouped after the product"),
])  # fmt: skip

_POOL = "kernel=k, strides=s, pads=p, dilations=d"
_POINT = "strides=(1, 1), pads=(0, 0, 0, 0), dilations=(1, 1), groups=1"
CONVOLUTIONS = table("convolution", "algebra", [
    Rule("pointwise-conv-is-matmul", "conv(x, w, strides=(1, 1), pads=(0, 0, 0, 0), dilations=d, groups=1)",
         "reshape(reshape(w, shape=(1, size(w, 0), size(w, 1))) @ reshape(x, shape=(size(x, 0), size(x, 1), size(x, 2) * size(x, 3))),"
         " shape=(size(x, 0), size(w, 0), size(x, 2), size(x, 3)))",
         when=("size(w, 2) == 1", "size(w, 3) == 1"), doc="a 1x1 convolution is a matrix product over channels"),
    Rule("strided-pointwise-conv", "conv(x, w, strides=s, pads=(0, 0, 0, 0), dilations=d, groups=g)",
         "conv(slice(slice(x, axis=2, start=0, stop=size(x, 2), step=s[0]), axis=3, start=0, stop=size(x, 3), step=s[1]), w,"
         " strides=(1, 1), pads=(0, 0, 0, 0), dilations=(1, 1), groups=g)",
         when=("size(w, 2) == 1", "size(w, 3) == 1", "s != (1, 1)"), growth="expands",
         doc="a strided 1x1 convolution reads only the strided pixels"),
    Rule("pointwise-after-conv", f"conv(conv(x, a, {_CONV}, groups=g), b, {_POINT})",
         "conv(x, reshape(reshape(b, shape=(size(b, 0), size(b, 1))) @ reshape(a, shape=(size(a, 0), size(a, 1) * size(a, 2) * size(a, 3))),"
         f" shape=(size(b, 0), size(a, 1), size(a, 2), size(a, 3))), {_CONV}, groups=g)",
         when=("weight(a)", "weight(b)", "g == 1", "size(b, 2) == 1", "size(b, 3) == 1"), growth="collects",
         doc="a convolution followed by a 1x1 convolution is one convolution with the product of the weights"),
    Rule("fold-conv-input-gain", "conv(x * g, w, strides=s, pads=p, dilations=d, groups=1)",
         "conv(x, w * g, strides=s, pads=p, dilations=d, groups=1)", growth="collects",
         when=("weight(g)", "weight(w)", "replace(shape(g), 1, 1) == ones(rank(g))", "size(x, 1) == size(w, 1)"),
         doc="a gain per input channel is folded into the filters"),
    Rule("fold-conv-input-shift", "conv(x + b, w, strides=s, pads=(0, 0, 0, 0), dilations=d, groups=1)",
         "conv(x, w, strides=s, pads=(0, 0, 0, 0), dilations=d, groups=1)"
         " + reshape(reshape(sum(w, axes=(2, 3)), shape=(size(w, 0), size(w, 1))) @ reshape(b, shape=(size(b, 1), 1)), shape=(1, size(w, 0), 1, 1))",
         when=("weight(b)", "weight(w)", "replace(shape(b), 1, 1) == ones(rank(b))", "size(x, 1) == size(b, 1)"),
         doc="without padding, a shift per input channel becomes a bias, computed when the model is loaded"),
    Rule("enlarge-kernel", "conv(x, w, strides=(1, 1), pads=(0, 0, 0, 0), dilations=(1, 1), groups=1)",
         "conv(x, pad(pad(w, axis=2, lo=1, hi=1), axis=3, lo=1, hi=1), strides=(1, 1), pads=(1, 1, 1, 1), dilations=(1, 1), groups=1)",
         when=("size(w, 2) == 1", "size(w, 3) == 1", "weight(w)"), growth="expands", keep=True,
         doc="a 1x1 kernel padded with zeros to 3x3, which may then merge with a 3x3 convolution"),
    Rule("pad-into-conv-rows", "conv(pad(x, axis=2, lo=l, hi=h), w, strides=s, pads=p, dilations=d, groups=g)",
         "conv(x, w, strides=s, pads=replace(replace(p, 0, p[0] + l), 2, p[2] + h), dilations=d, groups=g)",
         when=("rank(x) == 4",), growth="collects", doc="zero padding of the rows becomes the convolution's padding"),
    Rule("pad-into-conv-columns", "conv(pad(x, axis=3, lo=l, hi=h), w, strides=s, pads=p, dilations=d, groups=g)",
         "conv(x, w, strides=s, pads=replace(replace(p, 1, p[1] + l), 3, p[3] + h), dilations=d, groups=g)",
         when=("rank(x) == 4",), growth="collects", doc="zero padding of the columns becomes the convolution's padding"),
    Rule("pad-into-conv-line", "conv(pad(x, axis=2, lo=l, hi=h), w, strides=s, pads=p, dilations=d, groups=g)",
         "conv(x, w, strides=s, pads=replace(replace(p, 0, p[0] + l), 1, p[1] + h), dilations=d, groups=g)",
         when=("rank(x) == 3",), growth="collects", doc="zero padding of lines becomes the convolution's padding"),
    Rule("batch-norm-is-affine", "batch_norm(x, g, b, m, v, eps=e)",
         "x * reshape(g * rsqrt(v + full(value=e, shape=(1,), dtype=dtype(v))), shape=replace(ones(rank(x)), 1, size(x, 1)))"
         " + reshape(b - m * (g * rsqrt(v + full(value=e, shape=(1,), dtype=dtype(v)))), shape=replace(ones(rank(x)), 1, size(x, 1)))",
         growth="expands", doc="a batch norm with fixed statistics is a scale and a shift per channel"),
])  # fmt: skip

#: The identity matrix: ones where the first two indices agree, else zeros. int64, because narrower dtypes cannot hold
#: every index.
_UNIT = "cast(eq(iota(axis=0, shape=s, dtype='int64'), iota(axis=1, shape=s, dtype='int64')), dtype=f)"
IDENTITIES = table("identities", "algebra", [
    Rule("times-unit-matrix", f"x @ {_UNIT}", "x", when=("len(s) == 2", "s[0] == s[1]"), growth="collects", doc="multiplication by the identity matrix on the right"),
    Rule("unit-matrix-times", f"{_UNIT} @ x", "x", when=("len(s) == 2", "s[0] == s[1]"), growth="collects",
         doc="multiplication by the identity matrix on the left"),
    Rule("diagonal-transposed", f"{_UNIT} * permute(x, perm=p)", f"{_UNIT} * x", when=("p == (1, 0)", "s == shape(x)", "s[0] == s[1]"),
         growth="collects", doc="a transpose has the same diagonal"),
    Rule("transposed-unit-matrix", f"permute({_UNIT}, perm=p)", _UNIT, when=("p == (1, 0)", "s[0] == s[1]"), growth="collects",
         exact=True, doc="the identity matrix is symmetric"),
    Rule("times-ones", "x * full(value=1.0, shape=s, dtype=d)", "x", when=("s == shape(x)",), growth="collects", exact=True,
         doc="multiplication by an array of ones"),
    Rule("unit-filter", f"conv(x, {_UNIT}, strides=(1, 1), pads=(0, 0, 0, 0), dilations=d, groups=1)", "x",
         when=("s == (s[0], s[0], 1, 1)",), growth="collects", doc="convolution with the 1x1 identity kernel"),
])  # fmt: skip

POOLS = table("pooling", "algebra", [
    *(Rule(f"concat-{op.replace('_', '-')}s", f"concat({op}(x, {_POOL}), {op}(y, {_POOL}), axis=i)", f"{op}(concat(x, y, axis=i), {_POOL})",
           when=("i < 2", "replace(shape(x), i, 1) == replace(shape(y), i, 1)"), growth="collects", doc="two concatenated pools of the same kind are one pool")
      for op in ("avg_pool", "max_pool")),
    *(Rule(f"slice-{op.replace('_', '-')}", f"slice({op}(x, {_POOL}), axis=i, start=a, stop=b)",
           f"{op}(slice(x, axis=i, start=a, stop=b), {_POOL})", when=("i < 2",), doc="a slice of channels or samples commutes with pooling")
      for op in ("avg_pool", "max_pool")),
    Rule("avg-pool-sums", f"avg_pool(x, {_POOL}) + avg_pool(y, {_POOL})", f"avg_pool(x + y, {_POOL})", when=("shape(x) == shape(y)",),
         growth="collects", doc="average pooling is linear"),
    Rule("avg-pool-factor", f"avg_pool(x * z, {_POOL})", f"avg_pool(x, {_POOL}) * z", both=True, keep=True,
         when=("shape(z) == (size(z, 0), size(z, 1), 1, 1)",), doc="a per-channel factor commutes with average pooling"),
])  # fmt: skip

#: Embeddings and other gathers, moved past arithmetic.
LOOKUPS = table("look-ups", "algebra", [
    Rule("embed-product", "gather(e, n, axis=0) @ w", "gather(e @ w, n, axis=0)", growth="expands", keep=True,
         when=("weight(e)", "weight(w)", "rank(e) == 2", "rank(w) == 2"), doc="the product is computed for the whole embedding table, then looked up"),
    Rule("embed-scale", "gather(e, n, axis=i) * s", "gather(e * reshape(s, shape=ones(rank(e))), n, axis=i)",
         when=("weight(e)", "weight(s)", "scalar(s)"), growth="collects", doc="a constant factor is folded into the table"),
    Rule("gather-concat", "concat(gather(a, n, axis=0), gather(b, n, axis=0), axis=i)", "gather(concat(a, b, axis=1), n, axis=0)",
         when=("i == rank(n)", "size(a, 0) == size(b, 0)"), growth="collects", exact=True,
         doc="two tables looked up with the same indices are one table"),
    Rule("pick-cast", "gather_elements(cast(x, dtype=d), n, axis=i)", "cast(gather_elements(x, n, axis=i), dtype=d)", growth="collects",
         exact=True, doc="gather before the cast, so that only gathered elements are cast"),
    Rule("pick-log-softmax", "gather_elements(log_softmax(x, axis=i), n, axis=i)",
         "gather_elements(x, n, axis=i) - logsumexp(x, axes=(i,))", when=("replace(shape(n), i, 1) == replace(shape(x), i, 1)",),
         growth="collects", keep=True, doc="cross entropy: one logsumexp per row instead of a log-softmax of every element"),
    Rule("gather-gather", "gather(gather(x, m, axis=0), n, axis=0)", "gather(x, gather(m, n, axis=0), axis=0)",
         when=("rank(m) == 1",), exact=True, doc="indices of indices"),
])  # fmt: skip

RULES = (*LINEARITY, *SCALES, *BIAS, *MERGES, *CONCATENATION, *TRANSPOSED, *CONVOLUTIONS, *IDENTITIES, *POOLS, *LOOKUPS)
