"""A view's strides are NumPy's strides, and a view never copies."""

from __future__ import annotations

import random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tensor_graphs.egraph.builders.builders as t
from tensor_graphs.backends.program.helpers.cpu_helpers import HELPERS
from tensor_graphs.backends.runtime.views import torch_view, view_layout, view_strides, view_templates
from tensor_graphs.egraph.evaluate.interpret import apply
from tensor_graphs.egraph.ir.tensor import make
from tensor_graphs.egraph.ops.ops import Type
from tensor_graphs.egraph.patterns import pattern
from tensor_graphs.errors import ShapeError
from tensor_graphs.extract.model.kernel import Call, Operand

from ..sampled_calls import _RULES, Retry, _Draw

space: dict = {"np": np}
exec(HELPERS["strided"], space)


def _draw(seed: int) -> tuple[str, dict, np.ndarray] | None:
    rng = random.Random(seed)
    template = view_templates()[seed % len(view_templates())]
    draw = _Draw(rng, "float32")
    try:
        draw.want(template.term, Type(tuple(rng.choice((1, 2, 3, 4)) for _ in range(rng.randint(1, 4))), "float32"))
        source = make(template.term.op, [t.param("x", draw.types["x"].shape)], draw.attrs)
    except (Retry, ShapeError):
        return None
    shape = draw.types["x"].shape
    order = rng.sample(range(len(shape)), len(shape))
    x = np.arange(int(np.prod(shape)), dtype=np.float32).reshape([shape[i] for i in order]).transpose(np.argsort(order))
    return source.op, draw.attrs, x


@settings(deadline=None, max_examples=200)
@given(st.integers(0, 1 << 30))
def test_strides_are_those_that_numpy_uses(seed: int) -> None:
    drawn = _draw(seed)
    if drawn is None:
        return
    op, attrs, x = drawn
    operand = Operand(Type(x.shape, "float32"), tuple(s // 4 for s in x.strides))
    node = make(op, [t.param("x", x.shape)], attrs)
    want = apply(node, [x])
    layout = view_layout(op, attrs, operand)
    shares = np.shares_memory(want, x) if want.size else True
    assert (layout is not None) == shares or op != "reshape"
    if layout is None:
        return
    strides, offset = layout
    seen = np.lib.stride_tricks.as_strided(x, want.shape, [s * 4 for s in strides])
    if offset == 0:
        np.testing.assert_array_equal(seen, want)
    template = next(v for v in view_templates() if v.name.endswith(op))
    call = Call({"x": operand}, Operand(node.type, strides), attrs, {"x": "x"})
    made = eval(template.write(call), {**space, "x": x})
    np.testing.assert_array_equal(made, want)
    assert not made.size or np.shares_memory(made, x)
    assert all(s // 4 == r for s, r, d in zip(made.strides, strides, made.shape) if d != 1)


@settings(deadline=None, max_examples=60)
@given(st.integers(0, 1 << 30))
def test_torch_spells_the_same_view(seed: int) -> None:
    torch = pytest.importorskip("torch")
    drawn = _draw(seed)
    if drawn is None:
        return
    op, attrs, x = drawn
    operand = Operand(Type(x.shape, "float32"), tuple(s // 4 for s in x.strides))
    node = make(op, [t.param("x", x.shape)], attrs)
    strides = view_strides(op, attrs, operand)
    if strides is None:
        return
    call = Call({"x": operand}, Operand(node.type, strides), attrs, {"x": "x"})
    text = torch_view(next(v for v in view_templates() if v.name.endswith(op)), call)
    if text is None:
        assert op == "flip"
        return
    np.testing.assert_array_equal(eval(text, {"torch": torch, "x": torch.from_numpy(x)}).numpy(), apply(node, [x]))


def test_a_reshape_across_a_permutation_needs_a_copy() -> None:
    assert view_strides("reshape", {"shape": (12,)}, Operand(Type((3, 4), "float32"), (1, 3))) is None
    assert view_strides("reshape", {"shape": (12,)}, Operand(Type((3, 4), "float32"), (4, 1))) == (1,)
    assert set(_RULES) >= {"reshape", "permute", "slice"} and isinstance(view_templates()[0].term, pattern.PatternCall)
