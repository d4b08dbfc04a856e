"""JAX library kernels: one row per op, so that every plan can be completed without NumPy.

A kernel is a function of `jax.numpy` text, written from the op's decomposition into atomic ops.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from hashlib import blake2b
from typing import Any

from ...egraph.ir import builders, dtypes
from ...egraph.ir.dims import concrete
from ...egraph.ir.graph import Tensor, make, topological
from ...egraph.ir.interpret import expand_all
from ...egraph.ir.ops import OPS
from ...extract.model.kernel import Call, LibraryKernel, identify
from .spelling import POINTWISE, dtype_text, number

__all__ = ["GAPS", "TEMPLATES"]

#: Op -> why it has no JAX kernel.
GAPS = {"recurrent": "notimpl: the layers' packed weights have no text in JAX"}
_KEYWORDS = ("and", "or", "not")

Spell = Callable[[Tensor, Sequence[str]], str]


def _wide(node: Tensor) -> str:
    """The dtype in which a node accumulates."""
    return "jnp.float32" if node.dtype in ("float16", "bfloat16") else dtype_text(node.dtype)


def _formatted(text: str) -> Spell:
    return lambda node, args: text.format(*args)


def _position(function: str) -> Spell:
    return lambda node, args: f"jnp.{function}({args[0]}, axis={node.attr('axis')}, keepdims=True)"


def _reduction(function: str) -> Spell:
    def text(node: Tensor, args: Sequence[str]) -> str:
        dtype = f", dtype={_wide(node)}" if function in ("sum", "prod") else ""
        empty = f", initial={number(_least(node, function), node.dtype)}" if function in ("max", "min") else ""
        return f"jnp.{function}({args[0]}, axis={node.attr('axes')!r}, keepdims=True{dtype}{empty})"

    return text


def _least(node: Tensor, function: str) -> Any:
    return (dtypes.least if function == "max" else dtypes.greatest)(node.dtype)


def _conv(node: Tensor, args: Sequence[str]) -> str:
    n, pads = node.rank - 2, node.attr("pads")
    return (
        f"jax.lax.conv_general_dilated({args[0]}, {args[1]}, {node.attr('strides')!r}, "
        f"{[(pads[i], pads[n + i]) for i in range(n)]!r}, rhs_dilation={node.attr('dilations')!r}, "
        f"feature_group_count={node.attr('groups')}, precision='highest', preferred_element_type={_wide(node)})"
    )


def _argsort(node: Tensor, args: Sequence[str]) -> str:
    return f"jnp.argsort({args[0]}, axis={node.attr('axis')}, stable=True, descending={node.attr('descending')})"


def _slice(node: Tensor, args: Sequence[str]) -> str:
    places = ":, " * node.attr("axis")
    return f"{args[0]}[{places}{node.attr('start')}:{node.attr('stop')}:{node.attr('step')}]"


def _windows(node: Tensor, args: Sequence[str]) -> str:
    axis, size, step, wide = (node.attr(a) for a in ("axis", "size", "stride", "dilation"))
    count = concrete(node.shape)[axis]
    places = f"jnp.arange({count})[:, None] * {step} + jnp.arange({size})[None, :] * {wide}"
    return f"jnp.moveaxis(jnp.take({args[0]}, {places}, axis={axis}), {axis + 1}, -1)"


def _pad(node: Tensor, args: Sequence[str]) -> str:
    widths = [(0, 0)] * node.rank
    widths[node.attr("axis")] = node.attr("lo"), node.attr("hi")
    return f"jnp.pad({args[0]}, {widths!r}, constant_values={number(node.attr('value'), node.dtype)})"


def _inside(index: str, size: int) -> str:
    """Indices with negative ones counted from the end, clipped."""
    return f"jnp.clip(jnp.where({index} < 0, {index}.astype(jnp.int64) + {size}, {index}), 0, {size - 1})"


def _gather_elements(node: Tensor, args: Sequence[str]) -> str:
    x, axis = node.args[0], node.attr("axis")
    return f"jnp.take_along_axis({args[0]}, {_inside(args[1], concrete(x.shape)[axis])}, axis={axis})"


def _scatter(node: Tensor, args: Sequence[str]) -> str:
    axis = node.attr("axis")
    method = {"mul": "multiply"}.get(node.attr("mode"), node.attr("mode"))
    places = [f"jnp.arange({n}).reshape({[-1 if i == d else 1 for i in range(node.rank)]})"
              for d, n in enumerate(concrete(node.args[1].shape))]  # fmt: skip
    places[axis] = args[1]
    return f"{args[0]}.at[{', '.join(places)}].{method}({args[2]})"


#: Atomic op -> its text, given the node and the texts of its operands.
ATOMIC: dict[str, Spell] = {
    **{op: _formatted(text) for op, text in POINTWISE.items()},
    **{op: _reduction(op) for op in ("sum", "max", "min", "prod")},
    **{op: _position(op) for op in ("argmax", "argmin")},
    "cast": lambda n, a: a[0] if n.dtype != "bool" else f"({a[0]} != 0)",
    "cumsum": lambda n, a: f"jnp.cumsum({a[0]}, axis={n.attr('axis')}, dtype={_wide(n)})",
    "argsort": _argsort,
    "matmul": lambda n, a: f"jnp.matmul({a[0]}, {a[1]}, precision='highest', preferred_element_type={_wide(n)})",
    "conv": _conv,
    "reshape": lambda n, a: f"jnp.reshape({a[0]}, {concrete(n.shape)})",
    "permute": lambda n, a: f"jnp.transpose({a[0]}, {n.attr('perm')!r})",
    "broadcast_to": lambda n, a: f"jnp.broadcast_to({a[0]}, {concrete(n.shape)})",
    "slice": _slice,
    "flip": lambda n, a: f"jnp.flip({a[0]}, {n.attr('axis')})",
    "windows": _windows,
    "concat": lambda n, a: f"jnp.concatenate(({', '.join(a)}), axis={n.attr('axis')})",
    "pad": _pad,
    "gather": lambda n, a: f"jnp.take({a[0]}, {a[1]}, axis={n.attr('axis')}, mode='clip')",
    "gather_elements": _gather_elements,
    "scatter_elements": _scatter,
    "full": lambda n, a: f"jnp.full({concrete(n.shape)}, {number(n.attr('value'), n.dtype)})",
    "iota": lambda n, a: f"jax.lax.broadcasted_iota({dtype_text(n.dtype)}, {concrete(n.shape)}, {n.attr('axis')})",
}  # fmt: skip


def _definition(op: str, call: Call) -> tuple[str, str]:
    """(name, text) of the function that computes an op for a call's operand types and attributes."""
    leaves = [builders.input(n, o.type.shape, o.type.dtype) for n, o in call.operands.items()]
    (root,) = expand_all([make(op, leaves, dict(call.attrs))], wide_means=True)
    names: dict[Tensor, str] = {}
    lines: list[str] = []
    for node in topological([root]):
        if node.op == "input":
            names[node] = str(node.attr("name"))
            continue
        names[node] = f"v{len(lines)}"
        text = ATOMIC[node.op](node, [names[a] for a in node.args])
        lines.append(f"    {names[node]} = ({text}).astype({dtype_text(node.dtype)})")
    body = "\n".join([*lines, f"    return {names[root]}.astype({dtype_text(call.output.type.dtype)})"])
    head = f"({', '.join(call.operands)}):\n{body}\n"
    name = f"{op}_{blake2b(repr((op, head, [o.type for o in leaves])).encode(), digest_size=5).hexdigest()}"
    return name, f"def {name}{head}"


def _row(op: str) -> LibraryKernel:
    entry = OPS[op]
    operands = [f"x{i}" for i in range(entry.arity)]
    attrs = [f"{a}={a}" for a in entry.attrs]
    name = f"{op}_" if op in _KEYWORDS else op

    def source(call: Call) -> Mapping[str, str]:
        made, text = _definition(op, call)
        return {made: text}

    code = identify(
        lambda call: f"{_definition(op, call)[0]}({', '.join(call.names[o] for o in operands)})",
        f"pallas.library[{op}]",
    )
    family = "view" if op == "reshape" else "library"
    return LibraryKernel(
        f"view.{op}" if op == "reshape" else f"jnp.{op}", "pallas", f"{name}({', '.join([*operands, *attrs])})", code,
        family=family, dense=("*",), source=source,
    )  # fmt: skip


def _rows() -> Iterator[LibraryKernel]:
    for op, entry in OPS.items():
        if entry.arity and op not in GAPS and (entry.composite or op in ATOMIC):
            yield _row(op)


TEMPLATES = tuple(_rows())
