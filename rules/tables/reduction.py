"""Lists reduction rules: linearity, factors that commute with reductions, fusion of nested reductions, softmax."""

from __future__ import annotations

from ...egraph.patterns.rule import Rule, table

_LINEAR = ("sum", "mean")
_ONE_AXIS = ("len(k) == 1", "size(s, k[0]) == 1")

LINEARITY = table("reductions", "algebra", [
    *(Rule(f"{r}-of-sum", f"{r}(x + y, axes=k)", f"{r}(x, axes=k) + {r}(y, axes=k)", when=("shape(x) == shape(y)",), both=True,
           growth="expands", doc="the reduction is linear") for r in _LINEAR),
    *(Rule(f"{r}-factor", f"{r}(x * s, axes=k)", f"{r}(x, axes=k) * s", both=True, keep=True,
           when=("len(k) == 1", "size(s, k[0]) == 1"), doc="a factor that is constant along the axis is pulled out") for r in _LINEAR),
    *(Rule(f"{r}-quotient", f"{r}(x / s, axes=k)", f"{r}(x, axes=k) / s", both=True, keep=True, when=_ONE_AXIS,
           doc="a divisor that is constant along the axis is pulled out") for r in _LINEAR),
    *(Rule(f"{r}-sign", f"{r}(neg(x), axes=k)", f"neg({r}(x, axes=k))", both=True, doc="a negation is pulled out of the reduction") for r in _LINEAR),
    *(Rule(f"{r}-of-product", f"{r}(a @ w, axes=k)", f"{r}(a, axes=k) @ w", when=("k == (rank(a) - 2,)", *(("0 < size(a, -2)",) if r == "mean" else ())),
           both=True, doc="rows are reduced before or after a matrix product") for r in _LINEAR),
    *(Rule(f"{r}-of-concat", f"{r}(concat(x, y, axis=i), axes=k)", f"{op}({r}(x, axes=k), {r}(y, axes=k))",
           when=("k == (i,)",), growth="expands", doc="SPLIT: parts are reduced separately and then combined")
      for r, op in (("sum", "add"), ("max", "maximum"), ("min", "minimum"))),
    *(Rule(f"{r}-of-{r}s", f"{r}({r}(x, axes=j), axes=k)", f"{r}(x, axes=(min(j[0], k[0]), max(j[0], k[0])))",
           when=("len(j) == 1", "len(k) == 1", "j != k"), growth="collects", doc="two reductions are combined into one")
      for r in ("sum", "mean", "max")),
    *(Rule(f"{r}-of-one", f"{r}(x, axes=k)", "x", when=("len(k) == 1", "size(x, k[0]) == 1"), growth="collects", exact=exact,
           doc="reducing an axis of size 1 changes nothing") for r, exact in (("sum", False), ("mean", False), ("max", True))),
    Rule("max-summand", "max(x + s, axes=k)", "max(x, axes=k) + s", both=True, keep=True,
         when=("floating(x)", *_ONE_AXIS), doc="a summand that is constant along the axis is pulled out of a maximum"),
    Rule("max-sign", "max(neg(x), axes=k)", "neg(min(x, axes=k))", when=("floating(x)",), both=True,
         doc="negation turns a maximum into a minimum"),
    *(Rule(f"{r}-of-permute", f"{r}(permute(x, perm=p), axes=k)", f"permute({r}(x, axes=(p[k[0]],)), perm=p)",
           when=("len(k) == 1",), exact=r == "max", doc="reduce before the permutation") for r in ("sum", "mean", "max")),
    Rule("sum-of-products-is-matmul", "sum(x * y, axes=k)", "x @ permute(y, perm=swap_last(rank(y)))",
         when=("rank(x) == 2", "k == (1,)", "size(x, 1) == size(y, 1)", "size(y, 0) == 1"), growth="collects",
         doc="a weighted sum along the last axis is a matrix-vector product"),
])  # fmt: skip

SOFTMAX = table("softmax", "algebra", [
    Rule("softmax-shift", "softmax(x + s, axis=i)", "softmax(x, axis=i)", when=("size(s, i) == 1", "fits(s, x)"),
         growth="collects", doc="softmax is invariant under shifts that are constant along its axis"),
    Rule("softmax-unshift", "softmax(x - s, axis=i)", "softmax(x, axis=i)", when=("size(s, i) == 1", "fits(s, x)"),
         growth="collects", shortcut=True, doc="softmax is invariant under shifts that are constant along its axis"),
    Rule("variance-centred", "mean(x * x, axes=k) - mean(x, axes=k) * mean(x, axes=k)",
         "mean((x - mean(x, axes=k)) * (x - mean(x, axes=k)), axes=k)",
         doc="E[x^2] - E[x]^2 as the mean of squared deviations, which avoids cancellation; the reverse is not a rule"),
    Rule("softmax-permute", "permute(softmax(x, axis=i), perm=p)", "softmax(permute(x, perm=p), axis=index(p, i))",
         doc="permute before the softmax"),
    Rule("log-of-softmax", "log(softmax(x, axis=i))", "log_softmax(x, axis=i)", growth="collects",
         doc="avoids underflow of the softmax"),
    Rule("exp-of-log-softmax", "exp(log_softmax(x, axis=i))", "softmax(x, axis=i)", growth="collects",
         doc="the exponential of a log-softmax"),
])  # fmt: skip

RULES = (*LINEARITY, *SOFTMAX)
