"""Imports go one way, and importing the package stays light."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
#: folder -> our folders it may import (its own is always allowed)
ALLOWED = {
    "egraph": set(),
    "rules": {"egraph"},
    "extract": {"egraph"},
    "costdb": {"egraph", "extract"},
    "backends": {"egraph", "extract", "costdb"},
    "models": {"egraph", "extract", "costdb", "backends"},
}
SHARED = {"errors", "plain", "private", "settings", "writing"}


def imported(file: Path) -> set[str]:
    """Names of our packages that a file imports relatively from the package's root."""
    found = set()
    depth = len(file.relative_to(ROOT).parts) - 1
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.level == depth + 1:
            found |= {node.module.split(".")[0]} if node.module else {a.name for a in node.names}
        absolute = [node.module] if isinstance(node, ast.ImportFrom) and not node.level else []
        absolute += [a.name for a in node.names] if isinstance(node, ast.Import) else []
        assert not any((n or "").split(".")[0] == "tensor_graphs" for n in absolute), f"{file} imports absolutely"
    return found


@pytest.mark.parametrize("folder", ALLOWED)
def test_imports_go_one_way(folder: str) -> None:
    for file in sorted((ROOT / folder).rglob("*.py")):
        wrong = imported(file) - ALLOWED[folder] - SHARED - {folder}
        assert not wrong, f"{file.relative_to(ROOT)} imports {sorted(wrong)}"


@pytest.mark.parametrize("heavy", ["torch", "onnx", "ortools", "duckdb", "pyarrow", "egglog"])
def test_importing_the_package_is_light(heavy: str) -> None:
    code = f"import sys, tensor_graphs; sys.exit({heavy!r} in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_building_an_expression_needs_no_engine() -> None:
    code = (
        "import sys, tensor_graphs as tg\n"
        "x = tg.input('x', (2, 3)); tg.softmax(x * 2.0 + 1.0)\n"
        "sys.exit(any(m in sys.modules for m in ('torch', 'egglog', 'ortools', 'duckdb')))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
