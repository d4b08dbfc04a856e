"""Views and layout: folding of reshapes, permutations, slices and concatenations, and their motion past arithmetic.

Motion rules are one schema per family, stated once and instantiated over the pointwise ops of the table below.
"""

from __future__ import annotations

from ..egraph.rule import Rule, table

UNARY = ("neg", "exp", "tanh", "rsqrt", "relu", "sigmoid", "silu", "gelu", "gelu_tanh")
BINARY = ("add", "sub", "mul", "div", "maximum")

FOLDING = table("folding", "layout", [
    Rule("reshape-reshape", "reshape(reshape(x, shape=s), shape=t)", "reshape(x, shape=t)", growth="collects", exact=True,
         doc="one reshape for two"),
    Rule("reshape-identity", "reshape(x, shape=s)", "x", when=("s == shape(x)",), growth="collects", exact=True,
         doc="a reshape to the same shape"),
    Rule("permute-permute", "permute(permute(x, perm=p), perm=q)", "permute(x, perm=compose(p, q))", growth="collects",
         exact=True, doc="one permutation for two"),
    Rule("permute-identity", "permute(x, perm=p)", "x", when=("p == identity(rank(x))",), growth="collects", exact=True,
         doc="a permutation that moves nothing"),
    Rule("broadcast-identity", "broadcast_to(x, shape=s)", "x", when=("s == shape(x)",), growth="collects", exact=True,
         doc="a broadcast to the same shape"),
    Rule("broadcast-broadcast", "broadcast_to(broadcast_to(x, shape=s), shape=t)", "broadcast_to(x, shape=t)",
         growth="collects", exact=True, doc="one broadcast for two"),
    Rule("slice-slice", "slice(slice(x, axis=i, start=a, stop=b), axis=i, start=c, stop=d)",
         "slice(x, axis=i, start=a + c, stop=a + d)", growth="collects", exact=True, doc="one slice for two"),
    Rule("slice-identity", "slice(x, axis=i, start=0, stop=e)", "x", when=("e == size(x, i)",), growth="collects",
         exact=True, doc="a slice of everything"),
    Rule("slice-of-concat-first", "slice(concat(x, y, axis=i), axis=i, start=s, stop=e)", "slice(x, axis=i, start=s, stop=e)",
         when=("e <= size(x, i)",), growth="collects", exact=True, doc="a slice within the first part"),
    Rule("slice-of-concat-second", "slice(concat(x, y, axis=i), axis=i, start=s, stop=e)",
         "slice(y, axis=i, start=s - size(x, i), stop=e - size(x, i))", when=("size(x, i) <= s",), growth="collects",
         exact=True, doc="a slice within the second part"),
    Rule("concat-of-slices", "concat(slice(x, axis=i, start=a, stop=b), slice(x, axis=i, start=b, stop=c), axis=i)",
         "slice(x, axis=i, start=a, stop=c)", growth="collects", exact=True, doc="neighbouring slices joined"),
    Rule("concat-associates", "concat(concat(x, y, axis=i), z, axis=i)", "concat(x, concat(y, z, axis=i), axis=i)",
         both=True, exact=True, doc="brackets move"),
    Rule("flip-flip", "flip(flip(x, axis=i), axis=i)", "x", growth="collects", exact=True, doc="two turns cancel"),
])  # fmt: skip

MOTION = table("view motion", "layout", [
    Rule("slice-of-permute", "slice(permute(x, perm=p), axis=i, start=s, stop=e)",
         "permute(slice(x, axis=p[i], start=s, stop=e), perm=p)", both=False, exact=True, doc="slice first, permute later"),
    Rule("slice-of-slice-axes", "slice(slice(x, axis=i, start=a, stop=b), axis=j, start=c, stop=d)",
         "slice(slice(x, axis=j, start=c, stop=d), axis=i, start=a, stop=b)", when=("i < j",), exact=True,
         doc="slices along different axes change places"),
    *(Rule(f"permute-{op}", f"permute({op}(x), perm=p)", f"{op}(permute(x, perm=p))", both=True, exact=True,
           doc="a permutation moves past an elementwise op") for op in UNARY),
    *(Rule(f"reshape-{op}", f"reshape({op}(x), shape=s)", f"{op}(reshape(x, shape=s))", both=True, exact=True,
           doc="a reshape moves past an elementwise op") for op in UNARY),
    *(Rule(f"slice-{op}", f"slice({op}(x), axis=i, start=s, stop=e)", f"{op}(slice(x, axis=i, start=s, stop=e))", both=True,
           exact=True, doc="a slice moves past an elementwise op") for op in UNARY),
    *(Rule(f"concat-{op}", f"concat({op}(x), {op}(y), axis=i)", f"{op}(concat(x, y, axis=i))", both=True, exact=True,
           doc="an elementwise op of parts side by side") for op in UNARY),
    *(Rule(f"permute-{op}", f"permute({op}(x, y), perm=p)", f"{op}(permute(x, perm=p), permute(y, perm=p))", both=True,
           exact=True, doc="a permutation moves past an elementwise op") for op in BINARY),
    *(Rule(f"reshape-{op}", f"reshape({op}(x, y), shape=s)", f"{op}(reshape(x, shape=s), reshape(y, shape=s))",
           when=("shape(x) == shape(y)",), exact=True, doc="a reshape moves past an elementwise op") for op in BINARY),
    *(Rule(f"{op}-of-reshaped", f"{op}(reshape(x, shape=s), reshape(y, shape=s))", f"reshape({op}(x, y), shape=s)",
           when=("shape(x) == shape(y)",), growth="collects", exact=True, doc="one reshape for two") for op in BINARY),
    *(Rule(f"slice-{op}", f"slice({op}(x, y), axis=i, start=s, stop=e)",
           f"{op}(slice(x, axis=i, start=s, stop=e), slice(y, axis=i, start=s, stop=e))", when=("size(x, i) == size(y, i)",),
           exact=True, doc="a slice moves past an elementwise op") for op in BINARY),
    *(Rule(f"{op}-of-sliced", f"{op}(slice(x, axis=i, start=s, stop=e), slice(y, axis=i, start=s, stop=e))",
           f"slice({op}(x, y), axis=i, start=s, stop=e)", when=("shape(x) == shape(y)",), growth="collects", exact=True,
           doc="an elementwise op of equal slices") for op in BINARY),
    *(Rule(f"{op}-of-concats", f"{op}(concat(x, y, axis=i), concat(u, v, axis=i))", f"concat({op}(x, u), {op}(y, v), axis=i)",
           when=("shape(x) == shape(u)", "shape(y) == shape(v)"), exact=True, both=False, growth="expands",
           doc="an elementwise op of parts side by side") for op in BINARY),
    *(Rule(f"concat-of-{op}s", f"concat({op}(x, u), {op}(y, v), axis=i)", f"{op}(concat(x, y, axis=i), concat(u, v, axis=i))",
           when=("shape(x) == shape(u)", "shape(y) == shape(v)"), exact=True, growth="collects",
           doc="parts side by side, computed at once") for op in BINARY),
    *(Rule(f"{op}-absorbs-broadcast", f"{op}(broadcast_to(x, shape=s), y)", f"{op}(x, y)", when=("shape(y) == s",),
           growth="collects", exact=True, doc="an elementwise op broadcasts by itself") for op in BINARY),
    *(Rule(f"{op}-absorbs-broadcast-right", f"{op}(y, broadcast_to(x, shape=s))", f"{op}(y, x)", when=("shape(y) == s",),
           growth="collects", exact=True, doc="an elementwise op broadcasts by itself") for op in ("sub", "div")),
])  # fmt: skip

RULES = (*FOLDING, *MOTION)
