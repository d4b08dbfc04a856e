"""Happens-before check of emitted GPU programs: planted faults, and programs as they are emitted."""

from __future__ import annotations

import ast
import re
from dataclasses import replace
from pathlib import Path

import pytest

from tensor_graphs.backends.program.launch import launch_order
from tensor_graphs.backends.program.launch.emission import emit_for
from tensor_graphs.backends.program.launch.launch_order import order_problems
from tensor_graphs.backends.program.launch.launching import OVERLAPS

from .test_launching import planned

GOLDEN = Path(__file__).parents[1] / "golden"
SOURCE = '''
first = CudaKernel("first", 1, 32, text=r"""
extern "C" __global__ void __launch_bounds__(32)
first(const float* x_, float* out) {
    out[threadIdx.x] = x_[threadIdx.x];
}
""")

second = CudaKernel("second", 1, 32, early=True, text=r"""
extern "C" __global__ void __launch_bounds__(32)
second(const float* x_, const float* w_, float* out, float* part0, int* counters) {
    begin_next();
    warm<16>(x_ + threadIdx.x);
    const float v = w_[threadIdx.x];
    await_previous();
    out[threadIdx.x] = x_[threadIdx.x] + v;
}
""")


@triton.jit
def third(x, y, out):
    begin_early()
    tl.store(out + tl.arange(0, 8), tl.load(x + tl.arange(0, 8)) + tl.load(y + tl.arange(0, 8)))


def bind(weights, states=None, device="cuda", graph=True, launch_mode=""):
    memory = device_bytes(256, device)
    w = uploaded(weights['w'], device)
    v1 = tensor_at(memory, 0, (8,), torch.float32)
    v2 = tensor_at(memory, 64, (2, 4), torch.float32)
    v3 = tensor_at(memory, 128, (8,), torch.float32, (2,))
    v4 = v2.view((8,))
    v5 = tensor_at(memory, 0, (4,), torch.float32)
    scratch = tensor_at(memory, 192, (64,), torch.uint8)
    kernels = Launches()

    def launch(x, r, *, first=kernels.of(first), second=kernels.of(second), third=kernels.of(third)):
        """(x: float32[8]) -> (y: float32[8])"""
        first(x, v1)
        second(v1, w, v2, scratch[0:32].view(torch.float32), counters(v2.device))
        torch.add(v4, v1, out=v3)
        third[(1,)](v3, v4, r, num_warps=4, launch_pdl=True)
        return r,

    return Calls(launch, kernels, inputs, results, device, graph, launch_mode=launch_mode)
'''
FAULTS = {
    "no wait": ("    await_previous();\n", "", "second.*never waits"),
    "no wait in Triton": ("    begin_early()\n", "", "third.*never waits"),
    "the predecessor's result": ("const float v = w_[", "const float v = x_[", "reads workspace before its wait, which first"),
    "weights, first of all": ("        first(x, v1)\n", "        v1.copy_(x)\n", ""),
    "an input": ("second(v1, w, v2,", "second(v1, x, v2,", ""),
    "overwritten": ("tensor_at(memory, 64,", "tensor_at(memory, 16,", "writes bytes 16 to 48 of workspace, of which it uses 0 to 32"),
    "overwritten later": ("192, (64,)", "0, (64,)", "of which it uses"),
    "overwritten before it is read": ("        torch.add", "        first(x, v5)\n        torch.add", "torch.add.*which hold no value or another one"),
    "never written": ("        first(x, v1)\n", "", "second.*bytes 0 to 32 of the workspace, which hold no value"),
    "several results": ("        first(x, v1)\n", "        torch.ops.aten.f(x, out0=v1, out1=v3)\n        a, b = torch.ops.aten.f(v3)\n        b.view(3)\n", ""),
    "a gradient's result": ("        torch.add(v4, v1, out=v3)\n", "        torch.ops.aten.f.grad_input(v4, v1, 0.0, grad_input=v3)\n", ""),
    "result overwritten": ("        return r,\n", "        first(x, v3)\n        first(x, v2)\n        return v3,\n", ""),
    "lost result": ("        return r,\n", "        second(v2, w, v1, scratch[0:32], counters(r.device))\n        first(x, v4)\n        return scratch,\n",
                    "a result at bytes 192 to 256 of the workspace was overwritten"),
}  # fmt: skip


@pytest.mark.parametrize("fault", FAULTS)
def test_planted_faults_are_found(fault: str) -> None:
    old, new, message = FAULTS[fault]
    assert order_problems(SOURCE) == [] and SOURCE.count(old) >= 1
    found = order_problems(SOURCE.replace(old, new))
    if not message:
        assert found == []
    else:
        assert any(re.search(message, problem) for problem in found), found


def test_weights_that_work_before_the_program_may_write() -> None:
    """The first kernel, if it starts early, must not read weights before its wait; neither must the second one of a
    program whose first kernel starts early."""
    alone = SOURCE.replace("        first(x, v1)\n", "").replace("second(v1, w, v2,", "second(x, w, v2,")
    alone = alone.replace("torch.add(v4, v1, out=v3)", "torch.add(v4, v4, out=v3)")
    assert any("reads w before its wait, which the caller's work may still write" in p for p in order_problems(alone))
    early = SOURCE.replace('"first", 1, 32,', '"first", 1, 32, early=True,').replace(
        "    out[threadIdx.x] = x_[threadIdx.x];", "    begin_next();\n    await_previous();\n    out[0] = x_[0];"
    )
    assert any("reads w before its wait, which the caller's work may still write" in p for p in order_problems(early))


def test_states_that_a_kernel_writes_are_not_read_before_a_wait() -> None:
    kept = SOURCE.replace("w = uploaded(weights['w'], device)", "w = kept(states, 'w', (8,), torch.float32, device)")
    assert order_problems(kept) == []
    written = kept.replace("        first(x, v1)\n", "        first(x, v1)\n        first(x, w)\n")
    assert any("reads w before its wait, which first(x, w) may still write" in p for p in order_problems(written))


@pytest.mark.usefixtures("emulated")
@pytest.mark.parametrize("overlap", OVERLAPS)
@pytest.mark.parametrize("name", ["mlp", "decode"])
def test_programs_as_they_are_emitted(name: str, overlap: str) -> None:
    for parts in (False, True) if name == "mlp" else (False,):
        source = emit_for(replace(planned(name, parts), launching=overlap)).source
        assert order_problems(source) == []
        assert overlap == "" or order_problems(source.replace("await_previous();", ""))


@pytest.mark.parametrize("name", ["mlp_cuda", "cache_cuda", "attention_cuda"])
def test_golden_programs(name: str) -> None:
    assert order_problems((GOLDEN / f"{name}.py").read_text(encoding="utf-8")) == []


def test_kernels_that_add_write_their_result() -> None:
    """So that what a later kernel reads of it before its wait is noticed."""
    text = """
@triton.jit
def sums(i, x, out):
    n = tl.arange(0, 32)
    at = tl.load(i + n)
    tl.atomic_add(out + at, tl.load(x + n), sem="relaxed")
"""
    (found,) = [kernel for _, kernel in launch_order._kernels(ast.parse(text))]
    assert found.written == {"out"} and found.parameters == ("i", "x", "out")


def test_warps_of_their_own_write_results() -> None:
    """The function that stores is given to some warps, under other names of the parameters."""
    text = """
@gluon.jit
def stores(result, tile):
    gl.store(result + gl.arange(0, 8), tile)

@gluon.jit
def kernel(out, x_box, y):
    gl.warp_specialize([(stores, (out, x_box)), (copies, (x_box, y))], [1], [24])

@gluon.jit
def copies(box, y):
    tma.async_copy_global_to_shared(box, y)
"""
    kernels = dict(launch_order._kernels(ast.parse(text)))
    assert {n: set(k.written) for n, k in kernels.items()} == {"stores": {"result"}, "kernel": {"out"}, "copies": set()}
