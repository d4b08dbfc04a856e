"""A type checker sees every public name: the imports under `if TYPE_CHECKING` give what `__getattr__` finds."""

from __future__ import annotations

import ast
from importlib import import_module
from pathlib import Path

import tensor_graphs as tg


def _literal_names(module: str) -> set[str]:
    """Names in the literal `__all__` of a module; type checkers do not evaluate other expressions."""
    tree = ast.parse(Path(str(import_module(module).__file__)).read_text())
    lists = [n.value for n in tree.body if isinstance(n, ast.Assign) and ast.unparse(n.targets[0]) == "__all__"]
    texts = [
        e.value for found in lists if isinstance(found, ast.List) for e in found.elts if isinstance(e, ast.Constant)
    ]
    return {str(text) for text in texts}


def test_type_checkers_see_every_public_name() -> None:
    body = ast.parse(Path(str(tg.__file__)).read_text()).body
    block = next(n for n in reversed(body) if isinstance(n, ast.If) and ast.unparse(n.test) == "TYPE_CHECKING")
    seen: set[str] = set()
    for node in block.body:
        assert isinstance(node, ast.ImportFrom)
        for name in node.names:
            seen |= _literal_names(f"tensor_graphs.{node.module}") if name.name == "*" else {str(name.asname)}
    assert set(dir(tg)) - {"__version__"} <= seen
