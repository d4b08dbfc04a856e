"""Declares library kernels in C for products of matrices of bytes, with what follows them: scales, bias, activation, a
residual, and rounding to bytes.

A product of rows by a matrix is a convolution of 1 x 1 (integer_tiles.py) whose pixels are the rows. Constant matrices
are packed at load, others in each call. Sums are exact; scaling is as in integer_convolutions.py.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from math import prod

from ...egraph.ops.ops import OPS, Type
from ...egraph.ops.type_laws import infer
from ...egraph.patterns.pattern import variables
from ...egraph.patterns.pattern_parser import parse_terms
from ...extract.model.kernel import Call
from ...extract.model.library_kernel import LibraryKernel, identified, identify
from ..library.torch_calls import both, extents, filled, rows_in
from ..runtime.views import view_strides
from .call_facts import ending, few_elements
from .integer_convolutions import (
    ADDED,
    BYTES,
    COPIED,
    FLOATS,
    LONGEST_SUM,
    ROUNDED,
    SOURCE,
    SUMS,
    VERSION,
    by_channel,
    ends,
    operands_of,
    widened_bytes,
)
from .linear_products import known_sizes

_NONE = "full(value=0, shape=e, dtype=d)"  # zero points of the matrix: without them no sums of x are needed
_SUMS = "integer_matmul(x, w, z, {})"
_CODES = f"cast({_SUMS}, dtype='float32') * m"
_VALUES = "matmul(dequantize(x, a, z), dequantize(w, m, {}))"
#: suffix -> pattern of a product as floats, in which {} are the zero points of the matrix
SCALED = {
    "": _VALUES,
    "_linear": "linear(dequantize(x, a, z), dequantize(w, m, {}), b)",
    "_bias": f"{_VALUES} + b",
    "_dynamic": f"cast({_SUMS}, dtype='float32') * reshape(a * m, shape=sizes)",
    "_dynamic_bias": f"cast({_SUMS}, dtype='float32') * reshape(a * m, shape=sizes) + b",
    "_codes": _CODES,
    "_codes_bias": f"{_CODES} + b",
    "_codes_integer_bias": f"cast({_SUMS} + b, dtype='float32') * m",
}
#: The same for matrices whose rows are the result's columns.
TURNED = {
    f"_turned{suffix}": scaled.replace("dequantize(w, m, {})", "permute(dequantize(w, m, {}), perm=axes)")
    for suffix, scaled in SCALED.items()
    if "codes" not in suffix and "dynamic" not in suffix
}
ADDED_TO = ("_linear", "_turned_linear", "_codes", "_codes_integer_bias")  # products to which a residual is added
ACTIVATIONS = ("{}", "relu({})")
_MIDDLE = "dequantize(quantize({}, p, q), j, q)"
_RESIDUAL = "dequantize(r, u, v)"


# ---------------------------------------------------------------- conditions
def _matrix_sizes(call: Call) -> tuple[int, int]:
    """(rows, columns) of the matrix by which x is multiplied."""
    rows, columns = extents(call.operands["w"])[-2:]
    return (columns, rows) if "axes" in call.attrs else (rows, columns)


def _rows(call: Call) -> tuple[int, int] | None:
    """Strides of x as one matrix of rows; None if its rows have no equal distance."""
    x = call.operands["x"]
    found = view_strides("reshape", {"shape": (rows_in(x), extents(x)[-1])}, x)
    return None if found is None else (found[0], found[1])


def _matrix(call: Call) -> bool:
    """Condition on calls: one matrix for all rows of x."""
    return call.operands["w"].type.rank == 2 and _rows(call) is not None


def _stacks(call: Call) -> bool:
    """Condition on calls: as many matrices as x has, along at most two axes."""
    x, w = call.operands["x"], call.operands["w"]
    return 2 < w.type.rank == x.type.rank <= 4 and extents(x)[:-2] == extents(w)[:-2]


def _copied(call: Call) -> bool:
    """Whether rows of x are copied: bytes have a sign, their number is no multiple of four, or they lie apart."""
    x = call.operands["x"]
    return x.type.dtype == "int8" or extents(x)[-1] % 4 != 0 or x.strides[-1] != 1


def _numbers(call: Call) -> bool:
    """Condition on calls: zero points and scales of values are one number each, factors one or one for each column,
    the bias one for each column, and dtypes are those that the C functions read."""
    given, n = call.operands, extents(call.output)[-1]
    kinds = {name: o.type.dtype for name, o in given.items()}
    if kinds["x"] not in BYTES or kinds["w"] not in BYTES or min(0, *given["x"].strides, *given["w"].strides) < 0:
        return False
    if any(prod(extents(o)) != 1 for name, o in given.items() if name in "azsopqjuv"):
        return False
    if any(kinds[name] != "float32" for name in "amspju" if name in kinds) or kinds["z"] != kinds["x"]:
        return False
    if kinds.get("y", kinds["w"]) != kinds["w"] or ("y" not in kinds and kinds["w"] != "int8"):
        return False
    axis = 0 if "axes" in call.attrs else -1
    if not all(by_channel(given[name], axis, n) for name in "my" if name in given):
        return False
    if "a" in kinds and _matrix_sizes(call)[0] > LONGEST_SUM:
        return False
    b, r = given.get("b"), given.get("r")
    lined = b is None or (kinds["b"] in ("float32", "int32") and prod(extents(b)) == extents(b)[-1] == n)
    return lined and (r is None or (kinds["r"] in BYTES and kinds["v"] == kinds["r"] and r.type == call.output.type))


def _fills(call: Call) -> bool:
    """Condition on calls: the product itself has the result's shape (nothing that follows stretches it)."""
    matrices = (*extents(call.operands["w"])[:-2], *_matrix_sizes(call))
    types = (Type(call.operands["x"].type.shape, "int32"), Type(matrices, "int32"))
    return infer(OPS["matmul"], types, {}).shape == call.output.type.shape


# ---------------------------------------------------------------- code
def _image(rows: int, size: int, row: int, apart: int, columns: int) -> str:
    """Sizes of a product for `quad_conv`: an image of one line whose pixels are rows of x."""
    numbers = (1, 1, rows, size, 0, apart, 0, row, 1, rows, columns, 1, 1, 1, 1, 1, 1, 1, 0, 0)
    return ", ".join(map(str, numbers))


def _code(call: Call, kind: int, act: int) -> str:
    strides = _rows(call)
    assert strides is not None  # by the condition `_matrix`
    size, columns = _matrix_sizes(call)
    image = _image(rows_in(call.operands["x"]), size, *strides, columns)
    return f"quad_conv({operands_of(call)}, {image}, {ends(call, kind, act, COPIED * _copied(call))})"


def _stacked_code(call: Call, kind: int, act: int) -> str:
    x, w = call.operands["x"], call.operands["w"]
    (outer, inner), (m, size) = (1, 1, *extents(x)[:-2])[-2:], extents(x)[-2:]
    numbers = (outer, inner, m, size, extents(w)[-1], *(0, 0, *x.strides)[-4:], *(0, 0, *w.strides)[-4:])
    last = ends(call, kind, act, COPIED * _copied(call))
    return f"quad_products({operands_of(call)}, {', '.join(map(str, numbers))}, {last})"


def _scratch(call: Call) -> int:
    """Bytes of scratch memory of a product: four 32-bit numbers a column, the copy of x or a row of it, and what is
    widened."""
    size, columns = _matrix_sizes(call)
    rows = extents(call.output)[-2] if call.operands["w"].type.rank > 2 else rows_in(call.operands["x"])
    panels, copy = -(-columns // 16), rows * size + 4 if _copied(call) else size
    return 4 * 4 * panels * 16 + copy + widened_bytes(rows, 64 * panels * -(-size // 4), rows * size + 4 + size)


def _stacked_scratch(call: Call) -> int:
    """Bytes of scratch memory of several products: that of one, behind a packed matrix."""
    size, columns = extents(call.operands["w"])[-2:]
    return 64 * -(-columns // 16) * (1 + -(-size // 4)) + _scratch(call)


@identified("c.integer_matmul_packed")
def _packed(call: Call) -> str:
    turned = "" if "axes" in call.attrs else ".T"
    return f"integer_packed({call.names['w']}{turned}[:, :, None], 1)"


# ---------------------------------------------------------------- rows
def _forms() -> Iterator[tuple[str, str, int, int]]:
    """(suffix of the name, pattern, kind of results, activation) of each kernel."""
    for zeros, points in (("", _NONE), ("_zeros", "y")):
        yield zeros, _SUMS.format(points), SUMS, 0
        for (suffix, scaled), (act, spelled) in product((SCALED | TURNED).items(), enumerate(ACTIVATIONS)):
            floats = spelled.format(scaled.format(points))
            yield f"_scaled{zeros}{suffix}{ending(spelled)}", floats, FLOATS, act
            if "dynamic" not in suffix:
                yield f"_quantized{zeros}{suffix}{ending(spelled)}", f"quantize({floats}, s, o)", ROUNDED, act
    for suffix, left in product(ADDED_TO, (False, True)):
        scaled = (SCALED | TURNED)[suffix]
        middle = _MIDDLE.format(scaled.format(_NONE))
        total, side = (f"{_RESIDUAL} + {middle}", "_left") if left else (f"{middle} + {_RESIDUAL}", "")
        yield f"_quantized{suffix}_residual{side}", f"quantize({total}, s, o)", ADDED, 0


def _dense(pattern: str, names: str) -> tuple[str, ...]:
    """Those of the operands `names` that occur in a pattern."""
    found = set(variables(parse_terms(pattern)[0]))
    return tuple(n for n in names if n in found)


def _row(form: tuple[str, str, int, int]) -> LibraryKernel:
    suffix, pattern, results, act = form
    name = f"c.integer_matmul{suffix}"
    return LibraryKernel(
        name, "c", pattern, identify(lambda call: _code(call, results, act), name), family="contraction", dense=_dense(pattern, "bmyr"),
        scratch=_scratch, prep={"w": _packed}, source=lambda call: SOURCE, rate=16.0, version=VERSION, exact=results == SUMS,
        setup=("address", "c_function", "c_library", "bytes_at_cache_line", "integer_packed"),
        applies=both(filled, known_sizes, few_elements, _numbers, _matrix, _fills), inplace=("r",) if results == ADDED else (),
    )  # fmt: skip


def _stacked_row(form: tuple[str, str, int, int]) -> LibraryKernel:
    suffix, pattern, results, act = form
    name = f"c.integer_matmuls{suffix}"
    return LibraryKernel(
        name, "c", pattern, identify(lambda call: _stacked_code(call, results, act), name), family="contraction", dense=_dense(pattern, "my"),
        scratch=_stacked_scratch, source=lambda call: SOURCE, rate=8.0, version=VERSION, exact=results == SUMS,
        setup=("address", "c_function", "c_library"),
        applies=both(filled, known_sizes, few_elements, _numbers, _stacks, _fills),
    )  # fmt: skip


def integer_product_rows() -> list[LibraryKernel]:
    """Library kernels for products with a constant matrix of bytes, with sums, floats or bytes as results, with and
    without bias and activation, and a residual of bytes; and for products of two values, without bias."""
    forms = list(_forms())
    plain = [f for f in forms if f[2:] in ((SUMS, 0), (FLOATS, 0), (ROUNDED, 0))]
    plain = [f for f in plain if not any(part in f[0] for part in ("bias", "linear", "turned", "dynamic"))]
    return [*map(_row, forms), *map(_stacked_row, plain)]


__all__ = ["integer_product_rows"]
