"""JAX text of ops (from the op table), dtypes and numbers, for generated kernels and library kernels."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from string import Formatter
from typing import Any

from ...egraph.ir import dtypes
from ...egraph.ir.dims import concrete
from ...egraph.ir.ops import OPS
from ...egraph.ir.tensor import Tensor

#: Text of elementwise ops of the kernel IR that are not in the op table.
_KERNEL_OPS = {"exp2": "jnp.exp2({0})"}


def scalar_text(op: str) -> str:
    """JAX format string of an elementwise op over its operands; "" if it has none."""
    return OPS[op].text.jax if op in OPS else _KERNEL_OPS.get(op, "")


def node_text(node: Tensor, args: Sequence[str]) -> str:
    """JAX text of a node, from its op's entry (`TargetText.jax`), over the texts of its operands."""
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
    """JAX text of the dtype in which a node accumulates."""
    return "jnp.float32" if node.dtype in ("float16", "bfloat16") else dtype_text(node.dtype)


def dtype_text(dtype: str) -> str:
    """JAX text of a dtype."""
    return f"jnp.{'bool_' if dtype == 'bool' else dtypes.check(dtype)}"


def number(value: float | int | bool, dtype: str) -> str:
    """JAX text of a constant of a dtype."""
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
