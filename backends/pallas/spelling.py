"""Writes the JAX text of ops (from the op table), dtypes and numbers, for generated kernels and library kernels."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from string import Formatter
from typing import Any

from ...egraph.ir.tensor import Tensor
from ...egraph.ops.ops import OPS
from ...egraph.types import dtypes
from ...egraph.types.dims import concrete

#: Text of elementwise ops of the kernel IR that are not in the op table.
_KERNEL_OPS = {"exp2": "jnp.exp2({0})"}


def scalar_text(op: str) -> str:
    """Format string of the JAX text of the elementwise operation `op`, with `{0}`, `{1}`, … for the operands; "" if
    there is none."""
    return OPS[op].text.jax if op in OPS else _KERNEL_OPS.get(op, "")


def node_text(node: Tensor, args: Sequence[str]) -> str:
    """JAX expression of `node`, whose operands have the expressions `args`, from its op's entry in the op table
    (`TargetText.jax`)."""
    return Formatter().vformat(node.entry.text.jax, tuple(args), _Fields(node))


class _Fields(Mapping[str, Any]):
    """Fields of a JAX format string for a node: the node's attributes, its shape and value as JAX text, and its
    dtypes."""

    def __init__(self, node: Tensor) -> None:
        self.node = node

    def __getitem__(self, name: str) -> Any:
        derived = _DERIVED.get(name)
        return derived(self.node) if derived is not None else self.node.attr(name)

    def __iter__(self) -> Iterator[str]:
        return iter((*self.node.entry.attrs, *_DERIVED))

    def __len__(self) -> int:
        return len({*self.node.entry.attrs, *_DERIVED})


def wide_text(node: Tensor) -> str:
    """JAX expression of the dtype in which the reduction or product `node` accumulates: float32 for 16-bit floats, else
    its own."""
    return "jnp.float32" if node.dtype in ("float16", "bfloat16") else dtype_text(node.dtype)


def dtype_text(dtype: str) -> str:
    """JAX expression of the dtype called `dtype`."""
    return f"jnp.{'bool_' if dtype == 'bool' else dtypes.check(dtype)}"


def number(value: float | int | bool, dtype: str) -> str:
    """JAX expression of the constant `value` in a dtype."""
    if isinstance(value, float) and not math.isfinite(value):
        text = "jnp.nan" if math.isnan(value) else "jnp.inf" if value > 0 else "-jnp.inf"
    else:
        text = repr(value)
    return f"{dtype_text(dtype)}({text})"


_DERIVED: dict[str, Callable[[Tensor], Any]] = {
    "shape": lambda node: concrete(node.shape),
    "dtype": lambda node: dtype_text(node.dtype),
    "value": lambda node: number(node.attr("value"), node.dtype),
    "wide": wide_text,
    "least": lambda node: number(dtypes.least(node.dtype), node.dtype),
    "greatest": lambda node: number(dtypes.greatest(node.dtype), node.dtype),
}
