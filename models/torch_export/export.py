"""Imports PyTorch modules and functions, through `torch.export`.

The program is captured, functionalized, and decomposed only where `aten_ops.TABLE` has no function for an overload:
norms, activations, softmax, attention and linear layers stay single operators. Parameters and buffers become params
that share the module's memory.
"""

from __future__ import annotations

import importlib
import inspect
import logging
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import lru_cache
from types import FunctionType
from typing import Any

from ...egraph.ir.graph import Graph
from ...errors import ExportError, UnsupportedError, UsageError
from ...extract.model.gc_pause import gc_paused
from ...processes.forks import Lock
from ...wording import with_article
from . import aten_complex as cx
from .aten_ops import IGNORED, TABLE
from .aten_recurrent import known_shapes
from .caught_errors import uncaught
from .divisible_sizes import read_exported
from .export_bounds import bounded
from .graph import MODES, overload_of
from .writes import Writes, aliases, functional, writes_of


def load_module(
    module: Any,
    example_inputs: Sequence[Any],
    *,
    example_kwargs: Mapping[str, Any] | None = None,
    dynamic_shapes: Any = None,
    dims: Mapping[str, int] | None = None,
    name: str | None = None,
    budget: float | None = None,
) -> Graph:
    """Return the graph of an `nn.Module` (or a function of torch tensors) called with arguments like the examples.

    `dynamic_shapes` is that of torch.export; a size may also be given as a string, which becomes the dimension's name.
    `dims` binds named dimensions. Mutated buffers become states with updates; their initial values are in
    `Graph.params` under the state's name. `budget`: seconds for the whole optimization, from which the time limit of
    the export follows (`export_bounds`). Raises ExportError if torch.export fails, ExportTimeError if it takes too
    long, TooLargeError if it traces more operations than the setting `max_nodes`, UnsupportedError listing every
    operator that cannot be imported.
    """
    import torch

    target = module if isinstance(module, torch.nn.Module) else _as_module(module)
    args, kwargs = tuple(example_inputs), dict(example_kwargs or {})
    shapes = _named_dims(dynamic_shapes)
    title: str = name or str(getattr(module, "__name__", type(module).__name__))
    _refuse_autocast(title)
    # (pausing garbage collection makes imports alone a third faster)
    with torch.no_grad(), gc_paused(), tracing(), known_shapes():
        _import_tracer()
        with bounded(title, budget):
            try:
                with uncaught(title):
                    program = torch.export.export(target, args, kwargs or None, dynamic_shapes=shapes)
            except ExportError:
                raise
            except Exception as error:
                raise _export_error(error, title) from error
    graph = from_exported(program, name=title, sizes=_size_names(target, args, kwargs, shapes), budget=budget)
    return graph.bind(dims) if dims else graph


def from_exported(
    program: Any, *, name: str = "graph", sizes: Sequence[Mapping[int, str]] = (), budget: float | None = None
) -> Graph:
    """Return the graph of a `torch.export.ExportedProgram`.

    `sizes` maps free axes to names, one mapping per tensor input. `budget`: seconds for the whole optimization, from
    which a time limit follows. Raises the errors of `load_module`.
    """
    import torch

    _refuse_autocast(name)
    writes = writes_of(program) if _is_ready(program) else None
    if writes is None:
        with torch.no_grad(), gc_paused(), tracing(), known_shapes(), bounded(name, budget):
            try:
                program = program.run_decompositions(_decompositions(program))
            except Exception as error:
                raise _export_error(error, name) from error
    return read_exported(program, sizes, name, writes or Writes())


# ---------------------------------------------------------------- torch.export helpers
def _refuse_autocast(title: str) -> None:
    """Raise UnsupportedError under autocast, which would change the dtypes of the traced graph."""
    import torch

    if torch._C._is_any_autocast_enabled():
        raise UnsupportedError("autocast is on", where=title,
                               hint="leave it out and cast module and inputs, .to(torch.bfloat16), or use tg.compile")  # fmt: skip


_tracing = Lock()
_REPEATED = ("torch._subclasses.fake_tensor", "torch.fx.experimental.symbolic_shapes")
"""Loggers that write what makes an export fail, with a stack trace: the error raised for it says the same."""


def _is_info(record: logging.LogRecord) -> bool:
    return record.levelno < logging.WARNING


@contextmanager
def tracing() -> Iterator[None]:
    """Context manager in which torch traces: a process-wide lock, no warnings, no stack traces on nodes or in logs.

    The lock is needed because tracing and warning filters change process-wide state. Leaving out stack traces, where
    this torch version allows it, saves a quarter of the time.
    """
    import torch.fx.config as config

    name = "do_not_emit_stack_traces"
    with _tracing, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        loggers = [logging.getLogger(logger) for logger in _REPEATED]
        for logger in loggers:
            logger.addFilter(_is_info)
        before = getattr(config, name, None)
        if before is not None:
            setattr(config, name, True)
        try:
            yield
        finally:
            for logger in loggers:
                logger.removeFilter(_is_info)
            if before is not None:
                setattr(config, name, before)


def _import_tracer() -> None:
    """Import the modules that torch.export imports at its first use. They take seconds, on a busy machine more than an
    export may go on without a traced operation, which is not to count them."""
    for name in ("torch.export._trace", "torch.fx.experimental.symbolic_shapes"):
        with suppress(ImportError):  # of another torch version: imported while it exports
            importlib.import_module(name)


def _as_module(function: Any) -> Any:
    import torch

    if not callable(function):
        raise UsageError(f"{with_article(type(function).__name__)} is neither an nn.Module nor a function")
    module = torch.nn.Module()
    try:
        inspect.signature(function)
        # torch.export reads the code object of what it calls, which an object with __call__ lacks
        method = isinstance(inspect.getattr_static(type(function), "__call__", None), FunctionType)
        module.forward = function.__call__ if method else function
    except ValueError:  # a torch builtin without a signature
        module.forward = lambda *args, **named: function(*args, **named)
    return module.eval()


def first_line(error: BaseException) -> str:
    """Return the error's type name and the first line of its message, at most 400 characters."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {lines[0] if lines else 'no message'}"[:400]


def _export_error(error: BaseException, title: str) -> ExportError:
    text = str(error)
    hint = "does it run on these examples? Branches and loops over tensor values cannot be captured: compute both sides, torch.where"
    if "Unsupported input type" in text:
        hint = "the examples of a module are tensors: torch.from_numpy(array)"
    elif "ScriptModule" in text:
        hint = "give the module that was scripted or traced"
    elif "data-dependent" in text:
        hint = (
            "sizes and branches that depend on values cannot be captured; compute all cases and choose by torch.where"
        )
    elif "top-level keys must be" in text or "tree structure" in text.lower() or "Detected mismatch" in text:
        hint = "dynamic_shapes has one entry for each argument of forward, by name or by position; None for one without free sizes"
    elif "Constraints violated" in text or "specialized" in text or "dynamic" in text.lower():
        reasons = [line.strip(" -") for line in text.splitlines() if line.lstrip().startswith("- ")]
        hint = "\n    ".join(["a size named in dynamic_shapes is fixed by the model or by an example of size 1; drop it there "
                              "or give it a range", *(r[:200] for r in reasons[:3])])  # fmt: skip
    elif "missing a required argument" in text or "positional argument" in text:
        hint = "example_inputs must be the tuple of positional arguments, example_kwargs the named ones"
    return ExportError(f"torch.export failed: {first_line(error)}", where=title, hint=hint)


def _trains_batch_norm(program: Any) -> bool:
    """Return whether a batch norm updates running statistics, also inside of a region (`torch.no_grad()`, autocast).

    The schema of `batch_norm` does not show this mutation.
    """
    return any(
        str(n.target) == "aten.batch_norm.default" and len(n.args) > 5 and bool(n.args[5]) for n in _nodes_of(program)
    )


def _nodes_of(program: Any) -> Iterator[Any]:
    """Nodes of the program's graph and of all graphs inside it."""
    import torch

    for module in program.graph_module.modules():
        yield from module.graph.nodes if isinstance(module, torch.fx.GraphModule) else ()


def _is_ready(program: Any) -> bool:
    """Return whether every node has a builder (or a functional variant with one), so that decomposition can be skipped.

    Decomposition takes half of the import time.
    """
    for node in _nodes_of(program):
        if node.op != "call_function" or type(node.meta.get("val")).__name__ in ("SymInt", "SymBool", "SymFloat"):
            continue
        overload = overload_of(node.target)
        known = any(overload in table for table in (TABLE, IGNORED, cx.TABLE)) or bool(functional(node.target))
        if overload not in ("getitem", *MODES) and not known:
            return False
    return not _trains_batch_norm(program)


def _decompositions(program: Any) -> dict[Any, Any]:
    """Return torch.export's default decomposition table without the overloads that have a builder."""
    import torch

    registered = torch._C._dispatch_get_registrations_for_dispatch_key("CompositeImplicitAutograd")
    return dict(_decomposition_table(_trains_batch_norm(program), len(registered)))


@lru_cache(maxsize=4)
def _decomposition_table(training: bool, registered: int) -> dict[Any, Any]:
    """The table of `_decompositions`, which takes torch 50 ms to make: for programs that train a batch norm or do not,
    and as long as the number of composite operators that are registered, the caller's own included, is the same.
    """
    import torch

    table = dict(torch.export.default_decompositions())
    for overload in (*TABLE, *cx.TABLE):
        packet, _, kind = overload.partition(".")
        if packet == "batch_norm" and training:
            continue  # the running statistics change: only the functional overload returns them
        op = getattr(getattr(torch.ops.aten, packet, None), kind, None)
        if op is not None and op in table and not aliases(op):
            table.pop(op)
    return table


def _named_dims(shapes: Any) -> Any:
    """Return `dynamic_shapes` with each string replaced by a torch.export.Dim of that name."""
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
    """Return, for each tensor argument in torch.export's order, a mapping from free axes to dimension names."""
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


__all__ = ["first_line", "from_exported", "load_module"]
