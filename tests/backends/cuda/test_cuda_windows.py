"""Kernels over short windows in CUDA C++: every box of results, layout and end of an image, run by threads on the CPU
against the specification in NumPy; how often memory is read; what is legal."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from itertools import product
from pathlib import Path

import pytest

import tensor_graphs.egraph.builders.builders as t
from tensor_graphs.backends.cuda.backend import generated
from tensor_graphs.backends.cuda.emit.spelling import CudaLaunch
from tensor_graphs.backends.generate.call_code import launches
from tensor_graphs.backends.generate.template import GeneratedKernel
from tensor_graphs.backends.program.helpers.cuda_helpers import CUDA_LIBRARY
from tensor_graphs.egraph.composites import composite_ops as c
from tensor_graphs.egraph.ir.tensor import Tensor, make, topological
from tensor_graphs.egraph.ops.ops import Type
from tensor_graphs.extract.model.kernel import Call, Operand, contiguous

from ..cuda_host import compiled
from .test_cuda_cpp import check


def image(*shape: int) -> Tensor:
    return t.input("x", shape)


def depthwise(x: Tensor, k: int, stride: int = 1, pad: int | None = None, dilation: int = 1) -> Tensor:
    """A convolution of channels one by one, and a bias."""
    channels, pad = int(x.shape[1]), k // 2 if pad is None else pad
    attrs = {"strides": (stride,) * 2, "pads": (pad,) * 4, "dilations": (dilation,) * 2, "groups": channels}
    return make("conv", (x, t.input("w", (channels, 1, k, k))), attrs) + t.reshape(
        t.input("b", (channels,)), (1, channels, 1, 1)
    )


def relu6(x: Tensor) -> Tensor:
    return c.clip(x, lo=0.0, hi=6.0)


def channels_last(shape: tuple[int, ...]) -> tuple[int, ...]:
    _, ch, h, w = shape
    return ch * h * w, 1, w * ch, ch


Lying = Callable[[tuple[int, ...]], tuple[int, ...]]


def call_of(template: GeneratedKernel, dtype: str, lying: Lying = contiguous, written: Lying | None = None) -> Call:
    """A call whose images lie so, and are written so (None: as they lie)."""
    found = {str(n.attr("name")): n.shape for root in template.roots for n in topological([root]) if n.op == "input"}
    place = lambda n, s, how: Operand(Type(s, dtype), how(s) if len(s) == 4 and n != "w" else contiguous(s))
    operands = {o: place(o, found[o], lying) for o in template.operands}
    return Call(operands, place("out", template.roots[0].shape, written or lying), {})


def windowed(root: Tensor) -> GeneratedKernel:
    filters = any(n.op == "input" and n.attr("name") == "w" for n in topological([root]))
    return generated(root, ("w",) if filters else ())


CASES: dict[str, Callable[[], Tensor]] = {
    "3x3": lambda: depthwise(image(2, 4, 6, 8), 3),
    "odd": lambda: depthwise(image(1, 3, 5, 7), 3),
    "strided": lambda: depthwise(image(1, 8, 8, 16), 3, stride=2),
    "valid": lambda: depthwise(image(1, 2, 9, 11), 5, pad=0),
    "dilated": lambda: depthwise(image(1, 2, 6, 8), 3, pad=2, dilation=2),
    "between": lambda: c.silu(depthwise(relu6(image(2, 8, 4, 8)), 3)) * 2.0,
    "largest": lambda: c.max_pool(image(2, 3, 8, 8), kernel=(3, 3), strides=(2, 2), pads=(1, 1, 1, 1), dilations=(1, 1)),
    "mean": lambda: c.avg_pool(image(1, 2, 6, 6), kernel=(2, 2), strides=(2, 2), pads=(0, 0, 0, 0), dilations=(1, 1)),
    "one_axis": lambda: make("conv", (t.input("x", (2, 6, 20)), t.input("w", (6, 1, 4))),
                             {"strides": (1,), "pads": (3, 0), "dilations": (1,), "groups": 6}),
}  # fmt: skip
BOXES = [{"x": 1, "y": 1, "z": 1}, {"x": 8, "y": 2, "z": 1}, {"x": 2, "y": 4, "z": 2}, {"x": 4, "y": 1, "z": 4}]


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])  # float16: test_cuda_cpp.py
def test_boxes_of_results_are_what_is_specified(dtype: str, tmp_path: Path) -> None:
    found: list[tuple[GeneratedKernel, Call, CudaLaunch]] = []
    for name in CASES if dtype == "float32" else ("odd", "between"):
        template = windowed(CASES[name]())
        ways = (
            list(product((contiguous, channels_last), repeat=2))
            if len(template.roots[0].shape) == 4
            else [(contiguous,) * 2]
        )
        for way in ways:
            call = call_of(template, dtype, *way)
            for i, box in enumerate(BOXES[way[0] is not way[1] :]):
                scheduled = replace(call, schedule=box | {"threads": 32} | ({"early": 1} if i % 2 else {}))
                if template.fits is not None and template.fits(scheduled):
                    (launch,) = launches(template, scheduled)
                    assert isinstance(launch, CudaLaunch)
                    found.append((template, scheduled, launch))
    assert len(found) > (60 if dtype == "float32" else 15)
    kernels = compiled(
        "\n".join([CUDA_LIBRARY, *{launch.name: launch.text for *_, launch in found}.values()]), tmp_path
    )
    for template, call, launch in found:
        check(template, call, launch, kernels[launch.name], dtype)


def text_of(template: GeneratedKernel, call: Call, **box: int) -> str:
    (launch,) = launches(template, replace(call, schedule=box))
    assert isinstance(launch, CudaLaunch)
    return launch.text


def test_what_several_results_read_is_read_once() -> None:
    """Eight results of a row of 16-bit numbers and three rows of the filter: three runs of a row of the image, each
    weight."""
    template = windowed(depthwise(image(1, 4, 16, 32), 3))
    first = text_of(template, call_of(template, "float16"), x=8, y=1, z=1, threads=128)
    assert [len(re.findall(rf"read<{n}>", first)) for n in (8, 4, 2, 1)] == [3, 0, 0, 3 * 2 + 9 + 1]
    template = windowed(depthwise(image(1, 16, 16, 32), 3))
    last = text_of(template, call_of(template, "float16", channels_last), x=8, y=4, z=1, threads=128)
    assert re.findall(r"read<(\d)>", last) == ["8"] * (3 * 6 + 9 + 1)


def test_guesses_are_legal_and_steps_from_them_are_judged() -> None:
    template = windowed(depthwise(image(2, 96, 28, 28), 3))
    call = call_of(template, "float16")
    assert template.space is not None and template.fits is not None
    guesses = [dict(s) for s in template.space(call)]
    assert guesses and all("x" in s and template.fits(replace(call, schedule=s)) for s in guesses)
    steps = [s for g in guesses[:3] for *_, s in template.moves(g)]  # type: ignore[misc]
    fine = [s for s in steps if template.fits(replace(call, schedule=s))]
    assert fine and not any(template.fits(replace(call, schedule=s | {"x": 64})) for s in steps)
    assert all(launches(template, replace(call, schedule=s)) for s in fine[:4])


def test_a_softmax_over_windows_is_left_to_others() -> None:
    x = image(1, 2, 6, 6)
    windows = make("windows", (x,), {"axis": 3, "size": 3, "stride": 1, "dilation": 1})
    template = generated(t.reshape(t.sum(c.softmax(windows, axis=4) * windows, axis=4, keepdims=True), (1, 2, 6, 4)))
    call = call_of(template, "float32")
    if template.lower(call) is not None and template.space is not None:
        assert all("x" not in s for s in template.space(call))
