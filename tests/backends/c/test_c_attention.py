"""Attention of few rows in C (decode steps): against the specification, positions beyond a number in memory, what is
left to others."""

from __future__ import annotations

import ctypes
import re
from typing import Any

import numpy as np
import pytest

import tensor_graphs.egraph.builders.builders as t
from tensor_graphs.backends.c import backend as c
from tensor_graphs.backends.c.backend import generated
from tensor_graphs.backends.c.emitter import CLaunch
from tensor_graphs.backends.generate.call_code import launches
from tensor_graphs.backends.generate.template import GeneratedKernel
from tensor_graphs.egraph.composites import composite_ops as composite
from tensor_graphs.egraph.ir.tensor import Tensor
from tensor_graphs.extract.model.kernel import Call

from .. import kernel_interpreter
from ..cuda.test_cuda_cpp import TOLERANCE, call_of, memory
from ..cuda.test_few_row_attention import CASES, attention
from ..test_kernel_ir import error, x
from .test_c import library

pytestmark = pytest.mark.skipif(bool(c.BACKEND.unavailable()), reason=c.BACKEND.unavailable() or "-")


def made(root: Tensor, dtype: str) -> tuple[GeneratedKernel, Call, CLaunch]:
    template = generated(root)
    call = call_of(template, dtype)
    (launch,) = launches(template, call)
    assert isinstance(launch, CLaunch)
    return template, call, launch


def run(function: Any, launch: CLaunch, where: dict[str, Any]) -> None:
    function(*[ctypes.c_void_p(where[b].array.ctypes.data) for b in launch.buffers])


def specified(template: GeneratedKernel, call: Call, where: dict[str, Any]) -> dict[str, Any]:
    """Every buffer after the kernel, in float64."""
    found = template.lower(call)
    assert found is not None
    want = {n: g.array.astype(np.float64) if g.array.dtype.kind in "fV" else g.array.copy() for n, g in where.items()}
    with np.errstate(invalid="ignore"):
        kernel_interpreter.run(found.kernel, want)
    return want


def test_attention_of_few_rows_computes_what_is_specified() -> None:
    found = [("bfloat16", *made(make(), "bfloat16")) for make, _ in CASES.values()]
    tokens = t.reshape(t.input("at", (4,), "int64"), (1, 1, 4, 1))
    mask = t.where(t.gt(t.iota((1, 1, 1, 40), 3), tokens), t.full((1,) * 4, -np.inf), t.full((1,) * 4, 0.0))
    several = composite.masked_attention(
        x("q", 1, 2, 4, 64), x("k", 1, 2, 40, 64), x("v", 1, 2, 40, 64), mask, scale=0.125
    )
    found += [("float32", *made(several, "float32")), ("float16", *made(attention(40, 80), "float16"))]
    assert re.search(r"i2 < 4; i2\+\+\) {\s+long seen = 40;", found[-2][-1].source), "a bound for each token"
    functions = library({launch.name: launch.source for *_, launch in found})
    for dtype, template, call, launch in found:
        where = memory(template, call)
        want = specified(template, call, where)
        run(getattr(functions, launch.name), launch, where)
        assert all(g.intact for g in where.values())
        allowed = TOLERANCE["bfloat16"] if dtype == "float16" else TOLERANCE[dtype]
        assert error(where["out"].array.astype(np.float64), want["out"]) < allowed, (dtype, template.root)


@pytest.mark.parametrize("room", [32, 100], ids=["one block", "several"])
def test_positions_beyond_the_number_in_memory_are_not_read(room: int) -> None:
    """One position, several, all, none (NaN, as specified): what is not read may be anything."""
    template, call, launch = made(attention(room, 64, 2, batch=2), "bfloat16")
    function = getattr(library({launch.name: launch.source}), launch.name)
    whole = np.iinfo(np.int64)  # a number that stands for "all of them", to which nothing can be added
    for first, second in ((0, room - 1), (7, 8), (-1, 16), (room + 9, 3), (0, whole.max), (whole.min, 3)):
        where = memory(template, call)
        where["at"].array[:] = first, second
        want = specified(template, call, where)["out"]
        for name in ("k", "v"):
            where[name].array.reshape(2, room, 64)[0, min(max(first, -1), room) + 1 :] = np.nan
        run(function, launch, where)
        got = where["out"].array.astype(np.float64)
        assert (np.isnan(got) == np.isnan(want)).all() and np.isnan(got).any() == (first < 0)
        there = ~np.isnan(got)
        assert error(got[there], want[there]) < TOLERANCE["bfloat16"]


def test_a_nan_and_infinite_scores_stay_in_their_rows() -> None:
    template, call, launch = made(attention(48, 64, 3, 2), "float32")
    where = memory(template, call)
    where["at"].array[:] = 40
    where["q"].array.reshape(2, 3, 64)[1, 0, 5] = np.nan
    where["k"].array.reshape(2, 48, 64)[0, 3] = np.inf
    want = specified(template, call, where)["out"]
    run(getattr(library({launch.name: launch.source}), launch.name), launch, where)
    got = where["out"].array.astype(np.float64)
    assert (np.isnan(got) == np.isnan(want)).all() and 0 < np.isnan(got).sum() < got.size
    assert error(got[~np.isnan(got)], want[~np.isnan(got)]) < TOLERANCE["float32"]


def test_threads_share_the_heads() -> None:
    """Groups of heads are divided among threads where there is enough work, with equal results."""
    template, call, launch = made(attention(1024, 64, 7, 2), "bfloat16")
    assert "#pragma omp parallel for" in launch.source
    one = launch.source.replace("#pragma omp parallel for schedule(static)", "").replace(launch.name, "one")
    functions = library({launch.name: launch.source, "one": one})
    found = []
    for name in (launch.name, "one"):
        where = memory(template, call)
        where["at"].array[:] = 700
        run(getattr(functions, name), launch, where)
        found.append(where["out"].array.tobytes())
    assert found[0] == found[1]


@pytest.mark.parametrize("root", [attention(32, 64, 20), attention(32, 64, sinks=True)], ids=["many rows", "sinks"])
def test_other_attention_is_left_to_libraries(root: Tensor) -> None:
    template = generated(root)
    assert template.lower(call_of(template, "bfloat16")) is None
