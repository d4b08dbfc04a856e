"""Lowers an exported program's nodes to a graph: leaves, ATen overloads, subgraphs."""

from __future__ import annotations

import dataclasses
import operator
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from ...egraph.builders import builders as t
from ...egraph.ir.graph import Graph
from ...egraph.ir.tensor import Tensor
from ...egraph.ir.weight_data import Data
from ...egraph.simplify.masks import MAX_MASK_ELEMENTS
from ...egraph.types import dims as dims_
from ...egraph.types.dtypes import HALVES, is_float
from ...errors import BadModelError, TensorGraphsError, UnsupportedError, UsageError
from ..common.module_paths import ModulePaths, path_of_stack
from ..common.sizes import size_tensor
from ..files.limits import check_count
from . import aten_complex as cx
from . import aten_views
from .arrays import dtype_name, to_numpy
from .aten_ops import IGNORED, TABLE
from .aten_pointwise import number
from .declared_results import check_shape, empty_results
from .missing import Missing
from .output_structure import output_names, structure_of
from .symbolic_sizes import SymbolicSizes
from .writes import Writes, functional

#: Lifted constants up to this many bytes become graph constants, visible to the optimizer; larger ones become params.
CONSTANT_BYTES = 1 << 16
#: Arguments of ATen overloads that affect placement or layout but not values.
_PLACEMENT = ("device", "layout", "pin_memory", "memory_format", "non_blocking", "requires_grad", "generator")
#: Python operators on sizes with a non-integer result -> builders.
_FRACTIONS: dict[str, Callable[..., Tensor]] = {
    "sym_float": lambda x: x, "truediv": t.div, "mul": t.mul, "add": t.add, "sub": t.sub, "pow": t.pow,
    "_sym_sqrt": t.sqrt, "sqrt": t.sqrt, "neg": t.neg,
}  # fmt: skip
#: Hints for operators without a builder: regex of their names -> hint.
_HINTS = {
    r"dropout|rand|bernoulli|multinomial|exponential|normal|uniform|rrelu_with_noise": "programs draw no random numbers; is the module in training mode? call .eval() first",
    r"nonzero|masked_select|unique|depends on data": "sizes that depend on values cannot be captured; compute all cases and "
    "choose by torch.where",
    r"autocast": "autocast chooses dtypes by operator: leave it out and cast module and inputs, .to(torch.bfloat16)",
    r"complex output": "return torch.view_as_real of it",
    r"writes into its user_input": "return the new value instead of writing it into an argument",
    r"complex input": "give real and imaginary part as the last axis, torch.view_as_real(x), and begin with torch.view_as_complex",
    r"of complex numbers": "compute it on the real and the imaginary part (torch.view_as_real)",
    r"": "write it with other operators, use tg.compile, which runs it eagerly, or add it (CONTRIBUTING.md)",
}
#: Higher-order operators that only set a mode around a subgraph: name -> number of arguments before the subgraph.
MODES = {"wrap_with_set_grad_enabled": 1, "wrap_with_autocast": 4}


#: Operators whose results depend on the strides of their first operand -> builders that take its traced value in
#: addition.
BY_PLACE: dict[str, Callable[..., Any]] = {
    "as_strided.default": lambda v, x, *given, **named: aten_views.as_strided(x, v.stride(), v.storage_offset(), *given, **named),
    "as_strided_scatter.default": lambda v, x, source, size, stride, offset=None: aten_views.as_strided(
        source, stride, offset or 0, v.shape, v.stride(), v.storage_offset()),
}  # fmt: skip


class ExportReader:
    """Reader of an exported program, which builds the expression of each node by the function for its overload
    (`aten_ops.TABLE`). Unsupported nodes are collected and reported together.

    `sizes`: for each tensor input, axis -> name of its free size. `parts`: name of a free size -> a divisor of it.
    """

    guards_strides = False  # whether inputs have the strides that they were traced with

    def __init__(
        self, program: Any, sizes: Sequence[Mapping[int, str]], parts: Mapping[str, int], writes: Writes
    ) -> None:
        self.program, self.size_names, self.writes = program, sizes, writes
        self.sizes = SymbolicSizes(program.range_constraints, parts)
        self.inputs: list[Tensor] = []
        self.params: dict[str, Data] = {}
        self.missing: dict[str, int] = {}
        self._shared: dict[Any, Tensor] = {}
        signature = program.graph_signature
        self._specs = {s.arg.name: s for s in signature.input_specs if hasattr(s.arg, "name")}
        updated = (s for s in signature.output_specs if s.kind.name in ("BUFFER_MUTATION", "PARAMETER_MUTATION"))
        self._mutated = {*writes.buffers, *(s.target for s in updated)}
        self._paths = ModulePaths()
        self._written: dict[str, Any] = {}  # final values of written buffers

    def graph(self, name: str) -> Graph:
        """Read the program and return its graph, called `name`. Raises UnsupportedError listing all unsupported nodes.
        Raises UsageError if the program returns no tensor."""
        check_count(len(self.program.graph_module.graph.nodes), where=name)
        returned = self._run(self.program.graph_module, None)
        outputs: list[Tensor] = []
        leaves: list[int | None] = []
        updates: dict[str, Tensor] = {}
        for spec, value in zip(self.program.graph_signature.output_specs, returned, strict=True):
            kind = spec.kind.name
            if kind in ("BUFFER_MUTATION", "PARAMETER_MUTATION"):
                updates[spec.target] = value
            elif kind in ("USER_OUTPUT", "LOSS_OUTPUT"):
                leaves.append(None if value is None else len(outputs))
                if value is not None:
                    outputs.append(self._output(value))
            else:
                self._note(f"a program that writes into its {kind.removesuffix('_MUTATION').lower()} {spec.target!r}")
        updates |= {name: self._written[name] for name in self.writes.buffers}
        if self.missing:
            hint = next(h for pattern, h in _HINTS.items() if any(re.search(pattern, m) for m in self.missing))
            raise UnsupportedError("operators without a builder", missing=self.missing, where=name, hint=hint)
        if not outputs:
            raise UsageError("the program returns no tensor", where=name)
        structure = structure_of(self.program.call_spec.out_spec, leaves)
        built = Graph(tuple(outputs), tuple(output_names(structure, len(outputs))), tuple(self.inputs), {}, updates,
                      structure, name)  # fmt: skip
        used = {n.attr("name") for n in built.nodes() if n.op in ("param", "state")}
        params = {k: v for k, v in self.params.items() if k in used}
        built = dataclasses.replace(built, params=params, modules=self._paths.of(built))
        built.check()
        return built

    def _note(self, what: str) -> Missing:
        self.missing[what] = self.missing.get(what, 0) + 1
        return Missing("")

    def _output(self, value: Any) -> Tensor:
        if isinstance(value, Tensor):
            return value
        if isinstance(value, dims_.DimExpr):
            return size_tensor(value)
        if isinstance(value, bool | int | float):
            return t.full(
                (), value, "bool" if isinstance(value, bool) else "int64" if isinstance(value, int) else "float32"
            )
        if isinstance(value, Missing):
            if value.what:
                self._note(value.what)
        else:
            self._note("a complex output" if cx.is_complex(value) else f"the output {value!r}")
        return t.full((), 0)

    def _run(self, module: Any, operands: Sequence[Any] | None) -> Any:
        """Return the outputs of a graph module, with placeholders bound to `operands` (None: the program's inputs and
        weights).
        """
        env: dict[Any, Any] = {}
        given = iter(operands or ())
        live, names = _live(module.graph, self.writes.names), self.writes.names
        for node in module.graph.nodes:
            if node.op == "placeholder":
                env[node] = next(given) if operands is not None else self._leaf(node)
            elif node.op == "get_attr":
                env[node] = self._attribute(module, node.target)
            elif node.op == "output":
                for origin in names.values():
                    if origin.op == "placeholder":
                        self._written[self._specs[origin.name].target] = env[origin]
                found = [v if isinstance(v, list | tuple) else names.get(v, v) for v in node.args[0]]
                return [v if isinstance(v, list | tuple) else env.get(v, v) for v in found]
            elif node in live:
                env[names.get(node, node)] = self._call(node, env)
        raise BadModelError("the exported graph has no output")

    def _attribute(self, module: Any, target: str) -> Any:
        for part in target.split("."):
            module = getattr(module, part)
        return self._constant(module, target) if hasattr(module, "dtype") else module

    # ------------------------------------------------ leaves
    def _leaf(self, node: Any) -> Any:
        spec = self._specs.get(node.name)
        kind = spec.kind.name if spec is not None else "USER_INPUT"
        value = node.meta.get("val")
        if kind == "USER_INPUT":
            if not hasattr(value, "dtype"):
                return (
                    value if isinstance(value, bool | int | float | str | None) else Missing(f"the input {node.name!r}")
                )
            if value.is_complex():
                return Missing(f"the complex input {node.name!r}")
            return self._input(node.name, value)
        if kind in ("PARAMETER", "BUFFER"):
            assert spec is not None
            found = self.program.state_dict if spec.target in self.program.state_dict else self.program.constants
            tensor = found[spec.target]
            saved = spec.persistent is not False or spec.target in self._mutated
            if not saved and str(tensor.dtype) == "torch.bool" and tensor.numel() <= MAX_MASK_ELEMENTS:
                return t.as_tensor(
                    to_numpy(tensor)
                )  # a non-persistent bool mask: as a constant its content is visible to the optimizer
            return self._weight(spec.target, tensor)
        if kind == "CONSTANT_TENSOR":
            assert spec is not None
            return self._constant(self.program.constants[spec.target], spec.target)
        return self._note(f"an input of kind {kind.lower()}")

    def _input(self, name: str, value: Any) -> Tensor:
        number, names = len(self.inputs), self.size_names
        self.sizes.bind(name, value.shape, names[number] if number < len(names) else {})
        leaf = t.input(name, [self.sizes.dim(d) for d in value.shape], dtype_name(value.dtype))
        self.inputs.append(leaf)
        return leaf

    def _weight(self, name: str, tensor: Any) -> Any:
        if type(tensor).__name__ == "FakeTensor":
            raise UsageError(f"the parameter {name!r} is a fake tensor without data", hint="load the weights first")
        if tensor.is_complex():
            return self._complex_weight(name, tensor)
        array = to_numpy(tensor)
        if name in self._mutated:
            self.params[name] = array
            return t.state(name, array.shape, dtype_name(tensor.dtype))
        key = (tensor.data_ptr(), array.shape, array.strides, array.dtype) if array.size else name
        if key not in self._shared:
            self.params[name] = array
            self._shared[key] = t.param(name, array.shape, dtype_name(tensor.dtype))
        return self._shared[key]

    def _complex_weight(self, name: str, tensor: Any) -> Any:
        """Return a complex value of two params, the real and the imaginary part."""
        if name in self._mutated:
            return self._note(f"the complex buffer {name!r}, which is written")
        pair = []
        for part, values in (("real", tensor.detach().real), ("imag", tensor.detach().resolve_conj().imag)):
            self.params[f"{name}.{part}"] = to_numpy(values.contiguous())
            pair.append(t.param(f"{name}.{part}", tuple(values.shape), dtype_name(values.dtype)))
        return cx.Complex(*pair)

    def _constant(self, tensor: Any, name: str) -> Any:
        if tensor.is_complex():
            return self._weight(name, tensor)
        array = to_numpy(tensor)
        if array.nbytes > CONSTANT_BYTES or name in self._mutated:
            return self._weight(name, tensor)
        return t.as_tensor(array)

    # ------------------------------------------------ nodes
    def _call(self, node: Any, env: Mapping[Any, Any]) -> Any:
        value = node.meta.get("val")
        try:
            if type(value).__name__ == "SymInt":
                return self.sizes.dim(value)
            if type(value).__name__ == "SymBool":
                return Missing(f"the symbolic value of {node.target}")
            if type(value).__name__ == "SymFloat":
                return self._fraction(node, env)
            args, kwargs = self._resolve(node.args, env), self._resolve(dict(node.kwargs), env)
            if node.target is operator.getitem and isinstance(args[0], list):
                return self._one_of(args[0][args[1]], value, overload_of(node.args[0].target))
            lost = list(_missing((args, kwargs)))
            for m in lost:
                if m.what:
                    self._note(m.what)
            if lost:
                return Missing("")
            made = self._apply(node, args, kwargs, value)
            self._paths.add(made, (args, kwargs), path_of_stack(node.meta.get("nn_module_stack")))
            return made
        except UnsupportedError as error:
            return self._note(f"{overload_of(node.target)} ({error.message})" if not error.missing else error.message)
        except TensorGraphsError as error:
            error.where = f"{error.where} in {node.format_node()}"
            raise

    def _fraction(self, node: Any, env: Mapping[Any, Any]) -> Any:
        """Lower a non-integer value computed from sizes to a rank-0 float32."""
        build = _FRACTIONS.get(getattr(node.target, "__name__", ""))
        args = self._resolve(node.args, env)
        if build is None or list(_missing(args)):
            return Missing(f"the symbolic value of {node.target}")
        return build(*(t.cast(v, "float32") if isinstance(v, Tensor) else v for v in map(number, args)))

    def _apply(self, node: Any, args: Any, kwargs: Any, value: Any) -> Any:
        overload = functional(node.target) or overload_of(node.target)
        if overload in MODES:
            first = MODES[overload]
            if overload == "wrap_with_autocast" and args[2]:
                raise UnsupportedError("autocast inside the model")
            return self._run(args[first], args[first + 1 :])
        if overload in IGNORED:
            return None
        if overload in BY_PLACE:
            if overload.startswith("as_strided") and not self.guards_strides and node.args[0].op == "placeholder":
                raise UnsupportedError("the strides of an argument differ by call")
            return BY_PLACE[overload](node.args[0].meta["val"], *args, **kwargs)
        named = {k: v for k, v in kwargs.items() if k not in _PLACEMENT}
        builder = self._builder(overload, (args, named), value)
        if builder is None:
            return self._note(overload)
        if (nothing := empty_results(value)) is not None:
            return nothing
        found = builder(*args, **named)
        if isinstance(found, Tensor) and hasattr(value, "dtype"):
            return self._as_declared(found, value, overload)
        return found

    @staticmethod
    def _builder(overload: str, operands: Any, value: Any) -> Any:
        """Return the builder of an overload for these operands (real or complex); None if there is none."""
        is_complex = cx.is_complex(operands)
        if not (is_complex or overload in cx.FROM_REAL or getattr(value, "is_complex", bool)()):
            return TABLE.get(overload)
        if overload in cx.ALIKE:
            return cx.on_both(TABLE[overload])
        if overload not in cx.TABLE and overload in TABLE:
            raise UnsupportedError("of complex numbers")
        return cx.TABLE.get(overload)

    def _as_declared(self, found: Tensor, value: Any, overload: str) -> Tensor:
        """Return the result cast to PyTorch's dtype.

        Raises BadModelError if a static shape differs: a bug of the builder.
        """
        check_shape(found, value, overload)
        return t.cast(found, dtype_name(value.dtype))

    def _one_of(self, made: Any, value: Any, overload: str) -> Any:
        """One of several results of an operator (others may be unsupported), as PyTorch traced it: without elements
        where it has none on the device (saved statistics of a batch norm in inference on a CPU), and in its dtype if
        one of both is a 16-bit float (statistics of norms have the operand's dtype on some devices, and float32 on
        others).

        Raises BadModelError if a static shape differs otherwise.
        """
        if not isinstance(made, Tensor) or not hasattr(value, "dtype"):
            return made
        if (nothing := empty_results(value)) is not None:
            return nothing
        check_shape(made, value, overload)
        traced = dtype_name(value.dtype)
        return t.cast(made, traced) if {made.dtype, traced} & set(HALVES) and is_float(traced) else made

    def _resolve(self, item: Any, env: Mapping[Any, Any]) -> Any:
        if type(item).__name__ == "Node":
            return env[self.writes.names.get(item, item)]
        if isinstance(item, list | tuple):
            return [self._resolve(v, env) for v in item]
        if isinstance(item, dict):
            return {k: self._resolve(v, env) for k, v in item.items()}
        if type(item).__name__ == "dtype":
            return str(item).removeprefix("torch.") if item.is_complex else dtype_name(item)
        return item


def _live(graph: Any, writes: Mapping[Any, Any]) -> set[Any]:
    """Return the nodes that the output or an in-place write depends on."""
    found: set[Any] = set()
    for node in reversed(graph.nodes):
        if node.op == "output" or node in found or node in writes:
            found.add(node)
            found.update(node.all_input_nodes)
    return found


def _missing(item: Any) -> Iterator[Missing]:
    if isinstance(item, Missing):
        yield item
    elif isinstance(item, list | tuple):
        for v in item:
            yield from _missing(v)
    elif isinstance(item, dict):
        yield from _missing(list(item.values()))


def overload_of(target: Any) -> str:
    """Return the overload name: 'add.Tensor' for ATen and operators of the same meaning in the library
    `tensor_graphs`, the plain or qualified name otherwise."""
    text = str(target)
    for library in ("aten.", "tensor_graphs."):
        if text.startswith(library):
            return text.removeprefix(library)
    return text if "." in text and " " not in text else getattr(target, "__name__", text)
