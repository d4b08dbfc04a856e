"""Makes a program of one kernel, for measuring and tests, and operand values for it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from ...egraph.builders import builders as api
from ...egraph.ir.graph import Graph
from ...egraph.types import dtypes
from ...egraph.types.dims import concrete
from ...extract.model.kernel import Call, Operand, Template
from ...extract.model.meaning import output_terms
from ...extract.model.plan import Plan, Step, Value
from ...extract.model.pricing import Priced
from ..program.launch.emission import emit_for, executed
from ..registry import backend
from ..runtime.marshalling import array_of, tensor_of
from .gpu_operands import place

Array = np.ndarray[Any, Any]
Bound = Callable[[], tuple[Any, ...]]


def kernel_plan(template: Template, call: Call) -> Plan:
    """Plan of a single step whose operands are weights, so that a call runs only the kernel."""
    roots = output_terms(template, call)
    values = [Value(i, o.type, o.strides, "weight") for i, o in enumerate(call.operands.values())]
    made = tuple(range(len(values), len(values) + len(roots)))
    values += [Value(v, o.type, o.strides, "kernel") for v, o in zip(made, call.outputs, strict=True)]
    weights = {i: api.param(n, o.type.shape, o.type.dtype) for i, (n, o) in enumerate(call.operands.items())}
    price = Priced(0.0, 0.0, 0.0, "bound")
    inputs = tuple((n, i) for i, n in enumerate(call.operands))
    step = Step(template, call, inputs, made[0], price, template.pattern, made[1:])
    return Plan(Graph.of(roots, name=template.name), tuple(values), (step,), weights, made, {}, 0.0, 0.0)


def compiled(template: Template, call: Call, device: str = "") -> Callable[[Mapping[str, Any]], Bound]:
    """Function from operands to a zero-argument function, which runs the kernel on them and returns its outputs.

    `device`: where a kernel on tensors runs; "" means its backend's device.
    """
    emitted = emit_for(kernel_plan(template, call), reuse_outputs=True)
    keys = {term.attr("name"): key for key, term in emitted.weights.items()}
    bind = executed(emitted.source, template.name)["bind"]

    def bound(operands: Mapping[str, Any]) -> Bound:
        weights = {keys[name]: array for name, array in operands.items() if name in keys}
        run: Bound = bind(weights, None, device) if device else bind(weights)
        return run

    return bound


def in_layout(array: Array, operand: Operand) -> Array:
    """The values of an array laid out in memory as an operand is: axes ordered by stride; stride 0 means broadcast."""
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
    """Run a kernel on operands in any layout and float dtype; returns its first output as a new array."""
    return run_outputs(template, call, operands)[0]


def run_outputs(template: Template, call: Call, operands: Mapping[str, Array], device: str = "") -> list[Array]:
    """Run a kernel on operands in any layout and float dtype; returns its outputs as new arrays. `device`: where a
    kernel on tensors runs; "" means its backend's device."""
    given = {
        name: np.asarray(array).astype(dtypes.numpy_dtype(call.operands[name].type.dtype), copy=False)
        for name, array in operands.items()
    }
    own = backend(template.backend).device
    if not own.on_gpu:
        found = compiled(template, call)({n: in_layout(a, call.operands[n]) for n, a in given.items()})()
        return [np.array(a) for a in found]
    where = device or own.name
    placed = {n: place(tensor_of(a), call.operands[n], where) for n, a in given.items()}
    return [array_of(a).copy() for a in compiled(template, call, where)(placed)()]


def random_values(kind: Any, rng: np.random.Generator, high: int = 5) -> Array:
    """Random values of the type `kind`: normal floats, integers below `high`, bools."""
    shape, dtype = concrete(kind.shape), kind.dtype
    if dtype == "bool":
        return np.asarray(rng.random(shape) < 0.5)
    if not dtypes.is_float(dtype):
        return np.asarray(rng.integers(0, max(high, 1), shape)).astype(dtypes.numpy_dtype(dtype))
    return np.asarray(rng.standard_normal(shape, np.float32)).astype(dtypes.numpy_dtype(dtype))
