"""Defines the null backend: kernels of every op that do nothing and leave their output unwritten.

Tests use it to run the whole pipeline (candidates, plans, memory, emission, programs) without arithmetic, and to
measure a program's overhead beyond its kernels.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property

from ...egraph.ops.ops import OPS
from ...extract.model.library_kernel import LibraryKernel
from ..contract import BackendBase
from ..runtime.views import view_templates

_KEYWORDS = ("and", "or", "not")


def _row(op: str) -> LibraryKernel:
    entry = OPS[op]
    operands = [f"x{i}" for i in range(entry.arity)]
    attrs = [f"{a}={a}" for a in entry.attrs]
    name = f"{op}_" if op in _KEYWORDS else op
    text = ", ".join("{" + o + "}" for o in operands)
    return LibraryKernel(f"null.{op}", "null", f"{name}({', '.join([*operands, *attrs])})", f"nothing({text}, {{out}})",
                    setup=("nothing",))  # fmt: skip


class NullBackend(BackendBase):
    """Backend with one empty kernel for every op that is not a leaf. `helpers`: the source text of that kernel's
    function."""

    name = "null"
    helpers: Mapping[str, str] = {
        "nothing": 'def nothing(*arrays):\n    """Empty kernel: does not write the output."""'
    }

    @cached_property
    def templates(self) -> Sequence[LibraryKernel]:
        """Templates (kernels' patterns and code): views, a copy, and one empty kernel per op."""
        copy = LibraryKernel("null.copy", "null", "x", "nothing({x}, {out})", family="copy", setup=("nothing",))
        return (*view_templates(), copy, *(_row(op) for op, entry in OPS.items() if entry.arity))


BACKEND = NullBackend()
