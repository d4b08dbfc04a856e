"""Lists rules about quantized weights: views of packed numbers and of their scales, and products by groups."""

from __future__ import annotations

from ...egraph.patterns.rule import Rule, table

_UNPACK = "bits=b, form=f, block=n, dtype=d"
#: Whether a zero point is one value for the whole tensor.
_ONE_ZERO = "shape(z) == ones(rank(z))"
_SLICE = "axis=i, start=s, stop=e"

VIEWS = table("quantized weights", "layout", [
    Rule("permute-dequantize", "permute(dequantize(q, c, z), perm=p)",
         "dequantize(permute(q, perm=p), permute(c, perm=p), permute(z, perm=p))", exact=True,
         doc="numbers and scales are permuted alike"),
    Rule("permute-unpack", f"permute(unpack(x, axis=i, {_UNPACK}), perm=p)", f"unpack(permute(x, perm=p), axis=index(p, i), {_UNPACK})",
         exact=True, doc="packed numbers are permuted as bytes"),
    Rule("slice-dequantize", f"slice(dequantize(q, c, z), {_SLICE})", f"dequantize(slice(q, {_SLICE}), c, z)",
         when=("size(c, i) == 1",), growth="collects", exact=True,
         doc="a slice along an axis with one scale"),
    Rule("slice-dequantize-groups", f"slice(dequantize(q, c, z), {_SLICE})",
         f"dequantize(slice(q, {_SLICE}), slice(c, axis=i, start=s // (size(q, i) // size(c, i)), stop=e // (size(q, i) // size(c, i))), z)",
         when=(_ONE_ZERO, "s % (size(q, i) // size(c, i)) == 0", "e % (size(q, i) // size(c, i)) == 0"),
         exact=True, doc="a slice of whole groups"),
    Rule("slice-dequantize-zeros", f"slice(dequantize(q, c, z), {_SLICE})",
         f"dequantize(slice(q, {_SLICE}), slice(c, axis=i, start=s // (size(q, i) // size(c, i)), stop=e // (size(q, i) // size(c, i))),"
         " slice(z, axis=i, start=s // (size(q, i) // size(c, i)), stop=e // (size(q, i) // size(c, i))))",
         when=("shape(z) == shape(c)", "s % (size(q, i) // size(c, i)) == 0", "e % (size(q, i) // size(c, i)) == 0"),
         exact=True, doc="a slice of whole groups with zero points"),
    Rule("slice-unpack", f"slice(unpack(x, axis=j, {_UNPACK}), {_SLICE})", f"unpack(slice(x, {_SLICE}), axis=j, {_UNPACK})",
         when=("i != j",), growth="collects", exact=True, doc="a slice beside the packed axis"),
    Rule("slice-unpack-blocks", f"slice(unpack(x, axis=i, {_UNPACK}), {_SLICE})",
         f"unpack(slice(x, axis=i, start=s // (8 // b), stop=e // (8 // b)), axis=i, {_UNPACK})",
         when=("s % (n * (8 // b)) == 0", "e % (n * (8 // b)) == 0"), growth="collects", exact=True,
         doc="a slice of whole units of packed numbers"),
    Rule("concat-dequantize", "concat(dequantize(q, c, z), dequantize(r, g, z), axis=i)",
         "dequantize(concat(q, r, axis=i), concat(c, g, axis=i), z)", growth="collects", exact=True,
         when=(_ONE_ZERO, "dtype(q) == dtype(r)", "drop(shape(c), i) == drop(shape(g), i)",
               "size(q, i) // size(c, i) == size(r, i) // size(g, i)"),
         doc="weights with groups of one size are concatenated packed"),
    Rule("concat-dequantize-zeros", "concat(dequantize(q, c, z), dequantize(r, g, y), axis=i)",
         "dequantize(concat(q, r, axis=i), concat(c, g, axis=i), concat(z, y, axis=i))", growth="collects", exact=True,
         when=("shape(z) == shape(c)", "shape(y) == shape(g)", "dtype(q) == dtype(r)", "dtype(z) == dtype(y)",
               "drop(shape(c), i) == drop(shape(g), i)",
               "size(q, i) // size(c, i) == size(r, i) // size(g, i)"),
         doc="weights with groups of one size and zero points are concatenated packed"),
    Rule("concat-unpack", f"concat(unpack(x, axis=j, {_UNPACK}), unpack(y, axis=j, {_UNPACK}), axis=i)",
         f"unpack(concat(x, y, axis=i), axis=j, {_UNPACK})", growth="collects", exact=True,
         doc="packed numbers are concatenated as bytes"),
    Rule("concat-from_float8", "concat(from_float8(x, dtype=d), from_float8(y, dtype=d), axis=i)", "from_float8(concat(x, y, axis=i), dtype=d)",
         growth="collects", exact=True, doc="8-bit floats are concatenated as bytes"),
    Rule("permute-from_float8", "permute(from_float8(x, dtype=d), perm=p)", "from_float8(permute(x, perm=p), dtype=d)", exact=True,
         doc="8-bit floats are permuted as bytes"),
    Rule("slice-from_float8", f"slice(from_float8(x, dtype=d), {_SLICE})", f"from_float8(slice(x, {_SLICE}), dtype=d)", growth="collects",
         exact=True, doc="a slice of 8-bit floats is a slice of bytes"),
    Rule("reshape-dequantize", "reshape(dequantize(q, c, z), shape=s)",
         "dequantize(reshape(q, shape=s), reshape(c, shape=replace(s, -1, size(c, -1))), reshape(z, shape=ones(len(s))))",
         when=(_ONE_ZERO, "s[-1] == size(q, -1)", "0 < size(q, -1)", "replace(shape(c), -1, 1) == replace(shape(q), -1, 1)"),
         exact=True, doc="leading axes with a scale for each row are regrouped"),
    Rule("gather-dequantize", "gather(dequantize(q, c, z), i, axis=0)",
         "dequantize(gather(q, i, axis=0), gather(c, i, axis=0), reshape(z, shape=ones(rank(q) - 1 + rank(i))))",
         when=(_ONE_ZERO, "size(c, 0) == size(q, 0)"), exact=True, doc="rows are picked before they are dequantized"),
    Rule("gather-unpack", f"gather(unpack(x, axis=j, {_UNPACK}), i, axis=0)",
         f"unpack(gather(x, i, axis=0), axis=j - 1 + rank(i), {_UNPACK})", when=("0 < j",), exact=True,
         doc="rows are picked before they are unpacked"),
])  # fmt: skip

_GROUPS = "size(c, 0)"
_GROUP = "(size(q, 0) // size(c, 0))"
_BY_GROUP = (
    f"reshape(sum((permute(reshape(x, shape=(size(x, 0), {_GROUPS}, {_GROUP})), perm=(1, 0, 2))"
    f" @ reshape(cast(q, dtype=dtype(c)), shape=({_GROUPS}, {_GROUP}, size(q, 1)))) * reshape(c, shape=({_GROUPS}, 1, size(c, 1))), axes=(0,)),"
    " shape=(size(x, 0), size(q, 1)))"
)
_SUMS = f"reshape(sum(reshape(x, shape=(size(x, 0), {_GROUPS}, {_GROUP})), axes=(2,)), shape=(size(x, 0), {_GROUPS}))"

PRODUCTS = table("quantized weights", "algebra", [
    Rule("dequantize-columns", "x @ dequantize(q, c, z)", "(x @ (cast(q, dtype=dtype(c)) - cast(z, dtype=dtype(c)))) * c",
         when=("size(c, -2) == 1", "fits(c, q)", "rank(x) == rank(q)"), keep=True,
         doc="a scale for each column is applied to the product"),
    Rule("product-by-groups", "x @ dequantize(q, c, z)",
         f"{_BY_GROUP} - {_SUMS} @ (c * cast(z, dtype=dtype(c)))", growth="expands",
         when=("rank(x) == 2", "1 < size(c, 0)", "size(c, 1) == size(q, 1)", "size(c, 0) < size(q, 0)", "weight(q)", "active(x)"),
         doc="each group of a sum is scaled once, and zero points need only the sums of x"),
])  # fmt: skip

RULES = (*VIEWS, *PRODUCTS)
