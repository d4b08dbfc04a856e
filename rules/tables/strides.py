"""Lists rules about strides, crops and transposed images, for proofs only.

Steps of slices move towards the leaves: a slice with a step of a result becomes a stride of the op that computes it,
and a stride along an axis on which the kernel has size 1 becomes a slice with a step of the image. Zeros around a
kernel reduce the padding, and beyond the padding they crop the image. Per-channel window sums commute with convolutions
that follow them. Permutations of axes move to the leaves. Paddings are indexed relative to the rank, so that a rule
about rows holds for any number of spatial axes.
"""

from __future__ import annotations

from ...egraph.patterns.rule import Rule, table

STEPS = table("steps", "proof", [
    Rule("slice-slice-steps", "slice(slice(x, axis=i, start=a, stop=b, step=q), axis=i, start=c, stop=e, step=r)",
         "slice(x, axis=i, start=a + c * q, stop=min(b, a + e * q), step=q * r)", when=("c < e",), growth="collects", exact=True,
         doc="two strided slices are combined into one"),
    Rule("last-of-steps", "slice(x, axis=i, start=a, stop=b, step=q)",
         "slice(x, axis=i, start=a, stop=a + (b - a - 1) // q * q + 1, step=q)", when=("a < b",), exact=True,
         doc="the stop of a strided slice is normalized to the last element read"),
    Rule("slice-of-slice-axes-steps", "slice(slice(x, axis=i, start=a, stop=b, step=q), axis=j, start=c, stop=e, step=r)",
         "slice(slice(x, axis=j, start=c, stop=e, step=r), axis=i, start=a, stop=b, step=q)", when=("i < j",), exact=True,
         doc="slices along different axes commute"),
    *(Rule(f"slice-{op}-steps", f"slice({op}(x), axis=i, start=a, stop=b, step=q)", f"{op}(slice(x, axis=i, start=a, stop=b, step=q))",
           exact=True, doc="only every q-th element is computed") for op in ("tanh", "sigmoid")),
    *(Rule(f"slice-{op}-constant-steps", f"slice({op}(x, z), axis=i, start=a, stop=b, step=q)", f"{op}(slice(x, axis=i, start=a, stop=b, step=q), z)",
           when=("size(z, i) == 1",), exact=True, doc="a slice ignores an operand that is constant along its axis")
      for op in ("add", "mul")),
    Rule("slice-of-fill-steps", "slice(full(value=v, shape=s, dtype=d), axis=i, start=a, stop=b, step=q)",
         "full(value=v, shape=replace(s, i, (b - a + q - 1) // q), dtype=d)", growth="collects", exact=True,
         doc="a slice of a fill"),
])  # fmt: skip


def _windows(name: str, term: str, kernel: str, axis: int) -> list[Rule]:
    """Rules about steps and strides of a windowed op along a spatial axis.

    `term` is a format string with slots for image, strides and pads, `kernel` the expression of the kernel size.
    """
    n, line = axis - 2, ("row", "column")[axis - 2]
    s, lo, hi, d = f"s[{n}]", f"p[{n}]", f"p[rank(x) - {2 - n}]", f"d[{n}]"
    reach = f"{d} * ({kernel} - 1) + 1"
    count = f"(size(x, {axis}) + {lo} + {hi} - {d} * ({kernel} - 1) - 1) // {s} + 1"
    plain = term.format("x", "s", "p")
    stepped = term.format("x", f"replace(s, {n}, {s} * q)", "p")
    inside = f"slice(x, axis={axis}, start=a * {s}, stop=(a + (b - a - 1) // q * q) * {s} + {reach})"
    return [
        Rule(f"step-of-{name}-{line}s", f"slice({plain}, axis={axis}, start=0, stop=e, step=q)", stepped, growth="collects",
             when=(f"e == {count}",), doc=f"every q-th {line} of the result is computed with q times the stride"),
        Rule(f"{line}s-of-{name}", f"slice({plain}, axis={axis}, start=a, stop=b, step=q)", term.format(inside, f"replace(s, {n}, {s} * q)", "p"),
             when=("a < b", f"{lo} == 0", f"{hi} == 0", *((f"0 < {kernel}",) if "size" in kernel else ())), doc=f"a slice of the result's {line}s needs only the {line}s that its windows read"),
        Rule(f"flat-{name}-{line}s", plain, term.format(f"slice(x, axis={axis}, start=0, stop=size(x, {axis}), step={s})", f"replace(s, {n}, 1)", "p"),
             when=(f"{kernel} == 1", f"{lo} == 0", f"{hi} == 0"),
             doc=f"where a window is one {line}, a stride is a strided slice of the image"),
    ]  # fmt: skip


STRIDES = table("strides", "proof", [
    *(rule for axis in (2, 3)
      for rule in _windows("conv", "conv({0}, w, strides={1}, pads={2}, dilations=d, groups=g)", f"size(w, {axis})", axis)),
    *(rule for axis in (2, 3)
      for rule in _windows("max-pool", "max_pool({0}, kernel=k, strides={1}, pads={2}, dilations=d)", f"k[{axis - 2}]", axis)),
])  # fmt: skip


def _crop(axis: int) -> Rule:
    n, line = axis - 2, ("row", "column")[axis - 2]
    lo, hi, last = f"l * d[{n}]", f"h * d[{n}]", f"rank(x) - {2 - n}"
    before, behind = f"max(0, {lo} - p[{n}])", f"max(0, {hi} - p[{last}])"
    pads = f"replace(replace(p, {n}, max(0, p[{n}] - {lo})), {last}, max(0, p[{last}] - {hi}))"
    return Rule(f"crop-kernel-{line}s", f"conv(x, pad(w, axis={axis}, lo=l, hi=h), strides=s, pads=p, dilations=d, groups=g)",
                f"conv(slice(x, axis={axis}, start={before}, stop=size(x, {axis}) - {behind}), w, strides=s, pads={pads}, dilations=d, groups=g)",
                when=(f"{before} + {behind} < size(x, {axis})", f"0 < size(w, {axis})"),
                doc=f"zeros around a kernel reduce the padding, or crop the {line}s of the image that only these zeros read")  # fmt: skip


CROPS = table("crops", "proof", [_crop(2), _crop(3)])

#: The identity kernel: ones where the first two indices agree, else zeros.
_UNIT = "cast(eq(iota(axis=0, shape={0}, dtype='int64'), iota(axis=1, shape={0}, dtype='int64')), dtype=f)"
_BOX = _UNIT.format("s")
_BOTH = "(u[0] * t[0], u[1] * t[1])"


def _of(size: str) -> str:
    """The identity kernel with `size` channels and the window of s."""
    return _UNIT.format(f"replace(replace(s, 0, {size}), 1, {size})")


BOXES = table("boxes", "proof", [
    Rule("conv-of-box", f"conv(conv(x, {_BOX}, strides=u, pads=p, dilations=e, groups=1), w, strides=t, pads=(0, 0, 0, 0), dilations=d, groups=1)",
         f"conv(conv(x, w, strides=(1, 1), pads=p, dilations=(u[0] * d[0], u[1] * d[1]), groups=1), {_of('size(w, 0)')},"
         f" strides={_BOTH}, pads=(0, 0, 0, 0), dilations=e, groups=1)", when=("s[0] == s[1]",),
         doc="window sums commute with a convolution that follows them"),
])  # fmt: skip

_TURNED = "strides=(s[1], s[0]), pads=(p[1], p[0], p[3], p[2]), dilations=(d[1], d[0])"
_WINDOW = "strides=s, pads=p, dilations=d"
TURNS = table("turned images", "proof", [
    Rule("turned-conv", f"permute(conv(x, w, {_WINDOW}, groups=g), perm=o)",
         f"conv(permute(x, perm=o), permute(w, perm=o), {_TURNED}, groups=g)", when=("o == (0, 1, 3, 2)",),
         doc="swapping rows and columns commutes with a convolution"),
    *(Rule(f"{name}-max-pool", f"permute(max_pool(x, kernel=k, {_WINDOW}), perm=o)", f"max_pool(permute(x, perm=o), {how})",
           when=(f"o == {order}",), exact=name == "swapped", doc=f"swapping {operands} commutes with a pool")  # turned: 0.0 and -0.0 reordered
      for name, order, how, operands in (
          ("turned", (0, 1, 3, 2), f"kernel=(k[1], k[0]), {_TURNED}", "rows and columns"),
          ("swapped", (1, 0, 2, 3), f"kernel=k, {_WINDOW}", "batch and channels"),
          ("turned-swapped", (1, 0, 3, 2), f"kernel=(k[1], k[0]), {_TURNED}", "rows and columns, batch and channels"))),
    Rule("swapped-box", f"permute(conv(x, {_BOX}, strides=t, pads=p, dilations=d, groups=1), perm=o)",
         f"conv(permute(x, perm=o), {_of('size(x, 0)')}, strides=t, pads=p, dilations=d, groups=1)",
         when=("o == (1, 0, 2, 3)", "s[0] == s[1]"), doc="swapping batch and channels commutes with window sums"),
    Rule("turned-box", f"permute(conv(x, {_BOX}, strides=t, pads=p, dilations=d, groups=1), perm=o)",
         f"conv(permute(x, perm=o), {_UNIT.format('(size(x, 0), size(x, 0), s[3], s[2])')},"
         " strides=(t[1], t[0]), pads=(p[1], p[0], p[3], p[2]), dilations=(d[1], d[0]), groups=1)",
         when=("o == (1, 0, 3, 2)", "s[0] == s[1]"), doc="swapping batch and channels, rows and columns commutes with window sums"),
    Rule("turned-unit", f"permute({_BOX}, perm=o)", _UNIT.format("permuted(s, o)"), when=("o[0] + o[1] == 1",), growth="collects",
         exact=True, doc="the identity kernel is symmetric in its first two axes"),
    Rule("permute-batched-product", "permute(a @ b, perm=o)", "permute(a, perm=o) @ permute(b, perm=o)",
         when=("rank(a) == rank(b)", "o[-1] == rank(a) - 1", "o[-2] == rank(a) - 2"), doc="a permutation of batch axes commutes with a matrix product"),
    Rule("transpose-batched-product", "permute(a @ b, perm=o)", "permute(b, perm=o) @ permute(a, perm=o)",
         when=("rank(a) == rank(b)", "o[-1] == rank(a) - 2", "o[-2] == rank(a) - 1"),
         doc="transposing a batched product swaps and transposes its operands"),
])  # fmt: skip

RULES = (*STEPS, *STRIDES, *CROPS, *BOXES, *TURNS)
