"""Number of files in which each op's name stands as a string literal, outside tests and benchmarks.

    python -m benchmarks.op_places [--files]

Knowledge of an op belongs into its entry in the op table; every other file that names the op is a further place to
change. A literal counts if it equals the name, so names that are also other words ("max", "sum", "input") count too
high. `--files`: print the files with the number of ops that each names, too.
"""

from __future__ import annotations

import ast
import sys
from collections import defaultdict
from pathlib import Path

from tensor_graphs.egraph.builders import builders
from tensor_graphs.egraph.composites import composite_ops
from tensor_graphs.egraph.ops.ops import OPS

assert builders and composite_ops  # register the ops

ROOT = Path(__file__).parents[1]
PACKAGES = ("egraph", "rules", "extract", "costdb", "backends", "models")


def sources() -> list[Path]:
    """The package's Python files."""
    found = {f for package in PACKAGES for f in (ROOT / package).rglob("*.py")}
    for entry in (ROOT / "src" / "tensor_graphs").iterdir():
        if not entry.is_symlink():
            found |= set(entry.rglob("*.py")) if entry.is_dir() else {entry} if entry.suffix == ".py" else set()
    return sorted(found)


def places() -> dict[str, set[str]]:
    """Op name -> files that have it as a string literal, relative to the repository."""
    found: dict[str, set[str]] = defaultdict(set)
    for file in sources():
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value in OPS:
                found[node.value].add(str(file.relative_to(ROOT)))
    return found


def main() -> None:
    """Print the counts, the largest first, and their sum."""
    found = places()
    for op, files in sorted(found.items(), key=lambda item: (-len(item[1]), item[0])):
        print(f"{op:20} {len(files):3}")
    print(f"{'sum':20} {sum(map(len, found.values())):3}")
    if "--files" in sys.argv:
        ops: dict[str, int] = defaultdict(int)
        for file in (f for files in found.values() for f in files):
            ops[file] += 1
        for file, count in sorted(ops.items(), key=lambda item: (-item[1], item[0])):
            print(f"{file:60} {count:3}")


if __name__ == "__main__":
    main()
