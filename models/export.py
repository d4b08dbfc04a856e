"""PyTorch modules, functions and `.pt2` files as graphs, through `torch.export`.

The program is captured, made functional and decomposed only where `aten_ops.TABLE` has no builder: norms, activations,
softmax, attention and linear layers arrive whole. Parameters and buffers become params over the module's own memory.
"""

from __future__ import annotations

import dataclasses
import inspect
import operator
import re
import warnings
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from io import BytesIO
from os import PathLike
from pathlib import Path
from typing import Any

from ..egraph import api as t
from ..egraph import dims as dims_
from ..egraph.dims import Dim
from ..egraph.graph import Data, Graph, Tensor
from ..errors import (
    BadModelError,
    ExportError,
    ShapeError,
    TensorGraphsError,
    UnsupportedError,
    UntrustedModelError,
    UsageError,
)
from . import aten_complex as cx
from .aten_layout import Missing
from .aten_ops import IGNORED, TABLE
from .aten_pointwise import number
from .sizes import size_tensor
from .torch_arrays import dtype_name, to_numpy

#: Lifted constants up to this many bytes are known to the optimizer as constants; larger ones are params.
CONSTANT_BYTES = 1 << 16
#: Sizes are taken as multiples of at most this number.
MAX_PART = 64
#: Arguments of ATen overloads that say where and how a tensor lies, never what it holds.
_PLACEMENT = ("device", "layout", "pin_memory", "memory_format", "non_blocking", "requires_grad", "generator")
#: What Python computes with sizes where the result is no whole number.
_FRACTIONS: dict[str, Callable[..., Tensor]] = {
    "sym_float": lambda x: x, "truediv": t.div, "mul": t.mul, "add": t.add, "sub": t.sub, "pow": t.pow,
    "_sym_sqrt": t.sqrt, "sqrt": t.sqrt, "neg": t.neg,
}  # fmt: skip
#: What to do about operators that no builder can be written for: pattern of their names -> hint.
_HINTS = {
    r"dropout|rand|bernoulli|multinomial|exponential|normal|uniform|rrelu_with_noise": "programs draw no random numbers; is the module in training mode? call .eval() first",
    r"nonzero|masked_select|unique|depends on data": "sizes that depend on values cannot be captured; compute all cases and "
    "choose by torch.where",
    r"autocast": "autocast chooses dtypes by operator: leave it out and cast module and inputs, .to(torch.bfloat16)",
    r"complex output": "return torch.view_as_real of it",
    r"writes into its user_input": "return the new value instead of writing it into an argument",
    r"": "models/aten_ops.py is where one is added",
}
#: Higher-order operators that only set a mode around a subgraph: name -> arguments before the subgraph.
_MODES = {"wrap_with_set_grad_enabled": 1, "wrap_with_autocast": 4}


def load_module(
    module: Any,
    example_inputs: Sequence[Any],
    *,
    example_kwargs: Mapping[str, Any] | None = None,
    dynamic_shapes: Any = None,
    dims: Mapping[str, int] | None = None,
    name: str | None = None,
) -> Graph:
    """The graph of an `nn.Module` (or a function of torch tensors) called with arguments like the examples.

    `dynamic_shapes` is torch.export's, and may name a size by a string; such sizes become dimensions of that name.
    `dims` binds some of them at once. Mutated buffers become states with updates; their initial values are in
    `Graph.params` under the state's name. ExportError where torch.export fails, UnsupportedError listing every
    operator without a builder.
    """
    import torch

    target = module if isinstance(module, torch.nn.Module) else _as_module(module)
    args, kwargs = tuple(example_inputs), dict(example_kwargs or {})
    shapes = _named_dims(dynamic_shapes)
    title: str = name or str(getattr(module, "__name__", type(module).__name__))
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            program = torch.export.export(target, args, kwargs or None, dynamic_shapes=shapes)
        except Exception as error:
            raise _export_error(error, title) from error
    graph = from_exported(program, name=title, sizes=_size_names(target, args, kwargs, shapes))
    return graph.bind(dims) if dims else graph


def load_pt2(path: str | PathLike[str], *, trust: bool = False) -> Graph:
    """The graph of a program saved by `torch.export.save`.

    Reading one can run code, so UntrustedModelError unless `trust`. Even then pickled weights, custom objects and
    sample inputs that need more than a weights-only unpickler are refused.
    """
    path = Path(path)
    if not trust:
        raise UntrustedModelError(
            "a .pt2 file can run code when it is read", where=str(path),
            hint="pass trust=True (--trust-model) if you made it yourself, or convert it to ONNX or safetensors",
        )  # fmt: skip
    import torch

    _inspect_archive(path)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            program = torch.export.load(path)
        except Exception as error:
            raise BadModelError(f"torch.export cannot read it: {_first_line(error)}", where=str(path)) from error
    return from_exported(program, name=path.stem)


def from_exported(program: Any, *, name: str = "graph", sizes: Sequence[Mapping[int, str]] = ()) -> Graph:
    """The graph of a `torch.export.ExportedProgram`. `sizes` names the free sizes of each tensor input, by axis."""
    import torch

    if not _is_ready(program):
        with torch.no_grad(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            try:
                program = program.run_decompositions(_decompositions(program))
            except Exception as error:
                raise _export_error(error, name) from error
    return _read(program, sizes, name)


def _read(program: Any, sizes: Sequence[Mapping[int, str]], name: str) -> Graph:
    """The graph. A model may mean something at some sizes only: a U-Net joins what it has halved and doubled again with what
    it had before. PyTorch keeps guards for that; here such a size is written as a multiple of another one, of the least number
    that divides the example's size and lets the model's sizes meet, with a warning that names it."""
    parts: dict[str, int] = {}
    error: ShapeError | None = None
    loose: Graph | None = None  # what was read first, with reshapes that fit at some sizes only
    while True:
        reader = _Reader(program, sizes, parts)
        try:
            graph = reader.graph(name)
            apart = _reshapes_apart(graph)
        except ShapeError as problem:
            error, apart = error or problem, problem.sizes
        else:
            if not apart:
                break
            loose = loose or graph
        names = {n for d in apart for n in dims_.symbols(d)}
        if not _step(parts, {title: n for title, (d, n) in reader.examples.items() if names & dims_.symbols(d).keys()}):
            if loose is None:
                assert error is not None
                raise error
            return loose
    for title in parts:
        warnings.warn(f"the model's sizes meet at multiples only: {title} is {reader.examples[title][0]}", stacklevel=3)
    return graph


def _reshapes_apart(graph: Graph) -> tuple[Dim, ...]:
    """The numbers of elements before and after the first reshape for which they differ at some sizes."""
    for node in graph.nodes():
        if node.op == "reshape":
            before, after = dims_.volume(node.args[0].shape), dims_.volume(node.shape)
            if before != after and _differ(before, after):
                return before, after
    return ()


def _differ(a: Dim, b: Dim) -> bool:
    """Whether two sizes differ anywhere among small ones."""
    atoms = {**dims_.symbols(a), **dims_.symbols(b)}
    tried = ({n: min(s.min + k + i, s.max) for i, (n, s) in enumerate(atoms.items())} for k in range(2 * MAX_PART))
    return any(dims_.bind(a, sizes) != dims_.bind(b, sizes) for sizes in tried)


def _step(parts: dict[str, int], examples: Mapping[str, int]) -> bool:
    """Take those of the named sizes whose examples it divides as multiples of the next number that divides one. False where
    there is none."""
    least = max((parts.get(title, 1) for title in examples), default=1) + 1
    for part in range(least, MAX_PART + 1):
        if found := [title for title, size in examples.items() if size % part == 0]:
            parts |= dict.fromkeys(found, part)
            return True
    return False


# ---------------------------------------------------------------- around torch.export
def _as_module(function: Callable[..., Any]) -> Any:
    import torch

    if not callable(function):
        raise UsageError(f"a {type(function).__name__} is neither an nn.Module nor a function")
    module = torch.nn.Module()
    module.forward = function
    return module.eval()


def _first_line(error: BaseException) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {lines[0] if lines else 'no message'}"[:400]


def _export_error(error: BaseException, title: str) -> ExportError:
    text = str(error)
    hint = "branches and loops over tensor values cannot be captured; compute both sides and use torch.where"
    if "data-dependent" in text:
        hint = (
            "sizes and branches that depend on values cannot be captured; compute all cases and choose by torch.where"
        )
    elif "Constraints violated" in text or "specialized" in text or "dynamic" in text.lower():
        hint = "a size named in dynamic_shapes is fixed by the model; drop it there or give it a range"
    elif "missing a required argument" in text or "positional argument" in text:
        hint = "example_inputs must be the tuple of positional arguments, example_kwargs the named ones"
    return ExportError(f"torch.export failed: {_first_line(error)}", where=title, hint=hint)


def _trains_batch_norm(program: Any) -> bool:
    """Whether running statistics change, which the schema of `batch_norm` does not say."""
    return any(
        str(n.target) == "aten.batch_norm.default" and len(n.args) > 5 and bool(n.args[5]) for n in program.graph.nodes
    )


def _is_ready(program: Any) -> bool:
    """Whether every node has a builder and none mutates: decomposing, half of all the time, would change nothing."""
    import torch

    for module in program.graph_module.modules():
        for node in module.graph.nodes if isinstance(module, torch.fx.GraphModule) else ():
            if node.op != "call_function" or type(node.meta.get("val")).__name__ in ("SymInt", "SymBool", "SymFloat"):
                continue
            overload = _overload(node.target)
            schema = getattr(node.target, "_schema", None)
            if overload not in ("getitem", *_MODES) and not any(
                overload in known for known in (TABLE, IGNORED, cx.TABLE)
            ):
                return False
            if schema is not None and schema.is_mutable and overload != "detach_.default":
                return False
    return not _trains_batch_norm(program)


def _decompositions(program: Any) -> Any:
    """torch.export's default table without the overloads that have a builder."""
    import torch

    table = torch.export.default_decompositions()
    training = _trains_batch_norm(program)
    for overload in (*TABLE, *cx.TABLE):
        packet, _, kind = overload.partition(".")
        if packet == "batch_norm" and training:
            continue  # its running statistics change: only the functional form says so
        op = getattr(getattr(torch.ops.aten, packet, None), kind, None)
        if op is not None and op in table and not _aliases(op):
            table.pop(op)
    return table


def _aliases(op: Any) -> bool:
    """Whether results may share memory with arguments, so that the functional form must replace it."""
    return any(a.alias_info is not None for a in (*op._schema.arguments, *op._schema.returns)) or (
        op._schema.name.removeprefix("aten::") in ("reshape", "contiguous", "to", "flatten", "narrow", "chunk")
    )


def _named_dims(shapes: Any) -> Any:
    """dynamic_shapes with every string replaced by a torch.export.Dim of that name."""
    import torch

    made: dict[str, Any] = {}

    def walk(spec: Any) -> Any:
        if isinstance(spec, str):
            return made.setdefault(spec, torch.export.Dim(spec))
        if isinstance(spec, dict):
            return {k: walk(v) for k, v in spec.items()}
        return type(spec)(map(walk, spec)) if type(spec) in (list, tuple) else spec

    return walk(shapes)


def _size_names(module: Any, args: tuple[Any, ...], kwargs: dict[str, Any], shapes: Any) -> list[dict[int, str]]:
    """The name of each free axis of each tensor argument, in the order in which torch.export lists them."""
    import torch

    def walk(value: Any, spec: Any) -> Iterator[dict[int, str]]:
        if isinstance(value, torch.Tensor):
            axes = spec.items() if isinstance(spec, dict) else enumerate(spec or ())
            names = {i: getattr(getattr(d, "root", d), "__name__", "") for i, d in axes}
            yield {i: n for i, n in names.items() if n}
        elif isinstance(value, dict):
            for key, item in value.items():
                yield from walk(item, spec.get(key) if isinstance(spec, dict) else None)
        elif isinstance(value, list | tuple):
            for i, item in enumerate(value):
                yield from walk(item, spec[i] if isinstance(spec, list | tuple) and i < len(spec) else None)

    if not isinstance(shapes, dict | list | tuple):
        return []
    bound = inspect.signature(module.forward).bind(*args, **kwargs).arguments
    if isinstance(shapes, list | tuple):
        shapes = dict(zip(bound, shapes))
    return list(walk(dict(bound), shapes))


def _inspect_archive(path: Path) -> None:
    """Raise BadModelError for a broken archive, UntrustedModelError for content that needs a full unpickler."""
    import json

    import torch

    def refuse(what: str) -> UntrustedModelError:
        hint = "save the program again with plain tensors"
        return UntrustedModelError(f"{what}, which only a full unpickler reads", where=str(path), hint=hint)

    try:
        with zipfile.ZipFile(path) as archive:
            names = archive.namelist()
            if not any(n.endswith("archive_format") for n in names):
                raise BadModelError("this is not an archive written by torch.export.save", where=str(path),
                                    hint="save it again with a current PyTorch")  # fmt: skip
            for entry in names:
                tail = entry.rsplit("/", 1)[-1]
                if tail.startswith(("custom_obj", "opaque_obj")):
                    raise refuse(f"it holds the custom object {tail}")
                if tail.endswith(("weights_config.json", "constants_config.json")):
                    for key, meta in json.loads(archive.read(entry)).get("config", {}).items():
                        if meta.get("use_pickle"):
                            raise refuse(f"the tensor {key!r} is pickled")
                if "/sample_inputs/" in entry and (data := archive.read(entry)):
                    try:
                        torch.load(BytesIO(data), weights_only=True)
                    except Exception as error:
                        raise refuse("its sample inputs are objects") from error
    except (OSError, zipfile.BadZipFile, ValueError, AttributeError) as error:
        raise BadModelError(f"not a readable .pt2 archive: {_first_line(error)}", where=str(path)) from error


# ---------------------------------------------------------------- exported program -> graph
class _Reader:
    """One pass over an exported program's nodes, calling builders. Unsupported nodes are collected, not raised."""

    def __init__(self, program: Any, sizes: Sequence[Mapping[int, str]], parts: Mapping[str, int]) -> None:
        self.program, self.sizes = program, sizes
        self.parts = parts  # name of a size -> what it is to be a multiple of
        self.examples: dict[
            str, tuple[Dim, int]
        ] = {}  # name of a size -> what it is here, and its example (0: unknown)
        self.inputs: list[Tensor] = []
        self.params: dict[str, Data] = {}
        self.missing: dict[str, int] = {}
        self._symbols: dict[str, Dim] = {}
        self._shared: dict[Any, Tensor] = {}
        signature = program.graph_signature
        self._specs = {s.arg.name: s for s in signature.input_specs if hasattr(s.arg, "name")}
        self._mutated = {
            s.target for s in signature.output_specs if s.kind.name in ("BUFFER_MUTATION", "PARAMETER_MUTATION")
        }

    def graph(self, name: str) -> Graph:
        """The graph; UnsupportedError with everything that was collected."""
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
        if self.missing:
            hint = next(h for pattern, h in _HINTS.items() if any(re.search(pattern, m) for m in self.missing))
            raise UnsupportedError("operators without a builder", missing=self.missing, where=name, hint=hint)
        if not outputs:
            raise UsageError("the program returns no tensor", where=name)
        structure = _structure(self.program.call_spec.out_spec, leaves)
        built = Graph(tuple(outputs), tuple(_output_names(structure, len(outputs))), tuple(self.inputs), {}, updates,
                      structure, name)  # fmt: skip
        used = {n.attr("name") for n in built.nodes() if n.op in ("param", "state")}
        built = dataclasses.replace(built, params={k: v for k, v in self.params.items() if k in used})
        built.check()
        return built

    def _note(self, what: str) -> Missing:
        self.missing[what] = self.missing.get(what, 0) + 1
        return Missing("")

    def _output(self, value: Any) -> Tensor:
        if isinstance(value, Tensor):
            return value
        if isinstance(value, dims_.Expr):
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
        """The values that a graph module returns, its placeholders bound to `operands` or to the program's leaves."""
        env: dict[Any, Any] = {}
        given = iter(operands or ())
        live = _live(module.graph)
        for node in module.graph.nodes:
            if node.op == "placeholder":
                env[node] = next(given) if operands is not None else self._leaf(node)
            elif node.op == "get_attr":
                env[node] = self._attribute(module, node.target)
            elif node.op == "output":
                return [env.get(v, v) if not isinstance(v, list | tuple) else v for v in node.args[0]]
            elif node in live:
                env[node] = self._call(node, env)
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
            return self._weight(spec.target, found[spec.target])
        if kind == "CONSTANT_TENSOR":
            assert spec is not None
            return self._constant(self.program.constants[spec.target], spec.target)
        return self._note(f"an input of kind {kind.lower()}")

    def _input(self, name: str, value: Any) -> Tensor:
        hints = self.sizes[len(self.inputs)] if len(self.inputs) < len(self.sizes) else {}
        for axis, size in enumerate(value.shape):
            for symbol in sorted(
                getattr(getattr(getattr(size, "node", None), "expr", None), "free_symbols", ()), key=str
            ):
                if str(symbol) not in self._symbols:
                    limits = self.program.range_constraints.get(symbol)
                    low, high = (int(limits.lower), limits.upper) if limits is not None else (1, None)
                    top = int(high) if high is not None and high.is_finite and high < 1 << 31 else 1 << 31
                    title = hints.get(axis, f"{name}_{axis}")
                    self._symbols[str(symbol)] = self._free(title, max(low, 1), top)
                    if (
                        axis not in hints and size.node.expr == symbol
                    ):  # torch.export has looked at named ranges as a whole
                        self.examples[title] = self._symbols[str(symbol)], getattr(size.node, "hint", None) or 0
        leaf = t.input(name, [self._dim(d) for d in value.shape], dtype_name(value.dtype))
        self.inputs.append(leaf)
        return leaf

    def _free(self, title: str, low: int, high: int) -> Dim:
        """A size that the program leaves free."""
        part = self.parts.get(title, 1)
        name = title if part == 1 else f"{title}_by_{part}"
        return part * dims_.dim(name, min=-(-low // part), max=high // part)

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
        """Two params, the real and the imaginary parts."""
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
    def _dim(self, size: Any) -> Dim:
        if isinstance(size, int) and not hasattr(size, "node"):
            return size
        return _dimension(size.node.expr, self._symbols)

    def _call(self, node: Any, env: Mapping[Any, Any]) -> Any:
        value = node.meta.get("val")
        try:
            if type(value).__name__ == "SymInt":
                return self._dim(value)
            if type(value).__name__ == "SymBool":
                return Missing(f"the symbolic value of {node.target}")
            if type(value).__name__ == "SymFloat":
                return self._fraction(node, env)
            args, kwargs = self._resolve(node.args, env), self._resolve(dict(node.kwargs), env)
            if node.target is operator.getitem and isinstance(args[0], list):
                return args[0][args[1]]  # the other results may be missing
            lost = list(_missing((args, kwargs)))
            for m in lost:
                if m.what:
                    self._note(m.what)
            if lost:
                return Missing("")
            return self._apply(node, args, kwargs, value)
        except UnsupportedError as error:
            return self._note(f"{_overload(node.target)} ({error.message})" if not error.missing else error.message)
        except TensorGraphsError as error:
            error.where = f"{error.where} in {node.format_node()}"
            raise

    def _fraction(self, node: Any, env: Mapping[Any, Any]) -> Any:
        """What is computed from sizes and is no whole number, as a 0-d float32."""
        build = _FRACTIONS.get(getattr(node.target, "__name__", ""))
        args = self._resolve(node.args, env)
        if build is None or list(_missing(args)):
            return Missing(f"the symbolic value of {node.target}")
        return build(*(t.cast(v, "float32") if isinstance(v, Tensor) else v for v in map(number, args)))

    def _apply(self, node: Any, args: Any, kwargs: Any, value: Any) -> Any:
        overload = _overload(node.target)
        if overload in _MODES:
            first = _MODES[overload]
            if overload == "wrap_with_autocast" and args[2]:
                raise UnsupportedError("autocast inside the model")
            return self._run(args[first], args[first + 1 :])
        if overload in IGNORED:
            return None
        named = {k: v for k, v in kwargs.items() if k not in _PLACEMENT}
        builder = self._builder(overload, (args, named), value)
        if builder is None:
            return self._note(overload)
        found = builder(*args, **named)
        if isinstance(found, Tensor) and hasattr(value, "dtype"):
            return self._as_declared(found, value, overload)
        return found

    @staticmethod
    def _builder(overload: str, operands: Any, value: Any) -> Any:
        """What builds an overload for these operands; None where nothing does."""
        is_complex = cx.is_complex(operands)
        if not (is_complex or overload in cx.FROM_REAL or getattr(value, "is_complex", bool)()):
            return TABLE.get(overload)
        if overload in cx.ALIKE:
            return cx.on_both(TABLE[overload])
        if overload not in cx.TABLE and overload in TABLE:
            raise UnsupportedError("of complex numbers")
        return cx.TABLE.get(overload)

    def _as_declared(self, found: Tensor, value: Any, overload: str) -> Tensor:
        """The result with the dtype that PyTorch gives it. BadModelError where a concrete shape differs: our bug."""
        found = t.cast(found, dtype_name(value.dtype))
        shape = tuple(value.shape)
        if all(type(d) is int for d in (*shape, *found.shape)) and shape != found.shape:
            raise BadModelError(f"{overload} gives {found.type}, PyTorch says {list(shape)}", hint="please report this")
        return found

    def _resolve(self, item: Any, env: Mapping[Any, Any]) -> Any:
        if type(item).__name__ == "Node":
            return env[item]
        if isinstance(item, list | tuple):
            return [self._resolve(v, env) for v in item]
        if isinstance(item, dict):
            return {k: self._resolve(v, env) for k, v in item.items()}
        if type(item).__name__ == "dtype":
            return str(item).removeprefix("torch.") if item.is_complex else dtype_name(item)
        return item


def _live(graph: Any) -> set[Any]:
    """The nodes that the output depends on."""
    found: set[Any] = set()
    for node in reversed(graph.nodes):
        if node.op == "output" or node in found:
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


def _overload(target: Any) -> str:
    """'add.Tensor' of an ATen overload, the plain or qualified name of anything else."""
    text = str(target)
    if text.startswith("aten."):
        return text.removeprefix("aten.")
    return text if "." in text and " " not in text else getattr(target, "__name__", text)


def _dimension(expression: Any, symbols: Mapping[str, Dim]) -> Dim:
    """A SymPy size expression as a dimension."""
    if expression.is_Integer:
        return int(expression)
    if expression.is_Symbol:
        if str(expression) not in symbols:
            raise UnsupportedError(f"the size {expression} depends on data")
        return symbols[str(expression)]
    parts = [_dimension(a, symbols) for a in expression.args]
    kind = type(expression).__name__
    if kind in ("FloorDiv", "CleanDiv"):
        return parts[0] // parts[1]
    if kind in ("Mod", "PythonMod"):
        return parts[0] % parts[1]
    if kind == "Pow" and isinstance(parts[1], int) and parts[1] >= 0:
        return dims_.volume((parts[0],) * parts[1])
    if kind not in ("Add", "Mul"):
        raise UnsupportedError(f"the size {expression}")
    total: Dim = parts[0]
    for part in parts[1:]:
        total = total + part if kind == "Add" else total * part
    return total


def _structure(spec: Any, leaves: Sequence[int | None]) -> Any:
    """The template of nested tuples, lists and dicts in which outputs are returned; None for one output alone.

    Dataclasses and mappings registered with PyTorch's pytrees become dicts; a None inside stays None.
    """
    from torch.utils import _pytree

    tree = _pytree.tree_unflatten(list(leaves), spec)

    def plain(item: Any) -> Any:
        if isinstance(item, Mapping):
            return {str(k): plain(v) for k, v in item.items()}
        if dataclasses.is_dataclass(item) and not isinstance(item, type):
            return {f.name: plain(getattr(item, f.name)) for f in dataclasses.fields(item)}
        if isinstance(item, list):
            return [plain(v) for v in item]
        return tuple(plain(v) for v in item) if isinstance(item, tuple) else item

    found = plain(tree)
    return None if isinstance(found, int) else found


def _output_names(structure: Any, count: int) -> list[str]:
    """A name per output: its path through the structure, or its position."""
    names = [f"output{i}" for i in range(count)] if structure is not None else ["output"]

    def walk(item: Any, path: str) -> None:
        if isinstance(item, dict):
            for key, value in item.items():
                walk(value, f"{path}.{key}" if path else key)
        elif isinstance(item, list | tuple):
            for i, value in enumerate(item):
                walk(value, f"{path}.{i}" if path else f"output{i}")
        elif isinstance(item, int):
            names[item] = path

    if structure is not None:
        walk(structure, "")
    return names


__all__ = ["CONSTANT_BYTES", "from_exported", "load_module", "load_pt2"]
