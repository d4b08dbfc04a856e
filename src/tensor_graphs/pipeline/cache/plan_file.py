"""Writes and reads plans as JSON: values, steps (kernel calls), weights and kernel names.

The file contains no code. A library kernel is stored by name, a generated kernel by its term, from which it is
generated again, a size-polymorphic C kernel by the kernel at the sizes of the search from which it was made. Each has
the hash of its body; a kernel that is missing in this version, or has another body, is a UsageError. Sizes and types
are checked as in model files.
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from ...backends.generate.free_terms import SizedCall
from ...backends.program.launch.launching import OVERLAPS
from ...backends.tuning.jobs import job_of, read_job, template_of_job
from ...egraph.ir.graph import Graph
from ...egraph.ir.tensor import Tensor, constant
from ...egraph.ir.weight_data import load_data
from ...egraph.ops.ops import Type
from ...egraph.types import dtypes
from ...egraph.types.dims import DimExpr
from ...errors import UsageError
from ...extract.model.kernel import Call, Operand, Template
from ...extract.model.plan import Plan, Step, Value
from ...extract.model.pricing import Priced
from ...extract.model.sizes import bound_call
from ...models.files.graph_json import dim_from_json, dim_to_json, graph_from_json, graph_to_json
from ...wording import with_article

LARGEST_CONSTANT = 1 << 16  # maximum bytes of a constant that the plan has and the graph lacks
ORIGINS = ("input", "state", "weight", "kernel", "view")

Json = dict[str, Any]
Lift = Callable[[Template, Call], SizedCall | None]
"""Function from a kernel at a graph's generic sizes and its call to the size-polymorphic kernel (`Symbolic.lift`)."""


# ---------------------------------------------------------------- writing
def plan_to_json(plan: Plan) -> Json:
    """The plan as JSON, without its graph. Raises UsageError if it contains something not serializable."""
    templates: dict[Template, int] = {}
    kernels: list[Json] = []
    steps = []
    for step in plan.steps:
        if step.template not in templates:
            templates[step.template] = len(kernels)
            kernels.append(_kernel_out(step.template, call_at_searched_sizes(plan, step.call)))
        steps.append(_step_out(step, templates[step.template]))
    return {
        "values": [[_type_out(v.type), _out(v.strides), v.origin, v.name, v.base, v.carried] for v in plan.values],
        "kernels": kernels, "steps": steps, "weights": _weights_out(plan), "outputs": list(plan.outputs),
        "updates": dict(plan.updates), "cost": plan.cost, "lower_bound": plan.lower_bound, "sizes": dict(plan.sizes),
        **({"priced": dict(plan.priced)} if plan.priced else {}),
        **({"launching": plan.launching} if plan.launching else {}),
    }  # fmt: skip


def _kernel_out(template: Template, call: Call) -> Json:
    if template.lifted_from is not None:
        return {"identity": template.identity, "generic": job_of(*template.lifted_from)}
    return {k: v for k, v in job_of(template, call).items() if k != "call"}


def call_at_searched_sizes(plan: Plan, call: Call) -> Call:
    """The kernel call `call` of a plan with each free size replaced by the concrete size for which the plan was found
    (`Plan.sizes`); unchanged if the plan has no free sizes."""
    return bound_call(call, plan.sizes) if plan.sizes else call


def _step_out(step: Step, kernel: int) -> Json:
    price = step.cost
    return {
        "kernel": kernel, "call": _call_out(step.call), "inputs": [list(pair) for pair in step.inputs],
        "output": step.output, "more": list(step.more), "doc": step.doc,
        "cost": [price.us, price.low, price.high, price.source, [list(pair) for pair in price.schedule]],
    }  # fmt: skip


def _call_out(call: Call) -> Json:
    return {
        "operands": {name: _operand_out(o) for name, o in call.operands.items()},
        "outputs": [_operand_out(o) for o in call.outputs], "attrs": {k: _out(v) for k, v in call.attrs.items()},
        "schedule": dict(call.schedule), "tuned": {k: list(v) for k, v in call.tuned.items()},
    }  # fmt: skip


def _operand_out(operand: Operand) -> list[Any]:
    return [_type_out(operand.type), _out(operand.strides)]


def _type_out(kind: Type) -> list[Any]:
    return [kind.dtype, _out(tuple(kind.shape))]


def _out(value: Any) -> Any:
    if isinstance(value, DimExpr):
        return {"dim": dim_to_json(value)}
    if isinstance(value, tuple):
        return [_out(v) for v in value]
    if isinstance(value, float):
        return {"float": repr(value)}
    if value is None or type(value) in (bool, int, str):
        return value
    if isinstance(value, np.integer):
        return int(value)
    raise UsageError(f"{with_article(type(value).__name__)} cannot be written into a plan's file")


def _weights_out(plan: Plan) -> Json | None:
    """The terms of the weights as a graph, with the data of its constants: inline, or as the digest of a constant that
    the plan's graph has as well. None without weights.
    """
    if not plan.weights:
        return None
    terms = Graph.of({str(number): term for number, term in plan.weights.items()})
    value, arrays = graph_to_json(terms)
    given = {_constant_key(n) for n in plan.graph.leaves("constant")}
    constants: Json = {}
    for i, node in enumerate(terms.nodes()):
        if node.op != "constant":
            continue
        array = load_data(arrays[f"constant/{i}"])
        if (key := _constant_key(node)) in given:
            constants[f"constant/{i}"] = {"given": key}
        elif array.nbytes <= LARGEST_CONSTANT:
            text = base64.b64encode(np.ascontiguousarray(array).tobytes()).decode()
            constants[f"constant/{i}"] = {"dtype": node.dtype, "shape": list(array.shape), "data": text}
        else:
            raise UsageError(
                f"the plan has a constant of {array.nbytes} bytes; a plan file holds at most {LARGEST_CONSTANT} bytes of one"
            )
    return {"graph": value, "constants": constants}


def _constant_key(node: Tensor) -> str:
    """Text that identifies a constant: its digest is that of its bytes, which two shapes or dtypes may share."""
    return f"{node.attr('digest')} {node.type}"


# ---------------------------------------------------------------- reading
def plan_from_json(data: Json, graph: Graph, lift: Lift | None = None) -> Plan:
    """Parse the plan of a graph.

    `lift` makes a kernel for every size from a kernel and its call at generic sizes (`Symbolic.lift`); it is required
    if the graph has free dimensions and the plan has C kernels. Raises UsageError (or another named error) that says
    what is malformed, or which kernel has changed.
    """
    try:
        sizes = {str(k): _int(v) for k, v in data["sizes"].items()}
        values = [_value(i, item) for i, item in enumerate(data["values"])]
        calls = [_call(item["call"]) for item in data["steps"]]
        first = {item["kernel"]: call for item, call in reversed(list(zip(data["steps"], calls)))}
        templates = {
            k: _template(data["kernels"][k], bound_call(call, sizes) if sizes else call, lift)
            for k, call in first.items()
        }
        steps = [_step(item, templates[item["kernel"]], call, len(values)) for item, call in zip(data["steps"], calls)]
        outputs = tuple(_place(v, len(values)) for v in data["outputs"])
        updates = {str(k): _place(v, len(values)) for k, v in data["updates"].items()}
        return Plan(
            graph, tuple(values), tuple(steps), _weights(data["weights"], graph), outputs, updates, float(data["cost"]), float(data["lower_bound"]),
            sizes=sizes, priced={str(k): _int(v) for k, v in data.get("priced", {}).items()}, launching=_launching(data),
        )  # fmt: skip
    except (LookupError, TypeError, ValueError, AttributeError, ArithmeticError, RecursionError) as error:
        raise UsageError(f"not a plan: {type(error).__name__}: {error}") from None


def _template(item: Json, call: Call, lift: Lift | None) -> Template:
    if "generic" not in item:
        return template_of_job(item, call)
    origin, (origin_call, *_) = read_job(item["generic"])
    made = lift(origin, origin_call) if lift is not None else None
    if made is None:
        raise UsageError(f"{origin.name} cannot be written for every size")
    if made.free_template.identity != item["identity"]:
        raise UsageError(f"{origin.name} is another kernel in this version")
    return made.free_template


def _launching(data: Json) -> str:
    found = data.get("launching", "")
    if found not in OVERLAPS:
        raise ValueError(f"{found!r} is no launch overlap")
    return str(found)


def _int(value: Any) -> int:
    if type(value) is not int:
        raise ValueError(f"{value!r} is no number")
    return value


def _place(value: Any, count: int) -> int:
    if not 0 <= _int(value) < count:
        raise ValueError(f"there is no value {value}")
    return int(value)


def _in(value: Any) -> Any:
    if isinstance(value, list):
        return tuple(map(_in, value))
    if isinstance(value, dict):
        ((kind, inner),) = value.items()
        return float(inner) if kind == "float" else dim_from_json(inner)
    return value


def _type(item: Sequence[Any]) -> Type:
    return Type(_in(item[1]), dtypes.check(str(item[0])))


def _operand(item: Sequence[Any]) -> Operand:
    return Operand(_type(item[0]), _in(item[1]))


def _value(number: int, item: Sequence[Any]) -> Value:
    kind, strides, origin, name, base, carried = item
    if origin not in ORIGINS or not -1 <= _int(base) < number:
        raise ValueError(f"value {number} is {origin!r} of {base}")
    return Value(number, _type(kind), _in(strides), origin, str(name), base, carried and dtypes.check(str(carried)))


def _call(item: Json) -> Call:
    first, *more = map(_operand, item["outputs"])
    return Call(
        {str(name): _operand(o) for name, o in item["operands"].items()}, first,
        {str(name): _in(v) for name, v in item["attrs"].items()}, {},
        {str(name): _int(v) for name, v in item["schedule"].items()}, tuple(more),
        {str(name): tuple(map(_int, shape)) for name, shape in item["tuned"].items()},
    )  # fmt: skip


def _step(item: Json, template: Template, call: Call, count: int) -> Step:
    us, low, high, source, schedule = item["cost"]
    inputs = tuple((str(name), _place(v, count)) for name, v in item["inputs"])
    if set(template.operands) != set(call.operands) or len(template.terms) != len(call.outputs):
        raise ValueError(f"{template.name} takes other operands")
    price = Priced(float(us), float(low), float(high), str(source), tuple((str(n), _int(v)) for n, v in schedule))
    more = tuple(_place(v, count) for v in item["more"])
    return Step(template, call, inputs, _place(item["output"], count), price, str(item["doc"]), more)


def _weights(item: Json | None, graph: Graph) -> Mapping[int, Tensor]:
    if item is None:
        return {}
    given = {_constant_key(n): n for n in graph.leaves("constant")}
    arrays: dict[str, Tensor] = {}
    for name, held in item["constants"].items():
        if "given" in held:
            arrays[name] = given[held["given"]]
        else:
            flat = np.frombuffer(base64.b64decode(held["data"]), dtypes.numpy_dtype(dtypes.check(held["dtype"])))
            arrays[name] = constant(flat.reshape([_int(d) for d in held["shape"]]))
    terms = graph_from_json(item["graph"], arrays)
    return {int(name): term for name, term in zip(terms.names, terms.outputs, strict=True)}


def priced_steps(plan: Plan) -> list[tuple[Step, Call]]:
    """The steps that are not views, each with the call under which the cost store has its time.

    A size-polymorphic kernel is replaced by the kernel at the searched sizes, which was measured.
    """
    found = []
    sizes = plan.priced or plan.sizes
    for step in plan.steps:
        if not step.is_view:
            template, call = step.template.measured_as(bound_call(step.call, sizes) if sizes else step.call)
            found.append((replace(step, template=template), replace(call, names={})))
    return found
