"""Random sample of the docstrings of public modules, classes and functions, for a review by readers who do not know
the code: `python -m tests.draw_docstrings --seed N [--count 40] [--only PART_OF_A_PATH]`. Prints path, name,
signature and docstring of each.
"""

from __future__ import annotations

import argparse
import ast
import random
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
FOLDERS = ("backends", "costdb", "egraph", "extract", "models", "rules", "src/tensor_graphs")
Named = ast.ClassDef | ast.FunctionDef


def signature(node: Named) -> str:
    """Parameters and the type of the result of a function; empty for a class."""
    if isinstance(node, ast.ClassDef):
        return ""
    return f"({ast.unparse(node.args)})" + (f" -> {ast.unparse(node.returns)}" if node.returns else "")


def docstrings(path: Path) -> Iterator[tuple[str, str, str]]:
    """(name, signature, docstring) of the module and of its public classes, functions and methods."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    if text := ast.get_docstring(tree):
        yield "module", "", text
    todo: list[tuple[str, ast.AST]] = [("", tree)]
    while todo:
        prefix, node = todo.pop()
        for one in ast.iter_child_nodes(node):
            if isinstance(one, Named) and not one.name.startswith("_"):
                if text := ast.get_docstring(one):
                    yield prefix + one.name, signature(one), text
                if isinstance(one, ast.ClassDef):
                    todo.append((f"{prefix}{one.name}.", one))


def main() -> None:
    """Parse the command line, draw and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split(":")[0])
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--count", type=int, default=40)
    parser.add_argument("--only", default="", help="part of a path")
    options = parser.parse_args()
    files = sorted(p for f in FOLDERS for p in (ROOT / f).rglob("*.py") if not any(q.is_symlink() for q in p.parents))
    found = [(p, *d) for p in files if options.only in str(p) for d in docstrings(p)]
    for path, name, signature, text in random.Random(options.seed).sample(found, min(options.count, len(found))):
        print(f"## {path.relative_to(ROOT)}: {name}{signature}\n{text}\n")


if __name__ == "__main__":
    main()
