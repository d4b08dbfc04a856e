"""Products with packed weights: sums in blocks in C, Triton's kernels by its interpreter, against the expanded weight
in float64."""

from __future__ import annotations

import itertools
import os
import platform
import re
import subprocess
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import tensor_graphs.egraph.builders.builders as t
from tensor_graphs.backends.c import backend as c
from tensor_graphs.backends.c.emit import few_rows
from tensor_graphs.backends.c.emit.kernel import emit
from tensor_graphs.backends.c.helpers import c_compiler
from tensor_graphs.backends.generate.kernel_text import kernel_text, module_of
from tensor_graphs.backends.ir.c_dots import DOTS as DOTS_TEXT
from tensor_graphs.backends.ir.c_lanes import LANES
from tensor_graphs.backends.ir.kernel import Buffer
from tensor_graphs.backends.lowering.lower import kernel_of
from tensor_graphs.egraph.composites.quantized_ops import dequantize, unpack
from tensor_graphs.egraph.evaluate.interpret import evaluate
from tensor_graphs.egraph.ir.tensor import Tensor, make
from tensor_graphs.egraph.ops.ops import Type
from tensor_graphs.egraph.types.dtypes import numpy_dtype
from tensor_graphs.extract.model.kernel import Call, Operand, contiguous
from tensor_graphs.models.common import quantization

from .c.test_c import library, pointer

Array = np.ndarray[Any, Any]
LENGTH, COLUMNS = 512, 12


def weight(form: str) -> Tensor:
    """A weight [COLUMNS, LENGTH]: of a form, or other groups, zero points and bits."""
    scale = lambda groups: t.input("s", (COLUMNS, groups))
    codes = t.input("w", (COLUMNS, LENGTH // 2), "uint8")
    if form == "zeros":
        return dequantize(quantization.numbers("int4", codes), scale(16), t.input("z", (COLUMNS, 16), "uint8"))
    if form == "short groups":
        return dequantize(t.input("w", (COLUMNS, LENGTH), "int8"), scale(LENGTH // 16), t.full((1, 1), 0.0))
    if form == "long groups":
        return dequantize(quantization.numbers("int4", codes), scale(1), t.full((1, 1), 8.0))
    if form == "six bits":  # of bytes: of the products of four vectors in a block, only those of two fit into 16 bits
        bits = make("and", (t.input("w", (COLUMNS, LENGTH), "uint8"), t.full((1, 1), 63, "uint8")))
        return dequantize(bits, scale(2), t.full((1, 1), 32.0))
    if form == "two bits":
        bits = t.input("w", (COLUMNS, LENGTH // 4), "uint8")
        return dequantize(unpack(bits, bits=2, form="signed", axis=1, block=16), scale(4), t.full((1, 1), 0.0))
    if form == "neighbours":  # two numbers of a byte one after the other
        return dequantize(unpack(codes, bits=4, form="signed", axis=1, block=1), scale(4), t.full((1, 1), 0.0))
    size = LENGTH if form in ("int8", "fp8") else LENGTH // 2
    leaf = t.input("w", (COLUMNS, size), "int8" if form == "int8" else "uint8")
    return quantization.dequantized(form, leaf, scale(LENGTH // quantization.group_of(form, LENGTH)))


DOTS = ("int4", "int8", "zeros", "short groups", "long groups", "six bits")  # forms with integer dot products
FORMS = (*quantization.FORMS, "zeros", "short groups", "long groups", "six bits", "two bits", "neighbours")


def product(form: str, rows: int = 1) -> Tensor:
    return t.matmul(t.input("x", (rows, LENGTH)), t.transpose(weight(form)))


def values(root: Tensor) -> dict[str, Array]:
    rng, found = np.random.default_rng(0), dict[str, Array]()
    for leaf in sorted(set(_leaves(root)), key=lambda n: str(n.attr("name"))):
        shape = tuple(int(d) for d in leaf.shape)  # type: ignore[arg-type]
        if leaf.dtype == "float32":
            found[leaf.attr("name")] = rng.standard_normal(shape).astype(np.float32)
        else:
            low, high = (-128, 128) if leaf.dtype == "int8" else (0, 120)
            found[leaf.attr("name")] = rng.integers(low, high, shape).astype(leaf.dtype)
    return found


def _leaves(root: Tensor) -> list[Tensor]:
    todo, found = [root], []
    while todo:
        node = todo.pop()
        todo += node.args
        found += [node] if node.op == "input" else []
    return found


@pytest.mark.skipif(bool(c.BACKEND.unavailable()), reason=c.BACKEND.unavailable() or "-")
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("integers", [False, True])
def test_c(dtype: str, integers: bool) -> None:
    functions, calls = dict[str, str](), dict[str, tuple[Tensor, list[str]]]()
    several = itertools.product(("int4", "int8", "short groups"), (3,)) if integers else ()  # one pass over the weight
    of_one = DOTS if integers and dtype == "bfloat16" else FORMS
    for n, (form, rows) in enumerate([*((form, 1) for form in of_one), *several]):
        root = product(form, rows)
        root = t.tanh(root) + t.input("r", (rows, COLUMNS)) if form == "zeros" else root
        names = {leaf: str(leaf.attr("name")) for leaf in _leaves(root)}
        own = lambda kind: dtype if kind == "float32" else kind
        buffers = {name: c_buffer(leaf.type, own(leaf.dtype)) for leaf, name in names.items()}
        kernel = kernel_of(root, names, {**buffers, "out": c_buffer(root.type, dtype)})
        functions[f"f{n}"] = text = emit(kernel, f"f{n}", integers=integers)
        calls[f"f{n}"] = root, list(kernel.buffers)
        assert ("lanes_fma" in text) == (form != "neighbours"), form
        assert ("dots_split(" in text) == (integers and form in DOTS), form
        assert rows == 1 or text.index("for (long m") < text.rindex("if (!whole"), (form, "numbers are read once")
    made = library(functions)
    for name, (root, order) in calls.items():
        given = {n: v.astype(numpy_dtype(dtype)) if v.dtype == np.float32 else v for n, v in values(root).items()}
        out = np.full(root.shape, 7, numpy_dtype(dtype))
        getattr(made, name)(*(pointer(out if n == "out" else given[n]) for n in order))
        wanted = evaluate(
            [root], {n: v.astype(np.float64) if v.dtype.itemsize != 1 else v for n, v in given.items()}, float64=True
        )[0]
        error = np.linalg.norm(out.astype(np.float64) - wanted) / np.linalg.norm(wanted)
        assert error < (1e-6 if dtype == "float32" else 4e-3), (name, error)


def integer_product(root: Tensor, dtype: str = "float32") -> tuple[Any, list[str]]:
    """The C function of a term with integer dot products, and the names of its arguments."""
    names = {leaf: str(leaf.attr("name")) for leaf in _leaves(root)}
    own = lambda kind: dtype if kind == "float32" else kind
    buffers = {name: c_buffer(leaf.type, own(leaf.dtype)) for leaf, name in names.items()}
    kernel = kernel_of(root, names, {**buffers, "out": c_buffer(root.type, dtype)})
    return library({"f": emit(kernel, "f", integers=True)}).f, list(kernel.buffers)


def test_rows_that_are_long_are_not_split_together(monkeypatch: pytest.MonkeyPatch) -> None:
    """Their digits, those of all products of a kernel, would not fit on the stack of a thread."""
    one = product("int4", 2)
    other = t.matmul(t.input("y", (2, LENGTH)), one.args[1])
    for products, root in ((1, one), (2, one + other)):
        names = {leaf: str(leaf.attr("name")) for leaf in _leaves(root)}
        buffers = {name: c_buffer(leaf.type, leaf.dtype) for leaf, name in names.items()}
        kernel = kernel_of(root, names, {**buffers, "out": c_buffer(root.type, "float32")})
        for spare in (0, 1):
            monkeypatch.setattr(few_rows, "PACKED_NUMBERS", 2 * LENGTH * products - spare)
            assert (few_rows.few_rows(kernel) is None) == bool(spare), products


@pytest.mark.skipif(bool(c.BACKEND.unavailable()), reason=c.BACKEND.unavailable() or "-")
def test_integer_dots_keep_values_that_are_not_finite_and_small_ones() -> None:
    for rows in (1, 2):
        root = product("int8", rows)
        function, order = integer_product(root)
        given = {**values(root), "out": np.zeros((rows, COLUMNS), np.float32)}
        x = given["x"][-1].copy()
        for place, value in ((0, np.nan), (300, np.inf), (511, -np.inf), (7, 1e-38), (7, 3e34)):
            given["x"][-1] = x if abs(value) > 1e-30 else 0.0
            given["x"][-1, place] = value
            function(*(pointer(given[n]) for n in order))
            with np.errstate(all="ignore"):
                wanted = evaluate([root], given)[0]
            np.testing.assert_allclose(given["out"], wanted, rtol=2e-5, err_msg=str(value))


@pytest.mark.skipif(bool(c.BACKEND.unavailable()), reason=c.BACKEND.unavailable() or "-")
def test_integer_dots_round_a_row_block_by_block() -> None:
    """One huge value costs the other blocks no digits."""
    root = product("int4")
    function, order = integer_product(root, "bfloat16")
    given = {n: v.astype(numpy_dtype("bfloat16")) if v.dtype == np.float32 else v for n, v in values(root).items()}
    given["w"][:, 64:] = 0x88  # zeros from number 128 on, and there is the large value
    given["x"][0, 400], given["out"] = 1e6, np.zeros((1, COLUMNS), numpy_dtype("bfloat16"))
    function(*(pointer(given[n]) for n in order))
    wanted = evaluate(
        [root], {n: v.astype(np.float64) if v.dtype.itemsize != 1 else v for n, v in given.items()}, float64=True
    )[0]
    assert np.linalg.norm(given["out"].astype(np.float64) - wanted) < 4e-3 * np.linalg.norm(wanted)


@pytest.mark.skipif(bool(c.BACKEND.unavailable()), reason=c.BACKEND.unavailable() or "-")
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_integer_dots_at_the_ends_of_their_ranges(dtype: str) -> None:
    """Sums of products of the largest bytes do not fit into 16 bits."""
    functions, calls = dict[str, str](), list[tuple[Tensor, list[str]]]()
    for n, form in enumerate(DOTS):
        root = product(form)
        names = {leaf: str(leaf.attr("name")) for leaf in _leaves(root)}
        own = lambda kind: dtype if kind == "float32" else kind
        buffers = {name: c_buffer(leaf.type, own(leaf.dtype)) for leaf, name in names.items()}
        kernel = kernel_of(root, names, {**buffers, "out": c_buffer(root.type, dtype)})
        functions[f"f{n}"] = emit(kernel, f"f{n}", integers=True)
        calls.append((root, list(kernel.buffers)))
    made = library(functions)
    for n, (root, order) in enumerate(calls):
        given = {k: v.astype(numpy_dtype(dtype)) if v.dtype == np.float32 else v for k, v in values(root).items()}
        out = np.zeros((1, COLUMNS), numpy_dtype(dtype))
        for byte, number in itertools.product((0x01, 0x7F, 0x80, 0xFF), (1.0, -1.0, 127 / 128)):  # -128: a low digit
            given["w"].view(np.uint8)[:] = byte
            given["x"][:], given["x"][:, ::16] = number, 1.0
            getattr(made, f"f{n}")(*(pointer(out if k == "out" else given[k]) for k in order))
            exact = {k: v.astype(np.float64) if v.dtype.itemsize != 1 else v for k, v in given.items()}
            wanted = evaluate([root], exact, float64=True)[0]
            error = np.linalg.norm(out.astype(np.float64) - wanted) / np.linalg.norm(wanted)
            assert error < (1e-4 if dtype == "float32" else 4e-3), (DOTS[n], byte, number, error)


@pytest.mark.skipif(bool(c.BACKEND.unavailable()), reason=c.BACKEND.unavailable() or "-")
@pytest.mark.skipif(platform.machine() != "x86_64", reason="of x86 processors")
@pytest.mark.parametrize(("flags", "dots", "words"), [
    ("-mno-avx2", 0, 0), ("-mavx2 -mno-fma", 1, 1), ("-mavx2 -mfma", 1, 1), ("-mavx512f -mavx512bw -mfma", 0, 0),
    ("-mavx512f -mavx512vnni -mno-avx512bw -mfma", 1, 1), ("-mavx512f -mavx512bw -mavx512vnni -mfma", 1, 0),
])  # fmt: skip
def test_integer_dots_are_compiled_for_processors_of_every_kind(flags: str, dots: int, words: int) -> None:
    """Words of 16 bits wherever sums of bytes have 16 bits: else products of numbers from 64 on would overflow."""
    text = f"#include <stdint.h>\n{LANES}\n{DOTS_TEXT}\n"
    checked = f'_Static_assert(DOTS == {dots} && DOTS_WORDS == {words}, "");\n'
    common = "-std=gnu11 -w -S -O0 -fkeep-inline-functions -mno-avxvnni -mno-avx512f"
    options = [*f"{common} {flags}".split(), "-o", os.devnull, "-x", "c", "-"]
    done = subprocess.run([*c_compiler(), *options], input=text + checked, capture_output=True, text=True)
    assert done.returncode == 0 or re.search("unrecognized|unknown argument", done.stderr), done.stderr


def c_buffer(kind: Type, dtype: str) -> Buffer:
    shape = tuple(int(d) for d in kind.shape)  # type: ignore[arg-type]
    return Buffer(dtype, shape, contiguous(shape))


@pytest.mark.parametrize("form", ["int8", "int4", "mxfp4", "fp8", "zeros"])
@pytest.mark.parametrize("rows", [1, 16])
def test_triton(form: str, rows: int) -> None:
    torch = pytest.importorskip("torch")
    pytest.importorskip("triton")
    from tensor_graphs.backends.triton.backend import generated

    root = product(form, rows)
    template = generated(root)
    operands = {str(n.attr("name")): Operand(n.type, contiguous(n.shape)) for n in _leaves(root)}  # type: ignore[arg-type]
    call = Call({o: operands[o] for o in template.operands}, Operand(root.type, contiguous(root.shape)), {})  # type: ignore[arg-type]
    call = replace(call, schedule=next(iter(template.space(call))))  # type: ignore[misc]
    given = values(root)
    out = torch.full((rows, COLUMNS), float("nan"))
    scratch = torch.zeros(template.scratch(call), dtype=torch.uint8)  # type: ignore[misc]
    module_of(kernel_text(template, call)).run(*(torch.from_numpy(given[o]) for o in template.operands), out, scratch)
    wanted = evaluate([root], given, float64=True)[0]
    assert np.linalg.norm(out.numpy() - wanted) / np.linalg.norm(wanted) < 1e-5
