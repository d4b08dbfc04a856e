"""Generated C functions beside Torch's own kernels for the same values, one thread, rounds in turn: what fusing is
worth."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F

import tensor_graphs as tg
from tensor_graphs.backends.c.backend import BACKEND, generated
from tensor_graphs.backends.runtime.marshalling import tensor_of
from tensor_graphs.backends.tuning.single_kernel import compiled, in_layout, random_values
from tensor_graphs.egraph.ir.tensor import Tensor, topological
from tensor_graphs.extract.model.kernel import Call, Operand, contiguous

from ..common import in_turn, row

REPEATS = 64  # matrices that take turns: more than a cache holds
Given = dict[str, torch.Tensor]


def _x(name: str, *shape: int, dtype: str = "float32") -> Tensor:
    return tg.input(name, shape, dtype)


def _gelu(x: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
    return torch._C._nn.gelu(x, out=out)


#: title -> (what the C function computes, Torch's kernels for it over operands and a result of its type)
CASES: dict[str, tuple[Tensor, Callable[[Given, torch.Tensor], Any]]] = {
    "softmax 768x128": (tg.softmax(_x("a", 768, 128), axis=1), lambda v, o: torch.softmax(v["a"], 1, out=o)),
    "layer norm 128x768": (
        tg.layer_norm(_x("a", 128, 768), _x("g", 768), _x("b", 768), eps=1e-5),
        lambda v, o: F.layer_norm(v["a"], (768,), v["g"], v["b"])),
    "residual and layer norm 128x768": (
        tg.layer_norm(_x("a", 128, 768) + _x("r", 128, 768), _x("g", 768), _x("b", 768), eps=1e-5),
        lambda v, o: F.layer_norm(torch.add(v["a"], v["r"], out=o), (768,), v["g"], v["b"])),
    "RMS norm 64x640": (
        tg.rms_norm(_x("a", 64, 640), _x("g", 640), eps=1e-6), lambda v, o: F.rms_norm(v["a"], (640,), v["g"], 1e-6)),
    "RMS norm 64x640, bfloat16": (
        tg.rms_norm(_x("a", 64, 640, dtype="bfloat16"), _x("g", 640, dtype="bfloat16"), eps=1e-6),
        lambda v, o: F.rms_norm(v["a"], (640,), v["g"], 1e-6)),
    "GELU 128x3072": (tg.gelu(_x("a", 128, 3072)), lambda v, o: _gelu(v["a"], o)),
    "gated GELU 64x2048": (
        tg.gelu(_x("a", 64, 2048)) * _x("b", 64, 2048), lambda v, o: _gelu(v["a"], o).mul_(v["b"])),
    "relu(a + b) 1x512": (
        tg.relu(_x("a", 1, 512) + _x("b", 1, 512)), lambda v, o: torch.add(v["a"], v["b"], out=o).clamp_min_(0)),
    "transposed 512x768": (tg.transpose(_x("a", 512, 768)) * 1.5, lambda v, o: torch.mul(v["a"].t(), 1.5, out=o)),
    "column sums 1024x768": (
        tg.sum(_x("a", 1024, 768), axis=0, keepdims=True), lambda v, o: torch.sum(v["a"], 0, True, out=o)),
    "vector times matrix 512x512, in memory": (
        _x("a", 1, 512) @ _x("w", 512, 512), lambda v, o: torch.mm(v["a"], v["w"], out=o)),
}  # fmt: skip


def main() -> dict[str, Any]:
    """Result for the figures: one row, how many times faster the generated functions are than Torch's kernels."""
    if why := BACKEND.unavailable():
        return {"rows": [row("generated C functions", "reported", f"none: {why}")]}
    torch.set_num_threads(1)
    found = dict(compared())
    parts = ", ".join(f"{title} {times['torch']['ms'] / times['c']['ms']:.2f}" for title, times in found.items())
    return {
        "rows": [row("generated C functions, times faster than Torch's kernels, one thread", "reported", parts)],
        "details": found,
    }


def compared() -> Iterator[tuple[str, dict[str, dict[str, float]]]]:
    """Yields (case, times by implementation) of each case."""
    for title, (root, reference) in CASES.items():
        template = generated(root)
        operand = lambda kind: Operand(kind, contiguous(kind.shape))
        inputs = {str(n.attr("name")): operand(n.type) for n in topological([root]) if n.op == "input"}
        call = Call(inputs, operand(root.type), {})
        bind = compiled(template, call)
        sets = []
        for seed in range(REPEATS if "memory" in title else 2):
            rng = np.random.default_rng(seed)
            values = {n: in_layout(random_values(o.type, rng), o) for n, o in inputs.items()}
            run = bind(values)
            sets.append((run, {n: tensor_of(v) for n, v in values.items()}, torch.empty_like(tensor_of(run()[0]))))
        calls = {"c": _each(sets, lambda run, v, o: run()), "torch": _each(sets, _second(reference))}
        yield title, in_turn(calls, seconds=1.5)


def _second(reference: Callable[[Given, torch.Tensor], Any]) -> Callable[..., Any]:
    return lambda run, v, o: reference(v, o)


def _each(sets: list[Any], call: Callable[..., Any]) -> Callable[[], None]:
    rounds = max(1, 64 // len(sets))

    def all_of_them() -> None:
        for _ in range(rounds):
            for one in sets:
                call(*one)

    return all_of_them
