"""`torch.compile` backend: programs for the graphs that Dynamo captures, with eager execution as fallback.

    import tensor_graphs as tg

    fast = tg.compile(model, budget=30)               # or torch.compile(model, backend="tensor_graphs", options={...})
    y = fast(x)                                       # eager at first, programs when they are ready and faster
    print(tg.torch_compile.last_report())

In: a Dynamo graph and options.
Out: a callable; reports.
Imports: backends, backends.program, backends.runtime, backends.tuning, backends.verification, bytecode, costdb.keys,
    egraph.ir, errors, models.files, models.torch_export, option_checks, options, pipeline, pipeline.execution, private,
    processes, settings, wording.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

from ..errors import UsageError
from .options import CompileOptions
from .report import GraphReport, last_report, reports

if TYPE_CHECKING:
    from .dynamo_backend import backend as backend


if not TYPE_CHECKING:  # a type checker would take any name for an attribute

    def __getattr__(name: str) -> Any:
        """`backend`. Dynamo traces before it calls the backend, so its rule is installed when it is asked for."""
        if name != "backend":
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        from .dynamo_backend import backend
        from .recurrent_modules import install_rule

        install_rule()
        return backend


P = ParamSpec("P")
R = TypeVar("R")


def compile(
    model: Callable[P, R], *, fullgraph: bool = False, dynamic: bool | None = None, **options: Any
) -> Callable[P, R]:
    """`torch.compile(model)` with this backend: a callable in place of a module or function.

    `fullgraph`, `dynamic`: as for torch.compile. `options`: see `CompileOptions`. Raises UsageError for unknown ones,
    and for a `model` that is a class or cannot be called.
    Calls go to `model` itself where that is faster than the compiled callable with its guards (see `whole_calls`).
    """
    CompileOptions.of(options)
    if isinstance(model, type) or not callable(model):
        raise UsageError(
            f"{str(model)[:80]} cannot be compiled: it is {'a class' if isinstance(model, type) else 'not callable'}",
            hint="give a module (an object, not its class) or a function",
        )
    from .whole_calls import compiled

    made: Callable[P, R] = compiled(model, fullgraph=fullgraph, dynamic=dynamic, options=options)
    return made


def wait(seconds: float | None = None) -> bool:
    """Wait for the searches of this process, at most `seconds`; returns whether all have ended.

    The next call of a compiled graph then times its programs and decides. With gradients, the search of a graph's
    backward pass begins at the call after that of its forward pass has ended: until then the result is False, so that
    `while not wait(): step()` ends once everything is searched.
    """
    from .compiled_graph import wait

    return wait(seconds)


__all__ = ["CompileOptions", "GraphReport", "backend", "compile", "last_report", "reports", "wait"]
