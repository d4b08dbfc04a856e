"""The GPU's library kernels against their meaning in float64, on Torch's CPU tensors: alone and with floats in several
dtypes."""

from __future__ import annotations

import math
import random
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import numpy as np
import pytest

from tensor_graphs.backends.library import torch_training_helpers
from tensor_graphs.backends.library.torch_cuda_attention import _named
from tensor_graphs.backends.registry import backend
from tensor_graphs.backends.runtime.marshalling import tensor_of
from tensor_graphs.backends.tuning.gpu_accuracy import LOST
from tensor_graphs.backends.tuning.gpu_operands import place
from tensor_graphs.backends.tuning.single_kernel import compiled, in_layout, random_values
from tensor_graphs.egraph.ops.ops import OPS, Type
from tensor_graphs.egraph.patterns.pattern import PatternCall
from tensor_graphs.egraph.types import dtypes
from tensor_graphs.egraph.types.dims import dim
from tensor_graphs.errors import UnsupportedError
from tensor_graphs.extract.model.kernel import Call, Operand, Template, contiguous, output_names

from .reference import expected
from .sampled_calls import sample

torch = pytest.importorskip("torch")

CUDA = backend("torch_cuda")
KERNELS = [t for t in CUDA.templates if t.family != "view"]
TOLERANCE = {"float64": 1e-11, "float32": 2e-5, "float16": 2e-2, "bfloat16": 1e-1}

NAMED = ("_flash", "_cudnn", "_efficient")  # attention kernels that are asked for by name

#: Kernels that Torch has on a GPU only, or with another meaning on the CPU: never tried here.
GPU_ONLY = {t.name: "cuDNN's fused convolution" for t in KERNELS if "relu_last" in t.name}
GPU_ONLY |= {t.name: "not for the CPU" for t in KERNELS if "cudnn" in t.name}
GPU_ONLY |= {"cuda.mm_wide": "float32 results of 16-bit products"}
GPU_ONLY |= {
    t.name: "fused attention of GPUs" for t in KERNELS
    if "_efficient" in t.name or (t.name.endswith("_flash") and ("statistics" in t.name or "gradients" in t.name))
}  # fmt: skip
GPU_ONLY |= {
    t.name: "its epilogue is the exact gelu on the CPU" for t in KERNELS if "mm_bias" in t.name and "gelu" in t.name
}


def call_of(template: Template, seed: int) -> Call | None:
    """A call of some dtype; every other one with its float32 values stored as in a 16-bit model, or mixed at random."""
    rng = random.Random(f"{template.name}-{seed}")
    if template.name.endswith(NAMED) or template.name.removesuffix("_rows").endswith(NAMED):
        return heads(template, seed)
    if template.name.endswith("_even"):
        return grown(template, seed)
    if "wide" not in template.name and "_cast" not in template.name and seed % 2 == 0:
        for dtype in (*rng.sample(("float32", "bfloat16", "float16", "float64"), 4), "int64"):
            found = sample(template, seed, dtype, attempts=300)
            if found is not None:
                return found
    bare = replace(template, applies=None, layout=None)
    for attempt in range(300):
        call = sample(bare, 1000 * seed + attempt, "float32", attempts=20)
        if call is None:
            continue
        found = stored(call, rng)
        if template.applies is None or template.applies(found):
            return (
                replace(found, output=replace(found.output, strides=template.layout(found)))
                if template.layout
                else found
            )
    return None


def heads(template: Template, seed: int) -> Call | None:
    """A call of attention with heads of a width that the fused kernels have; statistics are float32."""
    bare = replace(template, applies=None, layout=None)

    def kind(name: str, o: Operand) -> Operand:
        statistics = name == "s" or (name == "out1" and o.type.shape[-1] == 1)
        shape = o.type.shape if statistics or name in ("m", "a") else (*o.type.shape[:-1], 16)
        return Operand(Type(shape, "float32" if statistics else o.type.dtype), contiguous(shape))

    for attempt in range(200):
        call = sample(bare, 1000 * seed + attempt, "bfloat16", attempts=50)
        if call is None:
            continue
        places = {n: kind(n, o) for n, o in call.buffers.items()}
        more = tuple(places[n] for n in output_names(len(call.outputs))[1:])
        found = Call({n: places[n] for n in call.operands}, places["out"], call.attrs, more=more)
        if template.applies(found):
            return (
                replace(found, output=Operand(found.output.type, template.layout(found))) if template.layout else found
            )
    return None


def grown(template: Template, seed: int) -> Call | None:
    """A call of a product whose sizes are nine times as large as those that are drawn, but for axes of 1."""
    bare = replace(template, applies=None)
    times = lambda shape: tuple(9 * n if n > 1 else n for n in shape)
    for attempt in range(200):
        call = sample(bare, 1000 * seed + attempt, ("bfloat16", "float16")[seed % 2], attempts=50)
        if call is None:
            continue
        kind = lambda o: Operand(replace(o.type, shape=times(o.type.shape)), contiguous(times(o.type.shape)))
        attrs = {n: times(v) if n == "s" else v for n, v in call.attrs.items()}
        found = Call({n: kind(o) for n, o in call.operands.items()}, kind(call.output), attrs)
        if template.applies is None or template.applies(found):
            return found
    return None


def stored(call: Call, rng: random.Random) -> Call:
    """float32 operands and results in bfloat16: those of rows as storage has it, or any."""
    free = rng.random() < 0.5

    def kind(o: Operand) -> Operand:
        narrow = rng.random() < 0.5 if free else o.type.rank and o.type.shape[-1] > 1
        return replace(o, type=replace(o.type, dtype="bfloat16")) if narrow and o.type.dtype == "float32" else o

    return replace(call, operands={n: kind(o) for n, o in call.operands.items()}, output=kind(call.output))


#: Norms of training steps, of which the CPU's kernels have no float32 statistics of 16-bit values.
NORMS = (
    "cuda.norm_with_statistics",
    "cuda.layer_norm_gradient",
    "cuda.batch_norm_gradient",
    "cuda.batch_norm_training",
    "cuda.channel_statistics",
)


def lacks_wide_statistics(template: Template, call: Call) -> bool:
    """Whether the CPU has no kernel for a call: a norm of 16-bit values and lines with float32 statistics."""
    kinds = {o.type.dtype for n, o in call.buffers.items() if n in ("x", "w")}
    floats = {o.type.dtype for o in call.buffers.values() if dtypes.is_float(o.type.dtype)}
    return template.name.startswith(NORMS) and kinds <= {*dtypes.HALVES} and len(floats) > 1


#: Endings of kernels that call the function of another one with other settings.
VARIANTS = ("_tf32", "_tuned", "_columns")
NO_GPU = CUDA.unavailable()
ON_GPU = [pytest.mark.gpu, pytest.mark.skipif(bool(NO_GPU), reason=NO_GPU or "there is a GPU")]
CASES = [pytest.param(t, "cpu", id=t.name) for t in KERNELS if t.name not in GPU_ONLY]
CASES += [pytest.param(t, "cuda", id=f"gpu-{t.name}", marks=ON_GPU) for t in KERNELS]


@pytest.mark.parametrize(("template", "device"), CASES)
def test_kernel_computes_its_pattern(template: Template, device: str) -> None:
    tried, count = 0, 1 if template.name.endswith(VARIANTS) else 2  # calls that are checked
    for seed in range(16):
        call = call_of(template, seed) if seed < count or not tried else None
        if call is None or (device == "cpu" and lacks_wide_statistics(template, call)):
            continue
        tried += 1
        try:
            check(template, call, seed, device)
        except RuntimeError as error:
            if "No available kernel" not in str(error):  # cuDNN has no attention of this kind here
                raise
            pytest.skip(str(error))
    assert tried, "no call found that this kernel accepts"


def check(template: Template, call: Call, seed: int, device: str = "cpu") -> None:
    """Value, dtype and layout of a kernel's answer."""
    rng = np.random.default_rng(seed)
    operands = {n: in_layout(random_values(o.type, rng), o) for n, o in call.operands.items()}
    if "mode='set'" in template.pattern:  # which of two writes to one place comes last is not said
        operands |= {
            n: in_layout(rng.permutation(math.prod(o.type.shape)).reshape(o.type.shape), o)
            for n, o in call.operands.items() if o.type.dtype == "int64" and o.type.rank and n == "i"
        }  # fmt: skip
    placed = {n: place(tensor_of(a), call.operands[n], device) for n, a in operands.items()}
    found = [x.cpu() for x in compiled(template, call, device)(placed)()]
    used = [o.type.dtype for o in (*call.operands.values(), call.output) if dtypes.is_float(o.type.dtype)]
    tolerance = max((TOLERANCE[d] for d in used), default=0.0)
    if device == "cuda" and used:  # where operands may be rounded; some functions have constants in single precision
        tolerance = max(tolerance, 1e-7, LOST * template.loss)
    for number, (got, output) in enumerate(zip(found, call.outputs, strict=True)):
        assert tuple(got.shape) == output.type.shape and str(got.dtype) == f"torch.{output.type.dtype}"
        assert all(a == b for a, b, d in zip(got.stride(), output.strides, got.shape) if d != 1)
        want = expected(template, call, operands, number).astype(float)
        np.testing.assert_allclose(got.double().numpy(), want, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("_", [pytest.param(0, id="gpu", marks=ON_GPU)])
def test_cudnn_gradients_do_not_depend_on_layouts_of_earlier_calls(_: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """PyTorch finds what it has prepared by the layouts of q, k and v only, in calls of eager modules as well."""
    monkeypatch.setattr(torch_training_helpers, "torch", torch, raising=False)
    backward = torch.ops.aten._scaled_dot_product_cudnn_attention_backward
    made, scale = torch.Generator("cuda").manual_seed(0), 64**-0.5
    x = torch.randn((2, 40, 4, 3, 64), device="cuda", generator=made).bfloat16()
    q, k, v = (y.transpose(1, 2) for y in x.unbind(3))
    g = torch.randn((2, 4, 40, 64), device="cuda", generator=made).bfloat16()
    wide = [y.detach().double().requires_grad_() for y in (q, k, v)]
    scores = wide[0] @ wide[1].mT * scale
    whole = scores.softmax(-1) @ wide[2]
    wanted = torch.autograd.grad(whole, wide, g.double())
    y, sums, seed = (
        whole.bfloat16(),
        scores.logsumexp(-1, keepdim=True).float(),
        torch.zeros((), dtype=torch.int64, device="cuda"),
    )
    forms = [lambda z: z.contiguous(), lambda z: torch_training_helpers.with_heads(z, True)]
    for form in (*forms, *forms):
        backward(form(g), q, k, v, y.contiguous(), sums, seed, seed, None, None, None, 40, 40, 0.0, False, scale=scale)
        found = torch_training_helpers.fused_attention_gradients(
            "cudnn", form(g), q, k, v, form(y), sums, None, scale, False, False
        )
        for a, b in zip(found, wanted, strict=True):
            assert float((a.double() - b).norm() / b.norm()) < 1e-2


def test_cudnn_is_not_asked_for_attention_of_free_sizes() -> None:
    free, fixed = (Operand(Type((2, 4, n, 64), "float16"), contiguous((2, 4, 8, 64))) for n in (dim("T", min=1), 8))
    attrs = {"scale": 0.125, "causal": False, "window": 0, "softcap": 0.0}
    for names in ("qkv", "q", "kv"):
        call = Call({n: free if n in names else fixed for n in "qkv"}, free if "q" in names else fixed, attrs)
        for kernel in ("CUDNN_ATTENTION", ""):  # Torch's own choice may be cuDNN
            with pytest.raises(UnsupportedError, match="a plan for each size"):
                _named(call, kernel)
        assert _named(call, "EFFICIENT_ATTENTION") == "'EFFICIENT_ATTENTION'"
        single = {n: replace(o, type=Type(o.type.shape, "float32")) for n, o in call.operands.items()}
        assert _named(replace(call, operands=single), "") == "''"  # cuDNN has no kernel for float32
    assert _named(Call(dict.fromkeys("qkv", fixed), fixed, attrs), "CUDNN_ATTENTION") == "'CUDNN_ATTENTION'"


def test_cudnn_runs_in_one_thread_on_the_callers_stream(monkeypatch: pytest.MonkeyPatch) -> None:
    used: list[tuple[int, object]] = []

    @contextmanager
    def chosen(stream: object) -> Iterator[None]:
        used.append((threading.get_ident(), stream))
        yield

    monkeypatch.setattr(torch_training_helpers, "torch", torch, raising=False)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda: "stream")
    monkeypatch.setattr(torch.cuda, "stream", chosen)
    monkeypatch.delitem(vars(torch.cuda), "_programs_cudnn", raising=False)
    run = torch_training_helpers.in_own_thread
    assert [run(torch.is_grad_enabled), run(threading.get_ident)] == [False, used[0][0]]
    with pytest.raises(ZeroDivisionError):
        run(lambda: 1 / 0)
    assert len(used) == 3 and set(used) == {(used[0][0], "stream")} and used[0][0] != threading.get_ident()
    vars(torch.cuda).pop("_programs_cudnn").shutdown()


def test_what_is_for_a_gpu_only_does_fail_here() -> None:
    """A kernel that works on the CPU after all is to be tested."""
    for name in GPU_ONLY:
        template = next(t for t in KERNELS if t.name == name)
        for seed in range(0, 20, 2):
            if (call := call_of(template, seed)) and (
                "gelu" not in name or call.output.type.dtype in ("float32", "float64")
            ):
                break
        assert call is not None, name
        with pytest.raises((RuntimeError, NotImplementedError, AssertionError)):
            check(template, call, seed)


def test_every_atomic_op_has_a_kernel_for_any_dtypes() -> None:
    """As a 16-bit model needs them: over operands that lie in 16 bits, in float32, or in both."""
    named: dict[str, list[Template]] = {}
    for t in CUDA.templates:
        if isinstance(t.term, PatternCall) and not t.prep and t.layout is None and len(t.operands) == len(t.term.args):
            named.setdefault(t.term.op, []).append(t)
    assert {op for op, entry in OPS.items() if entry.arity and not entry.composite} <= set(named)
    views = {"reshape", "permute", "broadcast_to", "slice", "windows"}
    known = [t for t in backend("numpy").templates if isinstance(t.term, PatternCall) and not t.prep and not t.when]
    numpy = {op: [t for t in known if t.term.op == op and len(t.operands) == len(t.term.args)] for op in named}
    rng = random.Random(3)
    decomposed = {op for op in named if OPS[op].composite and not numpy[op]}  # of training steps
    for op in sorted(set(named) - views - decomposed):
        for seed in range(12):
            dtype = rng.choice(("float32", "float32", "bfloat16", "float64"))
            call = sample(rng.choice(numpy[op]), seed, dtype, attempts=100)
            if call is None or (op == "conv" and not dtypes.is_float(call.output.type.dtype)):
                continue
            call = stored(call, rng)
            assert any(_fits(t, call) for t in named[op]), f"no kernel for {op}: {call}"


def _fits(template: Template, call: Call) -> bool:
    """Whether a template takes the call, its operands laid out row-major (a copy away)."""
    operands = {
        n: replace(o, strides=contiguous(o.type.shape))
        for n, o in zip(template.operands, call.operands.values(), strict=True)
    }
    return template.applies is None or template.applies(replace(call, operands=operands))


@pytest.mark.parametrize("template", KERNELS[::6], ids=lambda t: t.name)
def test_a_kernel_alone_is_the_same_text(template: Template) -> None:
    """What is measured (kernel_text) is what a program runs."""
    from tensor_graphs.backends.generate.kernel_text import kernel_text, module_of

    call = next((found for seed in range(8) if (found := call_of(template, seed))), None)
    if call is None or template.name in GPU_ONLY:
        return
    rng = np.random.default_rng(1)
    operands = {n: in_layout(random_values(o.type, rng), o) for n, o in call.operands.items()}
    want = [x.clone() for x in compiled(template, call, "cpu")(operands)()]
    text = kernel_text(template, call)
    module = module_of(text)
    given = {n: tensor_of(a) for n, a in operands.items()}
    for name in text.prepared:
        given[name] = getattr(module, f"prepare_{name}")(given[name])
    out = [torch.empty_strided(o.type.shape, o.strides, dtype=getattr(torch, o.type.dtype)) for o in call.outputs]
    scratch = torch.empty(text.scratch, dtype=torch.uint8)
    found = module.run(*(given[n] for n in text.operands), *out, scratch)
    assert text.fresh == (found is not None)
    if text.fresh:
        out = [found] if len(out) == 1 else [*found]
    torch.testing.assert_close(out, want, rtol=0, atol=0, equal_nan=True)
