"""Every kernel of every backend against its meaning in float64, on random calls that it accepts."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tensor_graphs as tg
from tensor_graphs.backends.library import numpy_index_helpers, torch_helpers
from tensor_graphs.backends.library.torch_rows import multiplies_bfloat16
from tensor_graphs.backends.registry import backend
from tensor_graphs.backends.tuning.single_kernel import compiled, in_layout, random_values
from tensor_graphs.egraph.evaluate.interpret import evaluate
from tensor_graphs.egraph.ops.ops import OPS, Type
from tensor_graphs.egraph.patterns.pattern import PatternCall
from tensor_graphs.egraph.types import dtypes
from tensor_graphs.extract.model.kernel import Call, Operand, Template, contiguous
from tensor_graphs.extract.model.meaning import output_terms

from .c.test_c_convolutions import ROWS as CONVOLUTIONS
from .c.test_c_convolutions import usual_call
from .c.test_c_integer_convolutions import ROWS as INTEGERS
from .c.test_c_integer_convolutions import usual_call as usual_integer_call
from .c.test_c_integer_products import ROWS as PRODUCTS
from .c.test_c_integer_products import usual_call as usual_product_call
from .reference import expected
from .sampled_calls import sample

BACKENDS = [name for name in ("numpy", "torch", "c") if not backend(name).unavailable()]
TOLERANCE = {"float64": 1e-11, "float32": 2e-5, "float16": 2e-2, "bfloat16": 1e-1}

#: (kernel, dtype) pairs that have no calls, declared with why: never (the kernel is for other dtypes by design).
HALVES, WIDE = ("float16", "bfloat16"), ("float32", "float64")
NEVER = {
    **{(f"{b}.to_{half}", "float64"): "float64 is not rounded" for b in ("np", "torch") for half in HALVES},
    **{(name, d): "wide floats only" for name in ("np.softplus", "np.linear", "np.linear_columns") for d in HALVES},
    **{(f"np.{name}_half", d): "halves only" for name in ("softplus", "matmul", "linear") for d in WIDE},
    **{(f"np.{name}", d): "wide floats only" for name in ("matmul", "quantize") for d in HALVES},
    **{
        (f"torch.{mask}attention_{name}", d): "wide floats only: statistics of halves are float32"
        for mask in ("", "masked_")
        for name in ("with_statistics", "gradients", "gradients_rows")
        for d in HALVES
    },
    **{("torch.softplus", d): "its threshold is exact in float32 only" for d in ("float64", *HALVES)},
}


def _never(template: Template, dtype: str) -> bool:
    packed = template.name.startswith(("torch.mkl", "torch.onednn", "c.")) and dtype != "float32"
    narrow = dtype == "bfloat16" and template.name.startswith("torch.onednn") and template.family == "contraction"
    return (template.name, dtype) in NEVER or (packed and not (narrow and multiplies_bfloat16()))


def _cases() -> list:
    # Winograd's and depthwise convolutions need channels, and attention rows, that are not drawn here:
    # test_c_convolutions.py, test_c_attention.py; bytes: test_c_integer_convolutions.py; recurrent layers take seconds
    # to compile: test_c_recurrent.py
    elsewhere = (
        "c.winograd",
        "c.depthwise",
        "c.grouped",
        "c.attention",
        "c.recurrent",
        "c.integer",
        "c.bytes",
        "c.uint8",
        "c.int8",
        "c.to_channels_last_bytes",
        "c.from_channels_last",
    )
    named = [t for name in BACKENDS for t in backend(name).templates if t.family != "view"]
    kernels = [t for t in named if not t.name.startswith(elsewhere)]
    return [(t, d) for t in kernels for d in TOLERANCE]


GAPS = [(t, d) for t, d in _cases() if _never(t, d)]


def test_declared_gaps_have_no_calls() -> None:
    found = [(t.name, d) for t, d in GAPS if sample(t, 0, d, attempts=20) is not None]
    assert not found, "declared as gaps, but they have calls: update NEVER"


@pytest.mark.parametrize(
    ("template", "dtype"), [pytest.param(t, d, id=f"{t.name}-{d}") for t, d in _cases() if not _never(t, d)]
)
def test_kernel_computes_its_pattern(template: Template, dtype: str) -> None:
    tried = 0
    for seed in range(3 if template.name.startswith("c.") else 2):
        call = sample(template, seed, dtype)
        if call is None:
            continue
        tried += 1
        rng = np.random.default_rng(seed)
        operands = {n: in_layout(random_values(o.type, rng), o) for n, o in call.operands.items()}
        made = compiled(template, call)(operands)()
        wanted = [expected(template, call, operands, i) for i in range(len(call.outputs))]
        for got, want, output in zip(made, wanted, call.outputs, strict=True):
            kind = output.type
            assert got.shape == kind.shape and got.dtype == dtypes.numpy_dtype(kind.dtype)
            strides = [s // got.itemsize for s in got.strides]
            assert all(a == b for a, b, d in zip(strides, output.strides, got.shape) if d != 1) or not got.size
            tolerance = max(TOLERANCE[dtype], 1e-2 if "to_" in template.name else 0.0)  # the bits: test_op_texts.py
            np.testing.assert_allclose(got.astype(float), want.astype(float), rtol=tolerance, atol=tolerance)
    assert tried, "no call found that this kernel accepts"


@pytest.mark.parametrize("dtype", ["bool", "uint8", "int32"])
def test_reductions_of_whole_numbers_and_truth_values(dtype: str) -> None:
    """What a library does not take, a kernel must not claim."""
    for template in (t for name in BACKENDS for t in backend(name).templates if t.family == "reduction"):
        call = sample(template, 0, dtype, attempts=60)
        if call is None or {o.type.dtype for o in call.operands.values()} != {dtype}:
            continue
        rng = np.random.default_rng(0)
        operands = {n: in_layout(random_values(o.type, rng), o) for n, o in call.operands.items()}
        np.testing.assert_array_equal(
            compiled(template, call)(operands)()[0], expected(template, call, operands), template.name
        )


EXACT = [t for t in backend("numpy").templates if t.exact and t.family != "view"]


@pytest.mark.parametrize("template", EXACT, ids=lambda t: t.name)
def test_exact_kernels_are_bitwise_the_interpreter(template: Template) -> None:

    for dtype in ("float32", "bfloat16"):
        call = sample(template, 7, dtype, attempts=500)
        if call is None:
            continue
        rng = np.random.default_rng(7)
        operands = {n: in_layout(random_values(o.type, rng), o) for n, o in call.operands.items()}
        got = compiled(template, call)(operands)()[0]
        want = evaluate(output_terms(template, call)[:1], {}, params=operands)[0]
        a, b = got.astype(np.float64), want.astype(np.float64)
        np.testing.assert_array_equal(a, b)
        np.testing.assert_array_equal(np.signbit(a) & ~np.isnan(a), np.signbit(b) & ~np.isnan(b))


def test_every_atomic_op_has_an_exact_kernel() -> None:
    found = {t.term.op for t in EXACT if isinstance(t.term, PatternCall)}
    assert {op for op, entry in OPS.items() if entry.arity and not entry.composite} <= found


def test_numpy_has_a_kernel_for_every_atomic_op() -> None:
    """Composite ops may lack one: they run decomposed."""
    named = {t.term.op for t in backend("numpy").templates if isinstance(t.term, PatternCall) and not t.prep}
    assert {op for op, entry in OPS.items() if entry.arity and not entry.composite} <= named


SPECIAL = [np.nan, np.inf, -np.inf, -0.0, 0.0, 1.0, -1.0, 88.8, -88.8, 1e-40]
POINTWISE = [
    pytest.param(t, id=t.name)
    for name in BACKENDS
    for t in backend(name).templates
    if isinstance(t.term, PatternCall)
    and OPS[t.term.op].pointwise
    and len(t.operands) == OPS[t.term.op].arity == len(t.term.args)
    and t.operands in (("x",), ("x", "y"))
    and t.term.op not in ("cast", "from_float8", "and", "or", "xor", "not")
]

#: Where a kernel's special values may differ, with the reason.
SPECIAL_MAY = {
    "torch.gelu": "with AVX-512 its value at -inf is not the -inf * 0 of the decomposition",
}


@pytest.mark.parametrize("template", POINTWISE)
def test_special_values(template: Template) -> None:
    """NaN, infinities, -0.0 and denormals come out as the interpreter says, in float32."""
    from tensor_graphs.egraph.ops.ops import Type
    from tensor_graphs.extract.model.kernel import Call, Operand, contiguous

    values = np.array(SPECIAL, np.float32)
    pairs = np.array(np.meshgrid(values, values), np.float32).reshape(2, -1)
    operands = dict(zip(template.operands, pairs)) if len(template.operands) == 2 else {"x": values}
    attrs = {"alpha": 0.1, "beta": 0.5, "lo": -1.0, "hi": 2.0}
    names = {a for _, spelled in template.term.attrs for a in [getattr(spelled, "name", "")]}
    if template.name == "torch.hard_sigmoid":
        pytest.skip("fixed alpha")
    shape = operands["x"].shape
    operand = Operand(Type(shape, "float32"), contiguous(shape))
    kind = "bool" if OPS[template.term.op].law == "compare" else "float32"
    call = Call(
        dict.fromkeys(operands, operand),
        Operand(Type(shape, kind), contiguous(shape)),
        {k: attrs.get(k, 0.5) for k in names if k},
    )
    if template.applies is not None and not template.applies(call):
        pytest.skip("not for float32")

    got = compiled(template, call)(operands)()[0]
    with np.errstate(all="ignore"):
        want = evaluate(output_terms(template, call)[:1], {}, params=operands)[0]
    try:
        np.testing.assert_allclose(got.astype(float), want.astype(float), rtol=2e-6, atol=1e-30)
    except AssertionError:
        if template.name not in SPECIAL_MAY:
            raise


def test_erf_is_accurate_everywhere() -> None:
    from math import erf

    from tensor_graphs.backends.library.numpy_pointwise_helpers import erf as fast

    x = np.concatenate([np.linspace(-7, 7, 4001), [1e-30, -1e-8, np.inf, -np.inf, -0.0]])
    exact = np.array([erf(v) for v in x])
    for dtype, bound in ((np.float32, 5e-7), (np.float64, 4e-15)):
        out = np.empty(x.shape, dtype)
        fast(x.astype(dtype), out)
        exact_here = np.array([erf(v) for v in x.astype(dtype).astype(float)])
        assert np.max(np.abs(out - exact_here)) < bound
        assert np.max(np.abs(out)) <= 1
        assert np.signbit(out[-1]) and out[-1] == 0
    assert np.isfinite(exact).all()
    nan = np.empty(1, np.float32)
    fast(np.array([np.nan], np.float32), nan)
    assert np.isnan(nan[0])


INPLACE = [
    pytest.param(t, o, id=f"{t.name}-{o}") for name in BACKENDS for t in backend(name).templates for o in t.inplace
]


@pytest.mark.parametrize(("template", "operand"), INPLACE)
def test_output_may_lie_over_an_inplace_operand(template: Template, operand: str) -> None:
    """A copy of the operand dies in the kernel, so that the planner puts the output in its place."""
    from dataclasses import replace

    from tensor_graphs.backends.program.emit.emit import emit
    from tensor_graphs.backends.program.launch.emission import executed
    from tensor_graphs.backends.registry import template as find
    from tensor_graphs.backends.tuning.single_kernel import kernel_plan
    from tensor_graphs.backends.tuning.unfused import FREE
    from tensor_graphs.extract.model.kernel import Call
    from tensor_graphs.extract.model.plan import Step, Value

    drawn = (sample(template, seed, d) for d in ("float32", "int64") for seed in range(12))
    fits = lambda c: c and c.operands[operand].type == c.output.type and c.operands[operand].dense
    tables = ((CONVOLUTIONS, usual_call), (INTEGERS, usual_integer_call), (PRODUCTS, usual_product_call))
    usual = next((made for names, made in tables if template.name in names), None)
    call = usual(template.name) if usual else next(filter(fits, drawn))
    operands = {o: replace(x) for o, x in call.operands.items()}
    plan = kernel_plan(template, call)
    place = list(operands).index(operand)
    kind = call.operands[operand]
    values = [*plan.values, Value(len(plan.values), kind.type, kind.strides, "kernel")]
    copied = len(values) - 1
    first = Step(find("numpy", "np.copy"), Call({"x": kind}, kind, {}), (("x", place),), copied, FREE)
    inputs = tuple((o, copied if o == operand else v) for o, v in plan.steps[0].inputs)
    emitted = emit(
        replace(plan, values=tuple(values), steps=(first, replace(plan.steps[0], inputs=inputs))), reuse_outputs=True
    )
    assert emitted.layout.buffer[plan.outputs[0]] == copied, "the planner did not reuse the operand's memory"
    space = executed(emitted.source, template.name)
    rng = np.random.default_rng(5)
    given = {n: in_layout(random_values(o.type, rng), o) for n, o in call.operands.items()}
    keys = {term.attr("name"): key for key, term in emitted.weights.items()}
    got = space["bind"]({keys[n]: a for n, a in given.items()})()[0]
    np.testing.assert_array_equal(got, compiled(template, call)(given)()[0])


@pytest.mark.parametrize("mode", ["set", "add", "mul", "max", "min"])
def test_torch_writes_updates_as_numpy_does(mode: str) -> None:
    torch = pytest.importorskip("torch")
    rng = np.random.default_rng(0)
    x, u = rng.standard_normal((5, 4)), rng.standard_normal((3, 4))
    index = np.array([[0, -1, 2, 3], [4, 0, -5, 1], [1, 2, 3, -2]])
    want, got = np.empty_like(x), torch.empty(5, 4, dtype=torch.float64)
    numpy_index_helpers.scatter_elements(x, index, u, 0, mode, want)
    operands = [torch.from_numpy(v) for v in (x, index, u)]
    torch_helpers.updated(*operands, 0, mode, got)
    np.testing.assert_allclose(got, want, rtol=1e-14)
    torch_helpers.updated(*operands, 0, mode, operands[0])  # in place
    np.testing.assert_allclose(operands[0], want, rtol=1e-14)
    for beyond in (5, -6):
        with pytest.raises(IndexError, match="out of bounds"):
            torch_helpers.updated(got, torch.full((3, 4), beyond), operands[2], 0, mode, got)


def test_gradients_of_weights_are_told_from_other_convolutions() -> None:
    weight_gradient = next(k for k in backend("torch").templates if k.name == "torch.weight_gradient")

    def applies(
        image: int, kernel: int, result: int, stride: int = 1, pad: int = 0, dilation: int = 1, groups: int = 1
    ) -> bool:
        kinds = {"x": (2, 3, image, image), "w": (4, 3, kernel, kernel), "out": (2, 4, result, result)}
        x, w, out = (Operand(Type(s, "float32"), contiguous(s)) for s in kinds.values())
        attrs = {"strides": (stride,) * 2, "pads": (pad,) * 4, "dilations": (dilation,) * 2, "groups": groups}
        return weight_gradient.applies(Call({"x": x, "w": w}, out, attrs))

    assert applies(8, 8, 3, pad=1) and applies(8, 4, 4, pad=1, dilation=2)  # of 3x3 kernels with stride 1 and 2
    assert not applies(8, 3, 8, pad=1)  # a convolution
    assert not applies(8, 8, 3, pad=1, groups=3)


@pytest.mark.parametrize("backend", ["torch", "c"])
@pytest.mark.parametrize(
    ("left", "right", "added"),
    [((1, 8), (8, 1), (12, 4)), ((12, 8), (8, 4), (3, 12, 4)), ((1, 4, 1, 7), (16, 4, 3, 3), (1, 16, 9, 7)), ((12, 8), (8, 1), (4,))],
)  # fmt: skip
def test_a_residual_that_broadcasts_a_product_is_added_apart(
    backend: str, left: tuple[int, ...], right: tuple[int, ...], added: tuple[int, ...]
) -> None:
    """Kernels with a bias or residual compute the product at the size of the result."""
    if backend == "torch":
        pytest.importorskip("torch")
    x, w, r = (tg.input(name, shape) for name, shape in (("x", left), ("w", right), ("r", added)))
    product = tg.conv(x, w, pads=(1, 1, 1, 1)) if len(left) == 4 else x @ w
    values = [np.random.default_rng(k).standard_normal(s).astype("f4") for k, s in enumerate((left, right, added))]
    options: dict[str, Any] = {"measure": False, "budget": 1.0, "seed": 1}
    found = tg.optimize(tg.relu(product + r), backend=backend, **options)(*values)
    wanted = tg.optimize(tg.relu(product + r), backend="numpy", effort=0, **options)(*values)
    np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-5)


def test_functions_without_mixed_dtypes_get_none() -> None:
    """PyTorch's floor writes no bfloat16 from float32."""
    pytest.importorskip("torch")
    (floor,) = (k for k in backend("torch").templates if k.name == "torch.floor")
    wide, narrow = (Operand(Type((4,), d), (1,)) for d in ("float32", "bfloat16"))
    assert floor.applies(Call({"x": wide}, wide, {})) and not floor.applies(Call({"x": wide}, narrow, {}))


def test_torch_kernels_with_relu_keep_nan() -> None:
    """PyTorch's relu gives NaN for NaN; oneDNN's own gives 0."""
    kernels = [t for t in backend("torch").templates if t.name.startswith("torch.onednn") and "relu" in t.name]
    assert len(kernels) >= 8 or "torch" not in BACKENDS
    for template in kernels:
        call = sample(template, 0, "float32")
        assert call is not None, template.name
        rng = np.random.default_rng(0)
        operands = {n: in_layout(random_values(o.type, rng), o) for n, o in call.operands.items()}
        operands["x"][...] = np.nan
        (got,) = compiled(template, call)(operands)()
        np.testing.assert_array_equal(np.isnan(got), np.isnan(expected(template, call, operands)), template.name)
        assert np.isnan(got).any(), template.name
