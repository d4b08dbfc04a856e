"""Declares JAX library kernels, one per op, so that every plan can be completed without NumPy.

A kernel is a `jax.numpy` function whose text follows from the op's decomposition into atomic ops (those without a
decomposition).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from hashlib import blake2b

from ...egraph.builders import builders
from ...egraph.evaluate.interpret import expand_all
from ...egraph.ir.tensor import Tensor, make, topological
from ...egraph.ops.index_maps import AffineMap
from ...egraph.ops.ops import OPS, Op
from ...egraph.types.dims import concrete
from ...extract.model.kernel import Call
from ...extract.model.library_kernel import LibraryKernel, identify
from .spelling import dtype_text, node_text, number, wide_text

__all__ = ["GAPS", "TEMPLATES"]

#: Op -> why it has no JAX kernel.
GAPS = {"recurrent": "notimpl: the layers' packed weights have no text in JAX"}
_KEYWORDS = ("and", "or", "not")

Spell = Callable[[Tensor, Sequence[str]], str]


def _conv(node: Tensor, args: Sequence[str]) -> str:
    n, pads = node.rank - 2, node.attr("pads")
    return (
        f"jax.lax.conv_general_dilated({args[0]}, {args[1]}, {node.attr('strides')!r}, "
        f"{[(pads[i], pads[n + i]) for i in range(n)]!r}, rhs_dilation={node.attr('dilations')!r}, "
        f"feature_group_count={node.attr('groups')}, precision='highest', preferred_element_type={wide_text(node)})"
    )


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
    """JAX text of indices along an axis of `size`: negative indices count from the end, others are clipped."""
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


def _cast(node: Tensor, args: Sequence[str]) -> str:
    return args[0] if node.dtype != "bool" else f"({args[0]} != 0)"


def _mapped(node: Tensor, args: Sequence[str]) -> str:
    """JAX text of a view op, by its index map: the operand indexed by one array per axis."""
    assert node.entry.index_map is not None
    found = node.entry.index_map(dict(node.attrs), [a.shape for a in node.args])
    assert isinstance(found, AffineMap), f"{node.op} needs a text in JAX"
    grid = [f"jnp.arange({n}).reshape({[-1 if i == d else 1 for i in range(node.rank)]})"
            for d, n in enumerate(concrete(node.shape))]  # fmt: skip
    places = (" + ".join([str(a.offset), *(f"{factor} * {grid[d]}" for d, factor in a.terms)]) for a in found.axes)
    return f"{args[0]}[{', '.join(places)}]"


#: Type law -> text of the ops under it whose text is computed, given the node and the texts of its operands.
COMPUTED: dict[str, Spell] = {
    "cast": _cast, "conv": _conv, "slice": _slice, "windows": _windows, "pad": _pad,
    "gather_elements": _gather_elements, "scatter_elements": _scatter,
}  # fmt: skip


def speller(entry: Op) -> Spell | None:
    """Function that writes an op without a decomposition in JAX, from a node and the Python texts of its operands; None
    if JAX has no text for the op.

    It comes from the op's entry in the op table, its rule for result types, or its index map.
    """
    if entry.text.jax:
        return node_text
    return COMPUTED.get(entry.law) or (_mapped if entry.index_map is not None else None)


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
        spell = speller(node.entry)
        assert spell is not None, f"{node.op} has no text in JAX"
        text = spell(node, [names[a] for a in node.args])
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
        if entry.arity and op not in GAPS and (entry.composite or speller(entry) is not None):
            yield _row(op)


TEMPLATES = tuple(_rows())
