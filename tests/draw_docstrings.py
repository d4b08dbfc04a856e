"""Random sample of docstrings, for a review by readers who do not know the code: `python -m tests.draw_docstrings
--seed N [--count 40] [--only PART_OF_A_PATH] [--all]`. Prints path, name, signature and docstring of each. Drawn are
public modules, classes and functions of the package; with `--all` also private ones, comments with the line that
follows them, benchmarks, and helpers of tests.
"""

from __future__ import annotations

import argparse
import ast
import io
import random
import tokenize
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
FOLDERS = ("backends", "costdb", "egraph", "extract", "models", "rules", "src/tensor_graphs")
FURTHER = ("benchmarks", "tests")
RECORDED = ("tests/backends/golden", "tests/data")  # files that are written by programs
DIRECTIVES = ("noqa", "type: ignore", "fmt:", "pragma", "----", "#!")
Named = ast.ClassDef | ast.FunctionDef


def signature(node: Named) -> str:
    """Parameters and the type of the result of a function; empty for a class."""
    if isinstance(node, ast.ClassDef):
        return ""
    return f"({ast.unparse(node.args)})" + (f" -> {ast.unparse(node.returns)}" if node.returns else "")


def docstrings(path: Path, private: bool = False) -> Iterator[tuple[str, str, str]]:
    """(name, signature, docstring) of the module and of its classes, functions and methods: the public ones, with
    `private` all."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    if text := ast.get_docstring(tree):
        yield "module", "", text
    todo: list[tuple[str, ast.AST]] = [("", tree)]
    while todo:
        prefix, node = todo.pop()
        for one in ast.iter_child_nodes(node):
            if isinstance(one, Named) and (private or not one.name.startswith("_")):
                if text := ast.get_docstring(one):
                    yield prefix + one.name, signature(one), text
                if isinstance(one, ast.ClassDef):
                    todo.append((f"{prefix}{one.name}.", one))


def comments(path: Path) -> Iterator[tuple[str, str, str]]:
    """("comment", line number, text) of each comment: its line of code, or all lines of comments in a row and the line
    of code after them. Directives for tools are left out."""
    source = path.read_text(encoding="utf-8")
    lines, block = [*source.splitlines(), ""], list[str]()
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT and not any(d in token.string for d in DIRECTIVES):
            row = token.start[0]
            block.append(lines[row - 1].strip())
            if block[-1] == token.string and lines[row].strip().startswith("#"):
                continue
            follows = [lines[row].strip()] if block[-1] == token.string else []
            yield "comment", f", line {row}", "\n".join(block + follows)
            block = []


def drawn_files(everything: bool) -> list[Path]:
    """Files of the package; with `everything` also benchmarks and helpers of tests."""
    files = (p for f in (*FOLDERS, *(FURTHER if everything else ())) for p in (ROOT / f).rglob("*.py"))
    return sorted(
        p for p in files if not any(q.is_symlink() for q in p.parents) and not p.name.startswith("test_")
        and not str(p.relative_to(ROOT)).startswith(RECORDED)
    )  # fmt: skip


def main() -> None:
    """Parse the command line, draw and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split(":")[0])
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--count", type=int, default=40)
    parser.add_argument("--only", default="", help="part of a path")
    parser.add_argument("--all", action="store_true", help="private names, comments, benchmarks, helpers of tests too")
    options = parser.parse_args()
    found = [
        (p, *d) for p in drawn_files(options.all) if options.only in str(p)
        for d in (*docstrings(p, options.all), *(comments(p) if options.all else ()))
    ]  # fmt: skip
    for path, name, more, text in random.Random(options.seed).sample(found, min(options.count, len(found))):
        print(f"## {path.relative_to(ROOT)}: {name}{more}\n{text}\n")


if __name__ == "__main__":
    main()
