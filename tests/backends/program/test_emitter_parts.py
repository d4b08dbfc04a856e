"""Emitters are composed of parts: no chain of classes over one shared state."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
from types import ModuleType

import pytest

from tensor_graphs.backends.cuda.emit import frame as cuda_frame
from tensor_graphs.backends.cuda.emit.loads import ThreadLoads
from tensor_graphs.backends.ir.expr import Builder
from tensor_graphs.backends.ir.unfusable import Unfusable
from tensor_graphs.backends.triton.emit import frame as triton_frame

LEVELS = 2  # of inheritance below a class without bases of ours: Writer, Frame, AttentionFrame


def own_bases(cls: type) -> list[type]:
    """Bases of a class in this package, direct and indirect, without the class."""
    return [base for base in cls.__mro__[1:] if base.__module__.startswith("tensor_graphs.")]


@pytest.mark.parametrize("package", ["triton.emit", "triton.warp_specialized", "cuda.emit", "cuda.warp_specialized", "cuda.tiled_fp32"])  # fmt: skip
def test_classes_of_emitters_inherit_at_most_two_levels(package: str) -> None:
    path = f"tensor_graphs.backends.{package}"
    names = [m.name for m in pkgutil.iter_modules(importlib.import_module(path).__path__, f"{path}.")]
    classes = [c for n in names for c in vars(importlib.import_module(n)).values() if inspect.isclass(c)]
    assert len(classes) > 10
    deep = {c.__name__: [b.__name__ for b in own_bases(c)] for c in classes if len(own_bases(c)) > LEVELS}
    assert not deep


@pytest.mark.parametrize("module", [triton_frame, cuda_frame])
def test_a_frame_knows_no_part(module: ModuleType) -> None:
    """State and the writing of lines come first: what is emitted into a frame is not a matter of the frame."""
    text = inspect.getsource(module)
    assert not [name for name in ("loads", "loops", "stores", "values", "reductions") if f"from .{name}" in text]


def test_loads_without_reductions_refuse_them() -> None:
    """The epilogue of a GEMM has loads and no part that reduces."""
    with pytest.raises(Unfusable, match="beside products"):
        ThreadLoads.reduce(Builder().const(1.0))
