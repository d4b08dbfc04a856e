"""Operands that GPU kernels are checked and timed with: codes and scales of quantized weights, prepared layouts."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator

import numpy as np
import pytest

import tensor_graphs.egraph.builders.builders as t
from tensor_graphs.backends.cuda.backend import BACKEND as CUDA
from tensor_graphs.backends.generate.kernel_text import KernelText
from tensor_graphs.backends.generate.template import template_of
from tensor_graphs.backends.tuning import gpu_operands
from tensor_graphs.backends.tuning.gpu_bench import Bench
from tensor_graphs.backends.tuning.gpu_device import device_of
from tensor_graphs.backends.tuning.loaded_kernel import LoadedKernel
from tensor_graphs.egraph.composites import training_ops as g
from tensor_graphs.egraph.ir.graph import topological
from tensor_graphs.egraph.ops.ops import Type
from tensor_graphs.extract.model.kernel import Call, Operand, contiguous
from tensor_graphs.models.common import quantization

torch = pytest.importorskip("torch")

COLUMNS, SIZE = 64, 256


def bench_of(form: str, alone: object = contextlib.nullcontext) -> Bench:
    """The test bench of a product of a row with a quantized weight."""
    length = SIZE if form in ("int8", "fp8") else SIZE // 2
    codes = t.input("w", (COLUMNS, length), "int8" if form == "int8" else "uint8")
    scale = t.input("s", (COLUMNS, SIZE // quantization.group_of(form, SIZE)))
    dense = t.transpose(quantization.dequantized(form, codes, scale))
    template = template_of(CUDA.emitter, t.matmul(t.input("x", (1, SIZE)), dense))
    leaves = {str(n.attr("name")): n for n in topological(template.roots) if n.op == "input"}
    types = {o: Type(leaves[o].shape, "bfloat16" if o in ("x", "s") else leaves[o].dtype) for o in template.operands}
    operands = {o: Operand(k, contiguous(k.shape)) for o, k in types.items()}  # type: ignore[arg-type]
    result = Operand(Type((1, COLUMNS), "bfloat16"), contiguous((1, COLUMNS)))
    return Bench(device_of("cpu"), template.pattern, Call(operands, result, {}), alone=alone)  # type: ignore[arg-type]


@pytest.mark.parametrize("form", quantization.FORMS)
def test_codes_of_quantized_weights_have_all_their_values(form: str) -> None:
    """All bits of codes vary, none is a NaN, and products with the weights are near one."""
    bench = bench_of(form)
    codes = bench.sets[0].operands["w"].numpy()
    assert len(np.unique(codes)) > 128
    every = np.bitwise_or.reduce(codes.view(np.uint8), axis=None)
    assert every == 0xFF and np.bitwise_and.reduce(codes.view(np.uint8), axis=None) == 0
    assert 0.3 < float(bench.want[0].square().mean().sqrt()) < 3


def test_operands_are_prepared_once_for_all_calls_of_a_trial() -> None:
    """The calls of a trial with one set of operands share its rearranged weights, which are freed after the trial."""
    bench, prepared = bench_of("int8"), list[object]()

    def prepare(x: object) -> object:
        prepared.append(x)
        return x

    def run(*arguments: object) -> None:
        bench.sets[0].outputs[0].copy_(bench.want[0])

    text = KernelText("", tuple(bench.call.operands), ("w",), False, 0, False)
    tried = LoadedKernel(text, run, {"w": prepare})
    bench.attempt(0, tried)
    assert len(prepared) == len({id(x) for x in prepared}) == len(bench.sets)
    assert not tried.prepared


def stand_in(bench: Bench) -> LoadedKernel:
    """A kernel that writes the reference's values."""
    run = lambda *arguments: arguments[-2].copy_(bench.want[0])
    return LoadedKernel(KernelText("", tuple(bench.call.operands), (), False, 0, True), run, {})


def test_only_the_device_needs_the_gpu_lock(monkeypatch: pytest.MonkeyPatch) -> None:
    """A kernel is opened under the lock once, and its terms are read before; its calls are recorded without the lock,
    and run with it."""
    held, recorded = list[bool](), list[int]()

    @contextlib.contextmanager
    def alone() -> Iterator[None]:
        held.append(True)
        yield
        held[-1] = False

    bench = bench_of("int8", alone)
    assert bench.want and held == [False]
    monkeypatch.setattr(bench.device, "cache_bytes", 1 << 17)
    sampled = bench._sampled
    monkeypatch.setattr(bench.device, "capture", lambda calls: recorded.append(held[-1]) or (lambda: None))
    monkeypatch.setattr(bench, "_sampled", lambda *given: [float(held[-1])] * len(sampled(*given)))
    reply = bench.attempt(0, stand_in(bench))
    assert recorded and not any(recorded) and set(reply["cold"]) == {1.0}
    assert {"draw", "check", "copy", "record", "sample"} == bench.clock.seconds.keys()


def test_a_slow_kernel_runs_a_few_times_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its calls are not repeated until their operands exceed the cache: other processes wait for the device."""

    def runs_of(us: float) -> tuple[int, int]:
        """Runs of a kernel that takes `us` µs: of an attempt, and of a full measurement."""
        bench, runs = bench_of("int8"), list[float]()
        tried, run = stand_in(bench), stand_in(bench).run
        tried.run = lambda *arguments: runs.append(us) or run(*arguments)

        def elapsed(work: Callable[[], object]) -> float:
            before = len(runs)
            work()
            return us * (len(runs) - before) or 1.0

        monkeypatch.setattr(bench.device, "cache_bytes", 20 * bench.nbytes)
        monkeypatch.setattr(bench.device, "elapsed", elapsed)
        bench.attempt(0, tried)
        tries = len(runs)
        bench.measure(0)
        return tries, len(runs) - tries

    tries, full = runs_of(30_000.0)
    assert tries <= 4 and full <= 11
    assert min(runs_of(50.0)) > 100, "a fast kernel's operands exceed the cache"


def test_copies_of_operands_and_outputs_lie_apart() -> None:
    """They have the strides, values and alignment of tensors made one by one."""
    for shape, strides in (((3, 5), (8, 1)), ((4, 1, 6), (0, 6, 1)), ((2, 3), (1, 2)), ((0, 3), (3, 1))):
        operand = Operand(Type(shape, "bfloat16"), strides)
        one = gpu_operands.draw("x", operand, gpu_operands.OperandRole(), "cpu")
        first, *_, last = copies = gpu_operands.copies(one, operand, 3)
        assert len({x.data_ptr() for x in copies}) == (3 if one.numel() else 1)
        assert all(torch.equal(x, one) and x.stride() == one.stride() for x in copies)
        assert (last.data_ptr() - first.data_ptr()) % gpu_operands.ALIGNED == 0
        (_, room), rooms = gpu_operands.guarded_memory(operand, "cpu"), gpu_operands.guarded_memories(operand, 3, "cpu")
        for x in rooms:
            assert x.stride() == room.stride() and bool(x.isnan().all())
            x.fill_(1.0)
            assert sum(bool((y == 1.0).any()) for y in rooms) == min(1, one.numel())
            x.fill_(float("nan"))


def test_statistics_of_attention_normalize_its_weights() -> None:
    """Fused kernels of gradients round weights above one more coarsely than the reference expects."""
    q, s = t.param("q", (1, 2, 64, 8)), t.param("s", (1, 2, 64, 1))
    root = g.attention_gradient(q, q, q, q, q, s, of="query", scale=1.0, causal=False)
    roles = gpu_operands.operand_roles([root])
    assert roles["s"].near == pytest.approx(2.0 * (np.log(64) + 1.0)) and not roles["q"].near
