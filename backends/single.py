"""One kernel on its own: its program, its operands' values, its meaning in float64. For measuring and for tests."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from ..egraph import api, dtypes
from ..egraph.dims import concrete
from ..egraph.graph import Graph, Tensor
from ..egraph.interpret import evaluate
from ..egraph.pattern import build
from ..extract.kernel import Call, Operand, Plan, Priced, Step, Template, Value
from .emit import emit

Array = np.ndarray[Any, Any]
Bound = Callable[[], tuple[Array, ...]]


def meaning(template: Template, call: Call) -> Tensor:
    """The template's pattern over params named like its operands."""
    leaves = {
        name: api.param(name, call.operands[name].type.shape, call.operands[name].type.dtype)
        for name in template.operands
    }
    return build(template.term, leaves, call.attrs)


def kernel_plan(template: Template, call: Call) -> Plan:
    """A plan of this one step; its operands are weights, so that a call does nothing but the kernel."""
    root = meaning(template, call)
    values = [Value(i, o.type, o.strides, "weight") for i, o in enumerate(call.operands.values())]
    made = len(values)
    values.append(Value(made, call.output.type, call.output.strides, "kernel"))
    weights = {i: api.param(n, o.type.shape, o.type.dtype) for i, (n, o) in enumerate(call.operands.items())}
    price = Priced(0.0, 0.0, 0.0, "bound")
    step = Step(template, call, tuple((n, i) for i, n in enumerate(call.operands)), made, price, template.pattern)
    return Plan(Graph.of(root, name=template.name), tuple(values), (step,), weights, (made,), {}, 0.0, 0.0)


def compiled(template: Template, call: Call) -> Callable[[Mapping[str, Array]], Bound]:
    """operands -> a function without arguments that runs the kernel on them and returns (output,)."""
    emitted = emit(kernel_plan(template, call), reuse_outputs=True)
    namespace: dict[str, Any] = {"__name__": "tensor_graphs_kernel"}
    exec(compile(emitted.source, f"<kernel {template.name}>", "exec"), namespace)
    keys = {term.attr("name"): key for key, term in emitted.weights.items()}
    bind = namespace["bind"]

    def bound(operands: Mapping[str, Array]) -> Bound:
        run: Bound = bind({keys[name]: array for name, array in operands.items() if name in keys})
        return run

    return bound


def expected(template: Template, call: Call, operands: Mapping[str, Array]) -> Array:
    """What the kernel must compute, in float64."""
    root = meaning(template, call)
    return evaluate([root], {}, params=dict(operands), float64=True)[0]


def laid(array: Array, operand: Operand) -> Array:
    """The values in the operand's layout: axes in the order of its strides, or repeated where a stride is 0."""
    shape = concrete(operand.type.shape)
    if array.size == 0 or not shape:
        return array
    if any(s == 0 and d > 1 for s, d in zip(operand.strides, shape)):
        keep = tuple(slice(0, 1) if s == 0 else slice(None) for s in operand.strides)
        return np.broadcast_to(np.ascontiguousarray(array[keep]), shape)
    order = sorted(range(len(shape)), key=lambda i: (-abs(operand.strides[i]), i))
    span = 1 + sum((d - 1) * abs(s) for d, s in zip(shape, operand.strides))
    if span == array.size and all(s >= 0 for s in operand.strides):
        return np.ascontiguousarray(array.transpose(order)).transpose(np.argsort(order))
    room = np.zeros(span, array.dtype)
    start = sum((d - 1) * -s for d, s in zip(shape, operand.strides) if s < 0)
    view = np.lib.stride_tricks.as_strided(room[start:], shape, [s * array.itemsize for s in operand.strides])
    view[...] = array
    return view


def run_template(template: Template, call: Call, operands: Mapping[str, Array]) -> Array:
    """A kernel's output on operands given in any layout, as a fresh array."""
    given = {name: laid(np.asarray(array), call.operands[name]) for name, array in operands.items()}
    return compiled(template, call)(given)()[0].copy()


def random_values(kind: Any, rng: np.random.Generator, high: int = 5) -> Array:
    """Values of a type: normal floats, ints below `high`, bools."""
    shape, dtype = concrete(kind.shape), kind.dtype
    if dtype == "bool":
        return rng.random(shape) < 0.5
    if not dtypes.is_float(dtype):
        return rng.integers(0, max(high, 1), shape).astype(dtypes.numpy_dtype(dtype))
    return rng.standard_normal(shape, np.float32).astype(dtypes.numpy_dtype(dtype))
