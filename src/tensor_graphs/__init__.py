"""tensor_graphs: a tensor superoptimizer.

E-graph rewriting generates equivalent programs, measured kernel costs select one.

    import tensor_graphs as tg

    x, w = tg.input("x", (16, 4096)), tg.param("w", (4096, 4096))
    program = tg.optimize(tg.softmax((x * 0.125) @ w), params={"w": W})
    y = program(X)

Public names are imported lazily on first use, so `import tensor_graphs` imports neither Torch nor a solver.
"""

from __future__ import annotations

import sys
from types import ModuleType
from typing import TYPE_CHECKING, Any

from . import imported as _imported  # also registers what forked children do

__version__ = "0.1.0"

#: public name -> (module, attribute of that module; "" for the module itself)
_PUBLIC: dict[str, tuple[str, str]] = {
    **{n: ("explorer.saturate", n) for n in ("saturate", "paths")},
    "optimize": ("pipeline.optimize", "optimize"),
    "Progress": ("progress", "Progress"),
    **{n: ("explorer.explain_rewrites", n) for n in ("explain_equality", "explain_rewrites")},
    "pareto": ("explorer.pareto", "pareto"),
    "equivalent": ("explorer.equivalence", "equivalent"),
    "extract": ("extract", ""),
    "load_program": ("pipeline.load_program", "load_program"),
    "Program": ("backends.program.program", "Program"),
    "load": ("models.load", "load"),
    "save_graph": ("models.files.native", "save_graph"),
    "Limits": ("egraph.saturate.saturate", "Limits"),
    "Graph": ("egraph.ir.graph", "Graph"),
    "Tensor": ("egraph.ir.tensor", "Tensor"),
    "Rule": ("egraph.patterns.rule", "Rule"),
    "kernel": ("backends.user.declare", "kernel"),
    "Launch": ("backends.user.declare", "Launch"),
    "use_kernels": ("backends.admission.use", "use_kernels"),
    "Generator": ("generation", "Generator"),
    "compile": ("torch_compile", "compile"),
    "torch_compile": ("torch_compile", ""),
    "settings": ("settings", ""),
    "errors": ("errors", ""),
}


if not TYPE_CHECKING:  # a type checker would take any name for an attribute

    def __getattr__(name: str) -> Any:
        from importlib import import_module
        from importlib.util import find_spec

        if name in _PUBLIC:
            with _imported.other_packages_named():
                from .extract.model.gc_pause import gc_paused

            module, attribute = _PUBLIC[name]
            # collections take half of the time of imports once Torch is loaded
            with gc_paused(), _imported.other_packages_named():
                found = import_module(f".{module}", __name__)
            return getattr(found, attribute) if attribute else found
        if (
            not name.startswith("_") and find_spec(f".{name}", __name__) is None
        ):  # modules of this package import others so
            numeric = import_module(".numeric", __name__)
            if name in numeric.__all__:
                return getattr(numeric, name)
        place = "; it is in tensor_graphs.errors" if name in vars(import_module(".errors", __name__)) else ""
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}{place}")


class _Extract(ModuleType):
    """Module class of the subpackage `tensor_graphs.extract`, which makes the module callable as `tg.extract(...)`."""

    def __call__(self, source: Any, **options: Any) -> Any:
        """The cheapest extraction of an e-graph (`tensor_graphs.explorer.egraph_file.extract`)."""
        from .explorer.egraph_file import extract

        return extract(source, **options)


class _Package(ModuleType):
    """Module class of this package, which makes the subpackage `extract` callable when the import system assigns it."""

    def __setattr__(self, name: str, value: Any) -> None:
        if name == "extract" and type(value) is ModuleType:
            value.__class__ = _Extract
        super().__setattr__(name, value)


sys.modules[__name__].__class__ = _Package


def __dir__() -> list[str]:
    from importlib import import_module

    numeric = import_module(".numeric", __name__)
    return sorted({*_PUBLIC, *numeric.__all__, "__version__"})


if TYPE_CHECKING:
    from . import errors as errors
    from . import settings as settings
    from . import torch_compile as torch_compile
    from .backends.admission.use import use_kernels as use_kernels
    from .backends.program.program import Program as Program
    from .backends.user.declare import Launch as Launch
    from .backends.user.declare import kernel as kernel
    from .egraph.builders.contraction_builders import *  # noqa: F403 - mypy follows one star, not two
    from .egraph.builders.elementwise_builders import *  # noqa: F403
    from .egraph.builders.indexing_builders import *  # noqa: F403
    from .egraph.builders.layout_builders import *  # noqa: F403
    from .egraph.builders.leaf_builders import *  # noqa: F403
    from .egraph.builders.operand_alignment import *  # noqa: F403
    from .egraph.builders.reduction_builders import *  # noqa: F403
    from .egraph.ir.graph import Graph as Graph
    from .egraph.ir.tensor import Tensor as Tensor
    from .egraph.patterns.rule import Rule as Rule
    from .egraph.saturate.saturate import Limits as Limits
    from .egraph.types.dims import dim as dim
    from .explorer.egraph_file import extract as extract
    from .explorer.equivalence import equivalent as equivalent
    from .explorer.explain_rewrites import explain_equality as explain_equality
    from .explorer.explain_rewrites import explain_rewrites as explain_rewrites
    from .explorer.pareto import pareto as pareto
    from .explorer.saturate import paths as paths
    from .explorer.saturate import saturate as saturate
    from .generation import Generator as Generator
    from .models.files.native import save_graph as save_graph
    from .models.load import load as load
    from .numeric import *  # noqa: F403
    from .pipeline.load_program import load_program as load_program
    from .pipeline.optimize import optimize as optimize
    from .progress import Progress as Progress
    from .torch_compile import compile as compile
