"""Declares a composite op: a named operation that is defined by a decomposition into simpler ops.

A decomposition serves as reference, as pattern that recognizes the op, and as fallback. It never contains its own op.
It receives the operands as tensors and the attributes by name.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from inspect import Signature, signature
from typing import Any

from ..ir.tensor import Tensor, make
from ..ops.ops import Op, register


def composite(
    name: str,
    arity: int,
    law: str,
    attrs: Mapping[str, str] | None = None,
    defaults: Mapping[str, Any] | None = None,
    **more: Any,
) -> Callable[[Callable[..., Tensor]], Callable[..., Tensor]]:
    """Decorator that registers a decomposition as a composite op and returns the function that builds nodes of that op.

    The first line of the decomposition's docstring documents the op. The arguments, and `more`, are fields of `Op`;
    unless `floats_only` is given, all operands are floats.
    """
    facts = {"floats_only": True, **more}

    def install(decompose: Callable[..., Tensor]) -> Callable[..., Tensor]:
        doc = (decompose.__doc__ or "").strip().partition("\n")[0]  # none with python -OO
        register(Op(name, arity, law, "composite", attrs or {}, defaults or {}, doc, decompose=decompose, **facts))

        def build(*operands: Any, **values: Any) -> Tensor:
            return make(name, operands[:arity], {**dict(zip(attrs or (), operands[arity:])), **values})

        build.__name__ = build.__qualname__ = name
        build.__doc__, build.__signature__ = decompose.__doc__, _signature(decompose, defaults or {})  # type: ignore[attr-defined]
        return build

    return install


def _signature(decompose: Callable[..., Tensor], defaults: Mapping[str, Any]) -> Signature:
    """The signature of a decomposition, with the defaults of its attributes."""
    own = signature(decompose)
    given = [p.replace(default=defaults.get(name, p.default)) for name, p in own.parameters.items()]
    return own.replace(parameters=given)


def expand(node: Tensor) -> Tensor:
    """The term that a composite node stands for, after one step of decomposition."""
    decompose = node.entry.decompose
    assert decompose is not None, f"{node.op} is not composite"
    return decompose(*node.args, **dict(node.attrs))
