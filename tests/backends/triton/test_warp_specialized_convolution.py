"""Warp-specialized convolution: values on a simulated GPU, candidate schedules, TMA boxes of images."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import tensor_graphs.egraph.builders.builders as t
from tensor_graphs.backends.generate.kernel_text import kernel_text, module_of
from tensor_graphs.backends.generate.template import template_of
from tensor_graphs.backends.generate.weight_layouts import innermost
from tensor_graphs.backends.ir.unfusable import Unfusable
from tensor_graphs.backends.triton.backend import BACKEND
from tensor_graphs.backends.triton.schedules.parameters import ConvolutionSchedule
from tensor_graphs.backends.triton.warp_specialized.convolution import convolution_of
from tensor_graphs.backends.triton.warp_specialized.schedules import convolution_schedules
from tensor_graphs.egraph.evaluate.interpret import evaluate
from tensor_graphs.egraph.ir.tensor import Tensor, topological
from tensor_graphs.egraph.ops.ops import Type
from tensor_graphs.extract.model.kernel import Call, Operand, Template, contiguous

from ..gluon_host import host


def x(name: str, *shape: int) -> Tensor:
    return t.input(name, shape)


def conv(image: tuple[int, ...], filters: tuple[int, ...], pads: tuple[int, ...] = (1, 1, 1, 1)) -> Tensor:
    a, w = x("a", *image), x("w", *filters)
    return t.conv(a, w, strides=(1, 1), pads=pads, dilations=(1, 1), groups=1)


def residual() -> Tensor:
    y = conv((2, 64, 16, 16), (96, 64, 3, 3))
    return y + x("bias", 1, 96, 1, 1) + x("scale", 2, 96, 1, 1) + x("r", 2, 96, 16, 16)


KERNELS = {
    "plain": lambda: conv((2, 64, 16, 16), (64, 64, 3, 3)),
    "rows longer than a group's": lambda: conv((1, 32, 2, 128), (64, 32, 3, 3)),
    "several rows in a group": lambda: conv((2, 64, 8, 8), (64, 64, 5, 5), (2, 2, 2, 2)),
    "edges on one side": lambda: conv((2, 64, 17, 17), (64, 64, 3, 3), (0, 1, 1, 0)),
    "patches": lambda: conv((1, 32, 24, 40), (64, 32, 3, 3)),
    "residual": residual,
}  # fmt: skip


def called(name: str, last: bool, dtype: str = "float16") -> tuple[Template, Call]:
    root = KERNELS[name]()
    template = template_of(BACKEND.emitter, root, ("w",), last)
    nodes = {str(n.attr("name")): n for n in topological([root]) if n.op == "input"}
    kinds = {"bias": "float32", "scale": "float32"}

    def operand(n: str) -> Operand:
        shape = tuple(map(int, nodes[n].shape))
        return Operand(Type(shape, kinds.get(n, dtype)), innermost(shape) if n == "a" else contiguous(shape))

    shape = tuple(map(int, root.shape))
    out = Operand(Type(shape, dtype), innermost(shape) if last else contiguous(shape))
    return template, Call({o: operand(o) for o in template.operands}, out, {})


def proposed(template: Template, call: Call) -> list[dict[str, int]]:
    found = template.lower(call)  # type: ignore[attr-defined]
    assert found is not None
    return [s.numbers() for s in convolution_schedules(found.kernel, found.shape, 9)]


@pytest.mark.parametrize("last", [False, True], ids=["rows", "channels innermost"])
@pytest.mark.parametrize("name", KERNELS)
def test_roles_compute_what_the_term_means(name: str, last: bool) -> None:
    torch = pytest.importorskip("torch")
    rng = np.random.default_rng(0)
    template, call = called(name, last)
    found = proposed(template, call)
    assert found and ("more" in found[0]) == (name == "residual")
    nodes = {str(n.attr("name")): n for n in topological([template.root]) if n.op == "input"}  # type: ignore[attr-defined]
    given = {n: rng.standard_normal(tuple(map(int, v.shape))).astype(np.float32) for n, v in nodes.items()}
    given = {n: v.astype(call.operands[n].type.dtype) for n, v in given.items()}
    want = evaluate([template.root], {n: v.astype(np.float32) for n, v in given.items()}, float64=True)[0]  # type: ignore[attr-defined]
    for schedule in (found[0], found[-1]):
        with host(132):
            out = torch.full(want.shape, float("nan"), dtype=torch.float16)
            out = out.contiguous(memory_format=torch.channels_last) if last else out
            one = module_of(kernel_text(template, replace(call, schedule=schedule)))
            tensors = {n: torch.from_numpy(v) for n, v in given.items()}
            tensors["a"] = tensors["a"].contiguous(memory_format=torch.channels_last)
            tensors["w"] = one.prepare_w(tensors["w"])
            flat = {n: v.permute(0, 2, 3, 1).reshape(-1) if n == "a" else v.reshape(-1) for n, v in tensors.items()}
            flat["w"] = tensors["w"].reshape(-1)
            stored = out.permute(0, 2, 3, 1) if last else out
            one.run(*(flat[o] for o in template.operands), stored, None)
        assert np.linalg.norm(out.numpy() - want) / np.linalg.norm(want) < 2e-3, schedule


def test_tiles_divide_what_there_is() -> None:
    template, call = called("plain", True, "bfloat16")
    found = template.lower(call)  # type: ignore[attr-defined]
    assert found is not None
    first, *_ = proposed(template, call)
    space = list(template.space(call))  # type: ignore[misc]
    assert ["roles" in s for s in space[:2]] == [True, False], "a first look is at roles and at what does without"
    assert space[0] == first and template.fits(replace(call, schedule=first))  # type: ignore[misc]
    for change in (
        {"tall": 192},
        {"wide": 96},
        {"stages": 9},
        {"k0": 128},
        {"m": 64, "n": 32},
        {"boxes": 1},
        {"warps": 2},
    ):
        assert not BACKEND.emitter.fits(found.kernel, found.shape, {**first, **change}, False), change
    wide = {n: Operand(Type(o.type.shape, "float32"), o.strides) for n, o in call.operands.items()}
    assert not proposed(template, Call(wide, Operand(Type(call.output.type.shape, "float32"), call.output.strides), {}))


def test_an_image_is_read_as_it_lies() -> None:
    template, call = called("plain", False)
    found = template.lower(call)  # type: ignore[attr-defined]
    assert found is not None
    schedule = ConvolutionSchedule.parse(proposed(template, call)[0])
    assert schedule is not None
    one = convolution_of(found.kernel, schedule, "probe", found.shape)
    p = one.image_patch
    assert (p.sizes, p.strides) == ((2, 16, 16, 64), (16384, 1024, 64, 1)) and p.block == (1, 4, 16, 64)
    rows = Operand(call.operands["a"].type, contiguous(call.operands["a"].type.shape))  # type: ignore[arg-type]
    other = template.lower(replace(call, operands={**call.operands, "a": rows}))  # type: ignore[attr-defined]
    assert other is not None
    with pytest.raises(Unfusable):
        convolution_of(other.kernel, schedule, "probe", other.shape)
