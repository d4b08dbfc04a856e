"""Imports FX graphs of ATen operators as AOTAutograd traces them, for forward, backward and inference graphs.

Such a graph has no signature: placeholders are tensors or sizes, the output is a flat sequence. `unsupported` returns
the nodes that cannot be imported; `read_traced` imports a module of supported nodes.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

from ...egraph.builders import builders as t
from ...egraph.ir.graph import Graph
from ...egraph.ir.tensor import Tensor
from ...egraph.types import dims as dims_
from ...errors import TensorGraphsError, UnsupportedError
from ..common.sizes import size_tensor
from .arrays import dtype_name
from .graph import ExportReader
from .missing import Missing
from .symbolic_sizes import dimension
from .writes import Writes

#: SymPy functions with results that are no integers -> builders.
_FLOATS: dict[str, Callable[..., Tensor]] = {
    "ToFloat": lambda x: x, "FloatTrueDiv": t.div, "IntTrueDiv": t.div, "Add": t.add, "Mul": t.mul, "Pow": t.pow,
    "FloatPow": t.pow, "OpaqueUnaryFn_sqrt": t.sqrt,
}  # fmt: skip


@dataclass
class _Program:
    """The attributes of a torch.export.ExportedProgram that `ExportReader` reads, for a bare FX module."""

    graph_module: Any
    graph_signature: Any
    state_dict: Mapping[str, Any]
    range_constraints: Mapping[Any, Any]
    constants: Mapping[str, Any] = field(default_factory=dict)

    @property
    def call_spec(self) -> Any:
        """The nesting of the results: a list of all outputs."""
        from torch.utils import _pytree

        count = len(self.graph_signature.output_specs)
        return SimpleNamespace(out_spec=_pytree.tree_flatten([0] * count)[1])


def read_traced(
    module: Any,
    *,
    weights: Mapping[str, Any] | None = None,
    fixed: Mapping[str, int] | None = None,
    name: str = "graph",
) -> tuple[Graph, dict[str, str]]:
    """Return (graph of an FX module of ATen operators, symbol of each of its free dimensions by dimension name).

    `weights`: placeholder name -> tensor, for placeholders that become params. The other tensor placeholders become
    inputs of their names, in order; size placeholders become no input. `fixed`: symbol of a size ("s0") -> value; other
    symbols become free dimensions, named after the first input axis of that size. The outputs are a flat list. Raises
    UnsupportedError for operators that cannot be imported and for symbols that no input's shape has.
    """
    reader = _Reader(_program(module, weights or {}), fixed or {})
    graph = reader.graph(name)
    return graph, {
        n: symbol for symbol, d in reader.sizes.symbols.items() for n in dims_.symbols(d) if n in graph.free_dims
    }


def unsupported(module: Any) -> dict[Any, str]:
    """Operators of an FX module that cannot be imported, as node -> reason.

    Each operator is imported alone: operands that could not be computed are replaced by inputs of their types. A size
    that is an argument of its own, and no size of a tensor, has its value when the module was traced.
    """
    own = tensor_symbols(module)
    return _Prober(_program(module, {}), {n: s for n, s in sizes_of(module).items() if n not in own}).probe()


def sizes_of(module: Any, values: Sequence[Any] | None = None) -> dict[str, int]:
    """Values of the size symbols of an FX module's placeholders.

    `values`: arguments of a call; without them, the values when the module was traced.
    """
    found: dict[str, int] = {}
    for i, node in enumerate(module.graph.find_nodes(op="placeholder")):
        traced = node.meta.get("val")
        given = traced if values is None else values[i]
        for size, value in zip((*getattr(traced, "shape", ()), traced), (*getattr(given, "shape", ()), given)):
            if type(size).__name__ == "SymInt" and size.node.expr.is_Symbol:
                known = size.node.hint if values is None else value
                if known is not None:
                    found[str(size.node.expr)] = int(known)
    return found


def symbols_of(module: Any) -> set[str]:
    """Return all size symbols in the shapes and values of an FX module's nodes."""
    return {str(s) for node in module.graph.nodes for size in _symbolic(node) for s in size.node.expr.free_symbols}


def _symbolic(node: Any) -> list[Any]:
    """Return the symbolic sizes of a node's traced value."""
    value = node.meta.get("val")
    return [s for s in (*getattr(value, "shape", ()), value) if type(s).__name__ in ("SymInt", "SymFloat")]


def tensor_symbols(module: Any, skip: frozenset[str] = frozenset()) -> set[str]:
    """Return the size symbols of a graph module that are, alone and not in an expression, the size of an axis of a
    tensor placeholder (not in `skip`)."""
    tensors = [n for n in module.graph.find_nodes(op="placeholder") if hasattr(n.meta.get("val"), "dtype")]
    sizes = [s for n in tensors if n.name not in skip for s in _symbolic(n)]
    return {str(s.node.expr) for s in sizes if s.node.expr.is_Symbol}


def _program(module: Any, weights: Mapping[str, Any]) -> _Program:
    placeholders = module.graph.find_nodes(op="placeholder")
    results = module.graph.output_node().args[0]

    def spec(name: str, kind: str) -> Any:
        return SimpleNamespace(
            arg=SimpleNamespace(name=name), kind=SimpleNamespace(name=kind), target=name, persistent=True
        )

    inputs = [spec(n.name, "PARAMETER" if n.name in weights else "USER_INPUT") for n in placeholders]
    outputs = [spec(str(r), "USER_OUTPUT") for r in results]
    ranges: Mapping[Any, Any] = {}
    for size in (s for node in placeholders for s in _symbolic(node)):
        ranges = size.node.shape_env.var_to_range
    return _Program(module, SimpleNamespace(input_specs=inputs, output_specs=outputs), weights, ranges)


class _Reader(ExportReader):
    """Interpreter of an FX module; sizes are known before the first node is read."""

    guards_strides = True

    def __init__(self, program: _Program, fixed: Mapping[str, int]) -> None:
        super().__init__(program, (), {}, Writes())
        self.sizes.symbols |= fixed
        for node in program.graph_module.graph.find_nodes(op="placeholder"):
            value = node.meta.get("val")
            if node.name not in program.state_dict and hasattr(value, "dtype"):
                self.sizes.bind(node.name, value.shape, {})

    def _leaf(self, node: Any) -> Any:
        value = node.meta.get("val")
        kind = type(value).__name__
        if kind in ("SymInt", "SymFloat"):
            try:
                return self.sizes.dim(value) if kind == "SymInt" else self._float(value.node.expr)
            except UnsupportedError as error:
                return Missing(error.message)
        return super()._leaf(node)

    def _float(self, expression: Any) -> Tensor:
        """Lower a SymPy expression of sizes that is no integer to a rank-0 float32."""
        if expression.is_number:
            return t.full((), float(expression), "float32")
        if expression.is_integer:
            size = dimension(expression, self.sizes.symbols)
            return t.cast(t.full((), size, "int64") if isinstance(size, int) else size_tensor(size), "float32")
        build = _FLOATS.get(type(expression).__name__)
        if build is None:
            raise UnsupportedError(f"the size {expression} cannot be expressed by operations on tensors")
        return functools.reduce(build, map(self._float, expression.args))


class _Prober(_Reader):
    """Interpreter that imports each node by itself."""

    def probe(self) -> dict[Any, str]:
        """Operators that cannot be imported, as node -> reason (see `unsupported`)."""
        env: dict[Any, Any] = {}
        found: dict[Any, str] = {}
        for node in self.program.graph_module.graph.nodes:
            if node.op in ("placeholder", "get_attr"):
                env[node] = self._guarded(node, self._stand_in)
            elif node.op == "call_function":
                env[node], reason = self._attempt(node, env)
                if reason:
                    found[node] = reason
            elif node.op != "output":
                found[node] = f"a node of kind {node.op}"
        for node in list(found):  # a result of several that cannot be imported
            if node.target is operator.getitem and node.users:
                found.setdefault(node.args[0], found[node])
        for node in env:
            if node.target is operator.getitem and node.args[0] in found:
                found[node] = found[node.args[0]]
        return found

    def _attempt(self, node: Any, env: Mapping[Any, Any]) -> tuple[Any, str]:
        """Return (imported value or a stand-in, reason why it was not imported or "")."""
        if type(node.meta.get("val")).__name__ in ("SymInt", "SymFloat", "SymBool"):
            return self._guarded(node, lambda n: self._call(n, env)), "a size"
        self.missing.clear()
        schema = getattr(node.target, "_schema", None)
        try:
            if schema is not None and schema.is_mutable:
                raise UnsupportedError("it writes into an operand")
            value = self._call(node, env)
        except TensorGraphsError as error:
            self.missing[error.message] = 1
            value = None
        if self.missing:
            return self._guarded(node, self._stand_in), next(iter(self.missing))
        if value is None:
            return None, "it computes nothing"
        if isinstance(value, Missing):
            return self._guarded(node, self._stand_in), value.what or "it takes a value that cannot be imported"
        return value, ""

    def _guarded(self, node: Any, make: Any) -> Any:
        try:
            return make(node)
        except TensorGraphsError as error:
            return Missing(error.message)

    def _stand_in(self, node: Any) -> Any:
        """A placeholder with the types and sizes of a node's results: inputs in place of tensors, in lists where there
        are several."""

        def made(value: Any, name: str) -> Any:
            if isinstance(value, list | tuple):
                return [made(v, f"{name}_{i}") for i, v in enumerate(value)]
            if type(value).__name__ == "SymInt":
                return self.sizes.dim(value)
            if not hasattr(value, "dtype"):
                return value if isinstance(value, bool | int | float | None) else Missing(f"the value {name!r}")
            return t.input(name, [self.sizes.dim(d) for d in value.shape], dtype_name(value.dtype))

        return made(node.meta.get("val"), f"{node.name}_")


__all__ = ["read_traced", "sizes_of", "symbols_of", "tensor_symbols", "unsupported"]
