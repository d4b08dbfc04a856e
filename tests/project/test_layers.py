"""Packages import in one direction, each says what it imports, and importing the library stays light."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
FOLDERS = ("egraph", "rules", "extract", "costdb", "backends", "models")
ORDER = ("egraph", "rules", "extract", "costdb", "backends", "models")
ALLOWED = {
    "egraph": set(),
    "rules": {"egraph"},
    "extract": {"egraph"},
    "costdb": {"egraph", "extract"},
    "backends": {"egraph", "extract", "costdb"},
    "models": {"egraph", "extract", "costdb", "backends"},
}
UPPER = (
    "verification",
    "report",
    "option_checks",
    "options",
    "public_functions",
    "pipeline",
    "explorer",
    "generation",
    "torch_compile",
    "kernels",
    "cli",
)  # of src/tensor_graphs, each may import those before it
BASE = {
    "bytecode",
    "errors",
    "imported",
    "settings",
    "cache_folder",
    "progress",
    "processes",
    "plain",
    "lru_map",
    "wording",
    "private",
    "writing",
}  # modules of src/tensor_graphs that every folder may import


def module_files() -> Iterator[tuple[str, Path]]:
    """Dotted names, relative to the package, and files of all modules and packages."""
    for folder in FOLDERS:
        for path in sorted((ROOT / folder).rglob("*.py")):
            parts = path.relative_to(ROOT).with_suffix("").parts
            yield ".".join(parts[:-1] if parts[-1] == "__init__" else parts), path
    source = ROOT / "src" / "tensor_graphs"
    for path in sorted(source.rglob("*.py")):
        parts = path.relative_to(source).with_suffix("").parts
        parts = parts[:-1] if parts[-1] == "__init__" else parts
        if parts and parts[0] not in FOLDERS and parts[-1] != "__main__":
            yield ".".join(parts), path


FILES = dict(module_files())


def resolved(module: str, is_package: bool, node: ast.ImportFrom) -> Iterator[str]:
    """Dotted names of our modules that a from-import names, lazy imports inside functions included."""
    base = module.split(".") if module else []
    base = base if is_package else base[:-1]
    base = base[: len(base) - (node.level - 1)]
    target = [*base, *(node.module.split(".") if node.module else [])]
    for alias in node.names:
        name = ".".join([*target, alias.name])
        yield name if name in FILES else ".".join(target)


def statements(tree: ast.AST) -> Iterator[ast.stmt]:
    """All statements of a module, nested ones included, except under `if TYPE_CHECKING`."""
    todo: list[ast.AST] = [tree]
    while todo:
        node = todo.pop()
        if isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING":
            continue
        for inside in ("body", "orelse", "finalbody", "handlers", "cases"):
            inner = getattr(node, inside, None)
            todo += inner if isinstance(inner, list) else ()
        if isinstance(node, ast.stmt):
            yield node


@cache
def facts_of(module: str) -> tuple[frozenset[str], tuple[str, ...]]:
    """(our modules that a module imports, at import time or later, except for type checking only; its top-level
    classes)."""
    path = FILES[module]
    tree = ast.parse(path.read_text(encoding="utf-8"))
    found: set[str] = set()
    for node in statements(tree):
        if isinstance(node, ast.ImportFrom) and node.level:
            found |= set(resolved(module, path.name == "__init__.py", node))
        absolute = [node.module] if isinstance(node, ast.ImportFrom) and not node.level else []
        absolute += [a.name for a in node.names] if isinstance(node, ast.Import) else []
        assert not any((n or "").split(".")[0] == "tensor_graphs" for n in absolute), f"{path} imports absolutely"
    classes = tuple(node.name for node in tree.body if isinstance(node, ast.ClassDef))
    return frozenset(found - {module, ""}), classes


def imports_of(module: str) -> frozenset[str]:
    """Our modules that a module imports, at import time or later; imports for type checking only are left out."""
    return facts_of(module)[0]


def package_of(module: str) -> str:
    """The subpackage that a module is in; a module at the top is a package of its own."""
    return module if "." not in module or FILES[module].name == "__init__.py" else module.rpartition(".")[0]


@cache
def packages() -> dict[str, set[str]]:
    """Subpackages and the subpackages that their modules import."""
    found: dict[str, set[str]] = {}
    for module in FILES:
        own = package_of(module)
        found.setdefault(own, set()).update(package_of(m) for m in imports_of(module) if m in FILES)
    return {p: used - {p} for p, used in found.items()}


def cycles(graph: dict[str, set[str]]) -> list[list[str]]:
    """Strongly connected components of more than one node (Tarjan)."""
    index: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    found = []

    def visit(node: str) -> None:
        index[node] = low[node] = len(index)
        stack.append(node)
        for other in graph.get(node, ()):
            if other not in index:
                visit(other)
            low[node] = min(low[node], low[other] if other in stack else low[node])
        if low[node] == index[node]:
            component = []
            while not component or component[-1] != node:
                component.append(stack.pop())
            if len(component) > 1:
                found.append(sorted(component))

    for node in graph:
        if node not in index:
            visit(node)
    return found


@pytest.mark.parametrize("folder", ALLOWED)
def test_folders_import_one_way(folder: str) -> None:
    for module in (m for m in FILES if m.split(".")[0] == folder):
        wrong = {i.split(".")[0] for i in imports_of(module)} - ALLOWED[folder] - BASE - {folder}
        assert not wrong, f"{module} imports {sorted(wrong)}"


@pytest.mark.parametrize("number", range(len(UPPER)), ids=UPPER)
def test_upper_packages_import_one_way(number: int) -> None:
    own, later = UPPER[number], {*UPPER[number + 1 :]}
    for module in (m for m in FILES if m.split(".")[0] == own):
        wrong = {i.split(".")[0] for i in imports_of(module)} & later
        assert not wrong, f"{module} imports {sorted(wrong)}"


def test_no_packages_import_each_other() -> None:
    assert cycles(packages()) == []


def test_no_modules_import_each_other() -> None:
    assert cycles({m: {i for i in imports_of(m) if FILES.get(i)} for m in FILES}) == []


def test_packages_are_small() -> None:
    modules = [path.parent for path in FILES.values() if path.name != "__init__.py"]
    assert [str(folder) for folder in {*modules} if modules.count(folder) > 40] == []


def test_packages_state_what_they_import() -> None:
    for package in sorted(p for p in FILES if FILES[p].name == "__init__.py"):
        text = ast.get_docstring(ast.parse(FILES[package].read_text(encoding="utf-8"))) or ""
        stated = re.search(r"^Imports: (.*?)\.$", text, re.M | re.S)
        assert stated, f"{package}/__init__.py has no line 'Imports: ...'"
        names = {n for n in re.split(r"[,\s]+", stated[1]) if n and n != "nothing"}
        used = packages()[package]
        assert used <= names, f"{package} imports {sorted(used - names)} without stating it"
        assert names <= used, f"{package} states imports it does not use: {sorted(names - used)}"


def test_importing_the_package_is_light() -> None:
    code = (
        "import sys, tensor_graphs\n"
        "print([m for m in ('torch', 'onnx', 'ortools', 'duckdb', 'pyarrow', 'egglog') if m in sys.modules])"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"


def test_building_an_expression_needs_no_engine() -> None:
    """Nor docstrings, which -OO strips; nor does the error of a wrong option need assertions, which it strips, too."""
    code = (
        "import sys, tensor_graphs as tg\n"
        "x = tg.input('x', (2, 3)); tg.softmax(x * 2.0 + 1.0); tg.optimize\n"
        "print([m for m in ('torch', 'egglog', 'ortools', 'duckdb') if m in sys.modules])\n"
        "try: tg.optimize(x + 1.0, tolerance='sloppy', backend='numpy', measure=False)\n"
        "except tg.errors.UsageError as error: print(error.exit_code)\n"
    )
    done = subprocess.run([sys.executable, "-OO", "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split("\n") == ["[]", "2", ""]


#: Names that users write, which stand for something else inside the package.
PUBLIC_NAMES = {"Kernel", "Launch"}


def test_class_names_are_unique() -> None:
    named: dict[str, list[str]] = {}
    for module in FILES:
        for name in facts_of(module)[1]:
            if not name.startswith("_") and name not in PUBLIC_NAMES:
                named.setdefault(name, []).append(module)
    assert {name: modules for name, modules in named.items() if len(modules) > 1} == {}


def test_modules_named_in_strings_exist() -> None:
    """Worker processes, entry points and messages name modules as text, which a renaming would leave behind."""
    wrong = []
    for module, path in FILES.items():
        source = path.read_text(encoding="utf-8")
        for node in ast.walk(ast.parse(source)) if "tensor_graphs." in source else ():
            text = node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else ""
            for name in re.findall(r"\btensor_graphs\.([a-z_]\w*(?:\.[a-z_]\w*)+)", text):
                if name not in FILES and name.rpartition(".")[0] not in FILES:  # a module, or a function in one
                    wrong.append(f"{module}:{node.lineno}: tensor_graphs.{name}")
    assert not wrong, "\n".join(wrong)
