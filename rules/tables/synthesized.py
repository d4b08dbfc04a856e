"""Lists rules that synthesis found (`tensor-graphs rules synthesize`) and the other tables lack.

docs/synthesis.md records the runs.

Each row is a rule from a run's output, named and oriented in the profitable direction. Where the axis or guard that a
run found was narrower than necessary, the row states the general rule; it is checked like any other rule.
"""

from __future__ import annotations

from ...egraph.patterns.rule import Rule, table

#: --ops relu,maximum,minimum,neg,abs --size 2 --variables 2
ORDER = table("order", "algebra", [
    Rule("max-absorbs-min", "maximum(a, minimum(a, b))", "a", when=("fits(b, a)",), growth="collects",
         doc="absorption law of maximum and minimum"),
    Rule("min-absorbs-max", "minimum(a, maximum(a, b))", "a", when=("fits(b, a)",), growth="collects",
         doc="absorption law of minimum and maximum"),
    Rule("max-relu", "maximum(a, relu(a))", "relu(a)", growth="collects", exact=True, doc="relu(a) is never smaller than a"),
    Rule("min-relu", "minimum(a, relu(a))", "a", growth="collects", doc="relu(a) is never smaller than a"),
    Rule("abs-abs", "abs(abs(a))", "abs(a)", growth="collects", exact=True, doc="abs is idempotent"),
    Rule("abs-relu", "abs(relu(a))", "relu(a)", growth="collects", doc="relu(a) is nonnegative"),
    Rule("relu-abs", "relu(abs(a))", "abs(a)", growth="collects", exact=True, doc="an absolute value is nonnegative"),
    Rule("min-of-signs", "minimum(a, neg(a))", "neg(abs(a))", when=("floating(a)",), doc="the smaller of a value and its negative"),
])  # fmt: skip

#: --ops matmul,add,mul,transpose,concat,split,relu --size 3, and --ops exp,log,mul,div,recip,sqrt,neg --size 2
#: --variables 2
ARITHMETIC = table("found arithmetic", "algebra", [
    Rule("relu-times-relu", "relu(a) * relu(a)", "a * relu(a)", doc="both sides are zero where a is negative"),
    Rule("relu-of-rectified-factor", "relu(a * relu(b))", "relu(a) * relu(b)", doc="a nonnegative factor is pulled out of a relu"),
    Rule("recip-recip", "recip(recip(a))", "a", growth="collects", doc="two reciprocals cancel"),
    Rule("div-by-recip", "a / recip(b)", "a * b", growth="collects", doc="dividing by a reciprocal is multiplying"),
    Rule("log-recip", "log(recip(a))", "neg(log(a))", doc="the logarithm of a reciprocal"),
    Rule("neg-denominator", "a / neg(b)", "neg(a) / b", exact=True, doc="a negation moves from the denominator to the numerator"),
])  # fmt: skip

#: --ops sum,mean,max,matmul,add,transpose --size 2 --variables 2
PRODUCTS = table("reduced products", "algebra", [
    Rule("sum-of-columns", "sum(a @ b, axes=k)", "a @ sum(b, axes=(rank(b) - 1,))", when=("k == (rank(a) - 1,)",),
         doc="the sum over a product's columns is the product with the summed columns of the right operand"),
])  # fmt: skip

_CONV = "strides=t, pads=h, dilations=d"
#: --ops conv,concat,add,relu,split --size 3 --variables 2
PARTS = table("parts of convolutions", "layout", [
    Rule("slice-conv-batch", f"slice(conv(x, u, {_CONV}, groups=g), axis=0, start=s, stop=e, step=q)",
         f"conv(slice(x, axis=0, start=s, stop=e, step=q), u, {_CONV}, groups=g)", growth="collects",
         doc="a slice of the batch commutes with a convolution"),
    Rule("slice-conv-filters", f"slice(conv(x, u, {_CONV}, groups=1), axis=1, start=s, stop=e, step=q)",
         f"conv(x, slice(u, axis=0, start=s, stop=e, step=q), {_CONV}, groups=1)", when=("original(u)",),
         doc="a slice of output channels needs only these filters"),
])  # fmt: skip

#: From the same runs: rules of the other tables about slices without steps, extended to any step.
STRIDED = table("strided slices", "layout", [
    Rule("slice-rows-strided", "slice(a @ b, axis=i, start=s, stop=e, step=q)", "slice(a, axis=i, start=s, stop=e, step=q) @ b",
         when=("i == rank(a) - 2",), growth="collects", doc="every q-th row of a product"),
    Rule("slice-columns-strided", "slice(a @ b, axis=i, start=s, stop=e, step=q)",
         "a @ slice(b, axis=rank(b) - 1, start=s, stop=e, step=q)", when=("original(b)", "i == rank(a) - 1"),
         doc="every q-th column of a product"),
    Rule("slice-permute-strided", "slice(permute(a, perm=p), axis=i, start=s, stop=e, step=q)",
         "permute(slice(a, axis=p[i], start=s, stop=e, step=q), perm=p)", exact=True,
         doc="slice before the permutation"),
    *(Rule(f"slice-{op}-strided", f"slice({op}(a), axis=i, start=s, stop=e, step=q)", f"{op}(slice(a, axis=i, start=s, stop=e, step=q))",
           growth="collects", exact=True, doc="only every q-th element is computed") for op in ("relu", "neg", "exp", "silu")),
    *(Rule(f"slice-{op}-strided", f"slice({op}(a, b), axis=i, start=s, stop=e, step=q)",
           f"{op}(slice(a, axis=i, start=s, stop=e, step=q), slice(b, axis=i, start=s, stop=e, step=q))",
           when=("size(a, i) == size(b, i)",), exact=True, doc="only every q-th element is computed") for op in ("add", "mul")),
    Rule("slice-concat-strided", "slice(concat(a, b, axis=j), axis=i, start=s, stop=e, step=q)",
         "concat(slice(a, axis=i, start=s, stop=e, step=q), slice(b, axis=i, start=s, stop=e, step=q), axis=j)",
         when=("i != j",), exact=True, doc="a strided slice of a concatenation, along another axis"),
])  # fmt: skip

RULES = (*ORDER, *ARITHMETIC, *PRODUCTS, *PARTS, *STRIDED)
