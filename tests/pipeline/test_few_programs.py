"""Predicted prices of GPU kernels that use few of its multiprocessors."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from tensor_graphs.backends.registry import template
from tensor_graphs.backends.triton.backend import BACKEND as TRITON
from tensor_graphs.backends.tuning.keys import key_of
from tensor_graphs.costdb.keys.key import Work
from tensor_graphs.costdb.price.predict import Query
from tensor_graphs.costdb.price.roofline import DeviceRoofline
from tensor_graphs.egraph.builders import builders as t
from tensor_graphs.egraph.composites import composite_ops as c
from tensor_graphs.egraph.ir.tensor import Tensor
from tensor_graphs.egraph.ops.ops import Type
from tensor_graphs.extract.model.kernel import Call, Candidate, Operand, Vertex, contiguous
from tensor_graphs.extract.model.pricing import Priced
from tensor_graphs.pipeline.costs.few_programs import few_programs, priced_in_few_programs

IMAGE = (2, 32, 64, 64)
X, G, B = (t.input(f"x{n}", s) for n, s in enumerate((IMAGE, (32,), (32,))))
GROUPS = t.reshape(X, (2, 4, 8 * 64 * 64))


def generated(root: Tensor) -> Candidate:
    kernel = TRITON.opened()._template((root,), (), False)
    types = {n: next(x.type for x in kernel.nodes if x.op == "input" and x.attr("name") == n) for n in kernel.operands}
    call = Call(
        {n: Operand(k, contiguous(k.shape)) for n, k in types.items()}, Operand(root.type, contiguous(root.shape)), {}
    )
    return Candidate(kernel, Vertex(9, (1,)), (), call)


@pytest.mark.parametrize(
    ("root", "programs"),
    [
        (
            c.silu(c.group_norm(X, G, B, groups=4, eps=1e-5)),
            8,
        ),  # its rows are read and then written by one program each
        (c.softmax(X, axis=3), 2 * 32 * 64),
        (t.sqrt(t.mean(GROUPS * GROUPS, -1, True)), math.inf),  # sums may be split
        (t.exp(X) + 1.0, math.inf),
    ],
)
def test_rows_that_are_written_again_are_not_divided(root: Tensor, programs: float) -> None:
    assert few_programs(generated(root)) == programs


def test_few_programs_move_bytes_at_their_share_of_the_bandwidth() -> None:
    kernel = template("torch_cuda", "cuda.group_norm")
    operands = {n: Operand(Type(s, "float16"), contiguous(s)) for n, s in zip("xgb", (IMAGE, (32,), (32,)))}
    call = Call(operands, operands["x"], {"groups": 4, "eps": 1e-5})
    programs = few_programs(Candidate(kernel, Vertex(9, (1,)), (), call))
    assert programs == 8
    key = key_of(kernel, call)
    on = lambda device: Query(replace(key, device=device), Work(0.0, 8e6))
    known, roofline = Priced(5.0, 2.0, 9.0, "predicted"), DeviceRoofline(1.0, 4e6, 1e9)
    here = lambda priced, device: priced_in_few_programs(priced, programs, on(device), roofline)
    found = here(known, "gpu:NVIDIA H200:sm90:multiprocessors=128")
    assert (found.us, found.low, found.high) == (33.0, 9.0, 33.0)
    assert here(known, "gpu:small:sm90:multiprocessors=8") == here(known, "cpu:some") == known
    measured = replace(known, source="measured")
    assert here(measured, "gpu:NVIDIA H200:sm90:multiprocessors=128") == measured
