"""Lists loop transformation rules: reductions and contractions are terms over an explicit iteration space (loop nests).

Every axis of a value is a loop. A body is arithmetic on operands that views (index maps) bring to the axes of the
iteration space: an axis of size 1 is an unused index, `reshape` splits an index (i = b·i₁ + i₂) or merges two,
`permute` interchanges loops, `windows` is the change of variable h = stride·i + dilation·j, `slice` and `pad` shift an
index. A reduction over one axis is an accumulating loop. A matrix product is therefore

    reshape(sum(reshape(a, (m, k, 1)) * reshape(b, (1, k, n)), axes=(1,)), (m, n))        Σₖ a[i, k]·b[k, j]

`RULES` unfold contractions into such terms, transform loops, and recognize contractions again; `splits(b)` adds rules
that tile a loop into blocks of b. They are ordinary rules, so derivations are explained and replayed as usual. They
grow the e-graph a lot and are not applied to models: `rules/derive/prove.py` uses them for claims that the other rules
do not prove (decision 24). The transformations are those of EinNet
(https://www.usenix.org/conference/osdi23/presentation/zheng); index maps as views follow luminal.
"""

from __future__ import annotations

from ...egraph.patterns.rule import Rule, table

REDUCTIONS = ("sum", "max", "min")
RANKS = range(2, 8)

_HEIGHT = "((size(x, 2) + p[0] + p[2] - d[0] * (size(w, 2) - 1) - 1) // s[0] + 1)"
_WIDTH = "((size(x, 3) + p[1] + p[3] - d[1] * (size(w, 3) - 1) - 1) // s[1] + 1)"
_WINDOWS = (
    "windows(windows(pad(pad(x, axis=2, lo=p[0], hi=p[2]), axis=3, lo=p[1], hi=p[3]),"
    " axis=2, size=size(w, 2), stride=s[0], dilation=d[0]), axis=3, size=size(w, 3), stride=s[1], dilation=d[1])"
)
_KERNEL = "size(w, 2), size(w, 3)"

#: Contractions to loops, and loops recognized as contractions.
CONTRACTIONS = table("loops", "loop", [
    Rule("matmul-as-loops", "a @ b",
         "reshape(sum(reshape(a, shape=(size(a, 0), size(a, 1), 1)) * reshape(b, shape=(1, size(b, 0), size(b, 1))), axes=(1,)),"
         " shape=(size(a, 0), size(b, 1)))", when=("rank(a) == 2", "rank(b) == 2"), growth="expands",
         doc="Σ over k of a[i, k]·b[k, j]"),
    Rule("loops-as-matmul", "sum(x * y, axes=(1,))",
         "reshape(reshape(x, shape=(size(x, 0), size(x, 1))) @ reshape(y, shape=(size(y, 1), size(y, 2))), shape=(size(x, 0), 1, size(y, 2)))",
         when=("rank(x) == 3", "size(x, 2) == 1", "size(y, 0) == 1", "size(x, 1) == size(y, 1)"),
         doc="a sum over k of x[i, k]·y[k, j] is a product of matrices"),
    Rule("loops-as-products", "sum(x * y, axes=(2,))",
         "reshape(reshape(x, shape=(size(x, 0), size(x, 1), size(x, 2))) @ reshape(y, shape=(size(y, 0), size(y, 2), volume(y) // (size(y, 0) * size(y, 2)))),"
         " shape=replace(replace(replace(shape(y), 0, max(size(x, 0), size(y, 0))), 1, size(x, 1)), 2, 1))",
         when=("3 < rank(x)", "rank(x) == rank(y)", "volume(x) == size(x, 0) * size(x, 1) * size(x, 2)", "size(y, 1) == 1", "size(x, 2) == size(y, 2)"),
         doc="with one more loop around it a batch of products; the inner loops that only y uses are its columns"),
    Rule("conv-as-loops", "conv(x, w, strides=s, pads=p, dilations=d, groups=1)",
         f"reshape(sum(sum(sum(reshape(w, shape=(1, size(w, 0), size(w, 1), {_KERNEL}, 1, 1))"
         f" * reshape(permute({_WINDOWS}, perm=(0, 1, 4, 5, 2, 3)), shape=(size(x, 0), 1, size(x, 1), {_KERNEL}, {_HEIGHT}, {_WIDTH})),"
         " axes=(4,)), axes=(3,)), axes=(2,)),"
         f" shape=(size(x, 0), size(w, 0), {_HEIGHT}, {_WIDTH}))", when=("rank(x) == 4",), growth="expands",
         doc="Σ over c, i, j of x[n, c, s·h + d·i, s·w + d·j]·w[o, c, i, j]"),
])  # fmt: skip

#: Loop merging and interchange.
NESTS = table("loops", "loop", [
    *(Rule(f"merge-{r}s", f"{r}({r}(z, axes=j), axes=k)",
           f"{r}(reshape(z, shape=replace(replace(shape(z), k[0], size(z, k[0]) * size(z, k[0] + 1)), k[0] + 1, 1)), axes=k)",
           when=("len(j) == 1", "len(k) == 1", "j[0] == k[0] + 1", "size(z, k[0] + 1) != 1"), doc="two nested loops are one")
      for r in REDUCTIONS),
    *(Rule(f"interchange-{r}s", f"{r}({r}(z, axes=j), axes=k)", f"{r}({r}(z, axes=k), axes=j)",
           when=("len(j) == 1", "len(k) == 1", "j != k"), doc="nested loops change places") for r in REDUCTIONS),
    *(Rule(f"outer-loop-first-{r}", f"{r}(z, axes=(2,))",
           f"permute({r}(permute(z, perm=(1, 0, 2, 3)), axes=(2,)), perm=(1, 0, 2, 3))", when=("rank(z) == 4",), growth="expands",
           doc="the second loop goes around the first") for r in REDUCTIONS),
    *(Rule(f"{r}-of-regrouped", f"{r}(reshape(z, shape=s), axes=(0,))", f"reshape({r}(z, axes=(0,)), shape=replace(s, 0, 1))",
           when=("1 <= rank(z)", "0 < size(z, 0)", "s[0] == size(z, 0)"), doc="the other loops are regrouped after the reduction") for r in REDUCTIONS),
])  # fmt: skip


def _product(rank: int, skip: tuple[int, ...], shift: int) -> tuple[str, ...]:
    """Guards: outside the axes `skip`, t has the broadcast sizes of x and y.

    Axes after skip[0] are offset by `shift` in t.
    """
    return tuple(
        f"t[{i + (shift if i > skip[0] else 0)}] == max(size(x, {i}), size(y, {i}))"
        for i in range(rank)
        if i not in skip
    )


def _split_enters(op: str, rank: int, i: int) -> Rule:
    """Rule: push a split of loop i into the operands of a pointwise op.

    Unused indices (size 1) have size 1 in both parts.
    """
    own = "insert(replace(shape({0}), {1}, min(size({0}, {1}), t[{1}])), {2}, min(size({0}, {1}), t[{2}]))"
    left, right = (f"reshape({v}, shape={own.format(v, i, i + 1)})" for v in "xy")
    return Rule(
        f"split-{op}-{i}-of-{rank}", f"reshape({op}(x, y), shape=t)", f"{op}({left}, {right})",
        when=(f"rank(x) == {rank}", f"len(t) == {rank + 1}", f"t[{i}] * t[{i + 1}] == max(size(x, {i}), size(y, {i}))",
              *_product(rank, (i,), 1)),
        doc=f"loop {i} is split in the operands",
    )  # fmt: skip


def _merge_enters(op: str, rank: int, i: int) -> Rule:
    """Rule: push a merge of loops i and i + 1 into operands that use both indices or neither."""
    size = "size({0}, {1}) * size({0}, {2})"
    own = "replace(replace(shape({0}), {1}, " + size + "), {2}, 1)"
    left, right = (f"reshape({v}, shape={own.format(v, i, i + 1)})" for v in "xy")
    return Rule(
        f"merge-{op}-{i}-of-{rank}", f"reshape({op}(x, y), shape=t)", f"{op}({left}, {right})",
        when=(f"rank(x) == {rank}", f"len(t) == {rank}", f"t[{i + 1}] == 1",
              *(f"contains((1, t[{i}]), {size.format(v, i, i + 1)})" for v in "xy"),
              f"t[{i}] == max({size.format('x', i, i + 1)}, {size.format('y', i, i + 1)})", *_product(rank, (i, i + 1), 0)),
        doc=f"loops {i} and {i + 1} are merged in the operands",
    )  # fmt: skip


#: Index maps move into loop bodies; unused indices (size 1) move freely.
BODIES = table("loops", "loop", [
    *(_split_enters(op, r, i) for op in ("mul", "sub") for r in RANKS for i in range(r) if r < 5),
    *(_merge_enters(op, r, i) for op in ("mul",) for r in RANKS for i in range(r - 1) if r > 4),
    Rule("unused-loop-first", "permute(z, perm=(1, 0, 2, 3))", "reshape(z, shape=(size(z, 1), size(z, 0), size(z, 2), size(z, 3)))",
         when=("contains((size(z, 0), size(z, 1)), 1)",), exact=True, doc="interchanging with an index that is not used moves nothing"),
    Rule("unused-kernel-indices", "permute(z, perm=(0, 1, 4, 5, 2, 3))", "reshape(z, shape=permuted(shape(z), (0, 1, 4, 5, 2, 3)))",
         when=("size(z, 4) == 1", "size(z, 5) == 1"), exact=True, doc="interchanging with indices that are not used moves nothing"),
    Rule("unused-last-index", "permute(z, perm=p)",
         "reshape(permute(reshape(z, shape=drop(shape(z), -1)), perm=drop(p, -1)), shape=permuted(shape(z), p))",
         when=("2 < rank(z)", "size(z, -1) == 1", "p[-1] == len(p) - 1"), exact=True, doc="an index that is not used stays out of an interchange"),
    Rule("window-of-one", "windows(z, axis=i, size=1, stride=1, dilation=d)", "reshape(z, shape=insert(shape(z), rank(z), 1))",
         exact=True, doc="a window of one element is the element"),
    Rule("no-padding", "pad(z, axis=i, lo=0, hi=0, value=v)", "z", growth="collects", exact=True, doc="padding by nothing"),
])  # fmt: skip

#: Rescaling step of online softmax: makes a blocked loop possible although its body needs the result of the previous
#: loop.
RUNNING = table("loops", "loop", [
    Rule("telescope", "exp(z - max(max(z, axes=j), axes=k))",
         "exp(z - max(z, axes=j)) * exp(max(z, axes=j) - max(max(z, axes=j), axes=k))",
         doc="relative to a block's maximum, then the block's relative to all (finite values)"),
])  # fmt: skip

RULES = (*CONTRACTIONS, *NESTS, *BODIES, *RUNNING)


def splits(block: int) -> tuple[Rule, ...]:
    """Rules that tile a reduction loop into blocks of `block` elements: k = block·k₁ + k₂."""
    return table("loops", "loop", [
        Rule(f"split-{r}-by-{block}", f"{r}(z, axes=k)",
             f"reshape({r}({r}(reshape(z, shape=insert(replace(shape(z), k[0], size(z, k[0]) // {block}), k[0] + 1, {block})),"
             " axes=(k[0] + 1,)), axes=k), shape=replace(shape(z), k[0], 1))",
             when=("len(k) == 1", f"size(z, k[0]) % {block} == 0", f"{block} < size(z, k[0])"), growth="expands",
             doc=f"a loop in blocks of {block}") for r in REDUCTIONS
    ])  # fmt: skip


__all__ = ["REDUCTIONS", "RULES", "splits"]
