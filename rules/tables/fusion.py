"""Lists recognition rules: patterns of the subgraphs that exporters write for a named composite op.

The other direction, composite to parts, needs no rules: lowering unites every composite with its decomposition.
"""

from __future__ import annotations

from ...egraph.patterns.rule import Rule, table

_ROW = "replace(shape(g), -1, 1) == ones(rank(g))"
_LAST = "k == (rank(x) - 1,)"

ACTIVATIONS = table("activations", "fuse", [
    Rule("is-sigmoid", "recip(exp(neg(x)) + 1.0)", "sigmoid(x)", growth="collects", doc="1 / (1 + exp(-x))"),
    Rule("is-sigmoid-quotient", "1.0 / (exp(neg(x)) + 1.0)", "sigmoid(x)", growth="collects", doc="1 / (1 + exp(-x))"),
    Rule("sigmoid-complement", "1.0 - sigmoid(x)", "sigmoid(neg(x))", growth="collects", doc="the complement of a sigmoid"),
    Rule("is-tanh", "sigmoid(x * 2.0) * 2.0 - 1.0", "tanh(x)", growth="collects", doc="tanh by the sigmoid"),
    Rule("is-silu", "x * sigmoid(x)", "silu(x)", growth="collects", doc="x * sigmoid(x)"),
    Rule("is-gelu", "(x * 0.5) * (erf(x * 0.7071067811865476) + 1.0)", "gelu(x)", growth="collects",
         doc="x / 2 * (1 + erf(x / sqrt 2))"),
    Rule("is-gelu-outer-half", "(x * (erf(x * 0.7071067811865476) + 1.0)) * 0.5", "gelu(x)", growth="collects",
         shortcut=True, doc="x * (1 + erf(x / sqrt 2)) / 2"),
    Rule("is-gelu-tanh", "(x * 0.5) * (tanh((x + x * x * x * 0.044715) * 0.7978845608028654) + 1.0)", "gelu_tanh(x)",
         growth="collects", doc="the tanh form"),
    Rule("is-softplus", "log(exp(x) + 1.0)", "softplus(x)", growth="collects", doc="log(1 + exp(x))"),
    Rule("is-mish", "x * tanh(softplus(x))", "mish(x)", growth="collects", doc="x * tanh(softplus(x))"),
    Rule("is-hard-swish", "x * hard_sigmoid(x)", "hard_swish(x)", growth="collects", doc="x * hard_sigmoid(x)"),
    Rule("is-gelu-divided", "(x * 0.5) * (erf(x / 1.4142135623730951) + 1.0)", "gelu(x)", growth="collects",
         doc="x / 2 * (1 + erf(x / sqrt 2))"),
    Rule("is-leaky-relu", "where(lt(0.0, x), x, x * full(value=a, shape=s, dtype=d))", "leaky_relu(x, alpha=a)",
         when=("floating(x)", "s == ones(rank(x))"), growth="collects", doc="a slope below zero"),
    Rule("is-elu", "where(lt(0.0, x), x, (exp(x) - 1.0) * full(value=a, shape=s, dtype=d))", "elu(x, alpha=a)",
         when=("s == ones(rank(x))",), growth="collects", doc="a * (exp(x) - 1) below zero"),
    Rule("is-hard-sigmoid", "clip(x * full(value=a, shape=s, dtype=d) + full(value=b, shape=t, dtype=d), lo=0.0, hi=1.0)",
         "hard_sigmoid(x, alpha=a, beta=b)", when=("s == ones(rank(x))", "t == ones(rank(x))"), growth="collects", exact=True,
         doc="a line clipped to [0, 1]"),
    Rule("is-clip-relu", "minimum(relu(x), full(value=b, shape=t, dtype=d))", "clip(x, lo=0.0, hi=b)",
         when=("t == ones(rank(x))",), growth="collects", exact=True, doc="a relu with an upper limit"),
    *(Rule(f"{op}-after-pool", f"max_pool({op}(x), kernel=k, strides=s, pads=p, dilations=(1, 1))",
           f"{op}(max_pool(x, kernel=k, strides=s, pads=p, dilations=(1, 1)))", growth="collects",
           when=("p[0] < k[0]", "p[1] < k[1]", "p[2] < k[0]", "p[3] < k[1]"),
           doc="an increasing function commutes with max pooling (no window is empty) and has fewer elements to compute after it")
      for op in ("relu", "tanh", "sigmoid")),
    Rule("is-clip", "minimum(maximum(x, full(value=a, shape=s, dtype=d)), full(value=b, shape=t, dtype=d))",
         "clip(x, lo=a, hi=b)", when=("floating(x)", "s == ones(rank(x))", "t == ones(rank(x))"), growth="collects",
         exact=True, doc="clamping to an interval"),
])  # fmt: skip

_SHIFTED = "exp(x - max(x, axes=k))"
NORMALISATIONS = table("normalisations", "fuse", [
    Rule("is-softmax", f"{_SHIFTED} / sum({_SHIFTED}, axes=k)", "softmax(x, axis=k[0])", when=("len(k) == 1",),
         growth="collects", doc="the numerically stable form, shifted by the maximum"),
    Rule("is-softmax-unshifted", "exp(x) / sum(exp(x), axes=k)", "softmax(x, axis=k[0])", when=("len(k) == 1",),
         growth="collects", doc="the form without the shift by the maximum"),
    Rule("is-log-softmax", "x - logsumexp(x, axes=k)", "log_softmax(x, axis=k[0])", when=("len(k) == 1",), growth="collects",
         doc="x - log(sum(exp(x)))"),
    Rule("is-logsumexp", "log(sum(exp(x), axes=k))", "logsumexp(x, axes=k)", growth="collects",
         doc="log(sum(exp(x)))"),
    Rule("is-logsumexp-shifted", f"log(sum({_SHIFTED}, axes=k)) + max(x, axes=k)", "logsumexp(x, axes=k)",
         growth="collects", doc="log(sum(exp(x - max))) + max"),
    Rule("is-log-softmax-shifted", "(x - max(x, axes=k)) - log(sum(exp(x - max(x, axes=k)), axes=k))",
         "log_softmax(x, axis=k[0])", when=("len(k) == 1",), growth="collects", doc="the numerically stable form, shifted by the maximum"),
    Rule("is-rms-norm", "(x * rsqrt(mean(x * x, axes=k) + full(value=e, shape=s, dtype=d))) * g",
         "rms_norm(x, reshape(g, shape=(size(g, -1),)), eps=e)", when=(_LAST, _ROW, "size(g, -1) == size(x, -1)", "s == ones(rank(x))"),
         growth="collects", doc="x / sqrt(mean(x**2) + eps) * gain"),
    Rule("is-layer-norm",
         "((x - mean(x, axes=k)) * rsqrt(mean((x - mean(x, axes=k)) * (x - mean(x, axes=k)), axes=k) + full(value=e, shape=s, dtype=d))) * g + b",
         "layer_norm(x, reshape(g, shape=(size(g, -1),)), reshape(b, shape=(size(b, -1),)), eps=e)",
         when=(_LAST, _ROW, "size(g, -1) == size(x, -1)", "replace(shape(b), -1, 1) == ones(rank(b))", "size(b, -1) == size(x, -1)", "s == ones(rank(x))"),
         growth="collects", doc="(x - mean) / sqrt(var + eps) * gain + shift"),
])  # fmt: skip

_RANKS = ("rank(q) == rank(t)", "rank(t) == rank(v)", "2 < rank(q)", "i == rank(q) - 1")
_SCALED = (*_RANKS, "s == ones(rank(q))")
#: A mask whose every axis broadcasts to the scores, up to rank 5.
_MASK = (
    "rank(q) < 6", "contains((1, size(t, -1)), size(m, -1))", "contains((1, size(q, -2)), size(m, -2))",
    *(f"contains((1, size(q, {i})), size(m, {i}))" for i in ("0", "max(0, rank(q) - 4)", "rank(q) - 3")),
)  # fmt: skip
_SCORES = "(q @ t) * full(value=c, shape=s, dtype=d)"
_HIDDEN = "softmax(where(m, full(value=-inf, shape=n, dtype=e), {0}), axis=i)"
#: The positions above the diagonal, as canonical masks write them.
_AHEAD = (
    "reshape(lt(full(value=0.0, shape=p, dtype='int64'), iota(axis=1, shape=h, dtype='int64')"
    " - iota(axis=0, shape=h, dtype='int64')), shape=r)"
)
_KEYS = "permute(t, perm=swap_last(rank(t)))"
_REPEATED = "reshape(broadcast_to(reshape({0}, shape={0}1), shape={0}2), shape={0}3)"
_SPLIT, _JOINED = (
    "(size({0}, 0), size({0}, 1), 1, size({0}, 2), size({0}, 3))",
    "(size({0}, 0), size({0}, 1) * k2[2], size({0}, 2), size({0}, 3))",
)
_GROUPED = (
    *(f"{x}1 == {_SPLIT.format(x)}" for x in "kv"), *(f"{x}3 == {_JOINED.format(x)}" for x in "kv"),
    "v2 == replace(v1, 2, k2[2])", "size(q, 1) == size(k, 1) * k2[2]", "size(v, 1) == size(k, 1)", "size(q, 0) == size(k, 0)", "size(v, 0) == size(k, 0)",
)  # fmt: skip
ATTENTION = table("attention", "fuse", [
    Rule("is-attention", f"softmax({_SCORES}, axis=i) @ v", f"attention(q, {_KEYS}, v, scale=c)", when=_SCALED,
         growth="collects", doc="softmax(scale * q @ k.T) @ v"),
    Rule("is-attention-unscaled", "softmax(q @ t, axis=i) @ v", f"attention(q, {_KEYS}, v, scale=1.0)", when=_RANKS,
         growth="collects", doc="softmax(q @ k.T) @ v"),
    Rule("is-masked-attention", f"softmax({_SCORES} + m, axis=i) @ v", f"masked_attention(q, {_KEYS}, v, m, scale=c)",
         when=(*_SCALED, *_MASK), growth="collects", doc="softmax(scale * q @ k.T + mask) @ v"),
    Rule("is-masked-attention-unscaled", "softmax(q @ t + m, axis=i) @ v", f"masked_attention(q, {_KEYS}, v, m, scale=1.0)",
         when=(*_RANKS, *_MASK), growth="collects", doc="softmax(q @ k.T + mask) @ v"),
    Rule("is-hiding-attention", f"{_HIDDEN.format(_SCORES)} @ v", f"hiding_attention(q, {_KEYS}, v, m, scale=c)",
         when=(*_SCALED, *_MASK, "n == s"), growth="collects", doc="softmax(scale * q @ k.T, -inf where hidden) @ v"),
    Rule("is-hiding-attention-unscaled", f"{_HIDDEN.format('q @ t')} @ v", f"hiding_attention(q, {_KEYS}, v, m, scale=1.0)",
         when=(*_RANKS, *_MASK, "n == ones(rank(q))"), growth="collects", doc="softmax(q @ k.T, -inf where hidden) @ v"),
    Rule("mask-hides", "softmax(where(c, x, full(value=-inf, shape=s, dtype=d)), axis=i)",
         "softmax(where(not_(c), full(value=-inf, shape=s, dtype=d), x), axis=i)",
         doc="the condition marks the hidden scores, as that of attention does"),
    Rule("group-queries", f"attention(q, {_REPEATED.format('k')}, {_REPEATED.format('v')}, scale=c, causal=z, window=w, softcap=y)",
         "reshape(attention(reshape(q, shape=(size(q, 0), size(k, 1), k2[2], size(q, 2), size(q, 3))), reshape(k, shape=k1),"
         " reshape(v, shape=v1), scale=c, causal=z, window=w, softcap=y), shape=(size(q, 0), size(q, 1), size(q, 2), size(v, 3)))",
         when=_GROUPED, growth="collects", doc="repeated key and value heads become a broadcast axis (grouped-query attention)"),
    *(Rule(f"group-queries-{kind}", f"{op}(q, {_REPEATED.format('k')}, {_REPEATED.format('v')}, m, scale=c, causal=z, window=w, softcap=y)",
           f"reshape({op}(reshape(q, shape=(size(q, 0), size(k, 1), k2[2], size(q, 2), size(q, 3))), reshape(k, shape=k1),"
           " reshape(v, shape=v1), reshape(m, shape=(size(m, 0), 1, 1, size(m, 2), size(m, 3))), scale=c, causal=z, window=w, softcap=y),"
           " shape=(size(q, 0), size(q, 1), size(q, 2), size(v, 3)))",
           when=(*_GROUPED, "size(m, 1) == 1"), growth="collects",
           doc="repeated key and value heads become a broadcast axis; the mask is the same for all heads")
      for kind, op in (("masked", "masked_attention"), ("hiding", "hiding_attention"))),
    *(Rule(name, f"{op}(q, k, v, {mask}, scale=c, causal=False, window=0, softcap=y)",
           "attention(q, k, v, scale=c, causal=True, window=0, softcap=y)",
           when=("h == (size(q, -2), size(k, -2))", "r == replace(replace(ones(rank(q)), -2, size(q, -2)), -1, size(k, -2))",
                 "size(q, -2) == size(k, -2)"), growth="collects", doc="a mask of all positions above the diagonal")
      for name, op, mask in (
          ("is-causal-attention", "masked_attention",
           f"where({_AHEAD}, full(value=-inf, shape=s, dtype=d), full(value=0.0, shape=s, dtype=d))"),
          ("is-causal-attention-hiding", "hiding_attention", _AHEAD))),
    Rule("attention-with-sink",
         "slice(softmax(concat(x, y, axis=i), axis=i), axis=i, start=0, stop=n) @ v",
         "(softmax(x, axis=i) @ v) * sigmoid(logsumexp(x, axes=(i,)) - y)",
         when=("i == rank(x) - 1", "n == size(x, i)", "size(y, i) == 1"), keep=True,
         doc="an attention sink scales each row by a sigmoid of its logsumexp, so the sink need not be a column of the scores"),
    Rule("is-rope",
         "x * c + concat(neg(slice(x, axis=i, start=h, stop=n)), slice(x, axis=i, start=0, stop=h), axis=i) * s", "rope(x, c, s)",
         when=("floating(x)", "i == rank(x) - 1", "n == size(x, -1)", "h + h == size(x, -1)", "fits(c, x)", "fits(s, x)"), growth="collects",
         doc="rotary position embedding, written out"),
])  # fmt: skip

RULES = (*ACTIVATIONS, *NORMALISATIONS, *ATTENTION)
