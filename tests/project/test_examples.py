"""Examples in documents use names, keyword arguments, commands and options that exist."""

from __future__ import annotations

import ast
import inspect
import re
import shlex
from collections.abc import Iterator
from typing import Any

import pytest
import typer
from typer.core import TyperGroup

import tensor_graphs as tg
from tensor_graphs.cli.app import app

from .test_readme import DOCUMENTS, ROOT

COMMAND = re.compile(r"(?:^|`)(?:\$ )?tensor-graphs ([^`\n]+)", re.MULTILINE)


def python_blocks() -> Iterator[tuple[str, str]]:
    """(place, source) of each Python block of a document."""
    for path in DOCUMENTS:
        text = path.read_text(encoding="utf-8")
        for found in re.finditer(r"^```py(?:thon)?[^\n]*\n(.*?)^```", text, re.DOTALL | re.MULTILINE):
            source = f"{{{found[1]}}}" if found[1].startswith('"') else found[1]  # an entry of a table
            yield f"{path.relative_to(ROOT)}:{text[: found.start()].count(chr(10)) + 1}", source


def value_of(node: ast.expr) -> Any:
    """The object that `tg.a.b` names; None for an expression of another form."""
    if isinstance(node, ast.Name):
        return tg if node.id == "tg" else None
    if isinstance(node, ast.Attribute) and (owner := value_of(node.value)) is not None:
        return getattr(owner, node.attr)
    return None


def unknown_keywords(call: ast.Call) -> set[str]:
    """Keyword arguments of a call of a public function that the function does not have."""
    function = value_of(call.func)
    if function is None:
        return set()
    parameters = inspect.signature(function).parameters
    if any(p.kind is p.VAR_KEYWORD for p in parameters.values()):
        return set()
    return {k.arg for k in call.keywords if k.arg is not None} - parameters.keys()


def test_python_examples_use_names_and_keywords_that_exist() -> None:
    blocks = list(python_blocks())
    assert len(blocks) > 40
    for place, source in blocks:
        for node in ast.walk(ast.parse(source)):
            if isinstance(node, ast.Attribute):
                value_of(node)
            if isinstance(node, ast.Call):
                assert not unknown_keywords(node), f"{place}: {ast.unparse(node)}"


def examples_of_commands() -> Iterator[tuple[str, list[str]]]:
    """(document, words) of each example of the command line: blocks and inline code."""
    for path in DOCUMENTS:
        for found in COMMAND.finditer(path.read_text(encoding="utf-8")):
            yield str(path.relative_to(ROOT)), shlex.split(found[1].replace("'", "").replace('"', ""), comments=True)


def options_of(command: Any) -> set[str]:
    """All spellings of a command's options."""
    return {name for p in command.params for name in (*p.opts, *p.secondary_opts)} | {"--help"}


def test_examples_of_the_command_line_use_commands_and_options_that_exist() -> None:
    examples = list(examples_of_commands())
    assert len(examples) > 60
    whole = typer.main.get_command(app)
    for document, words in examples:
        command: Any = whole
        rest = list(words)
        known = options_of(command)
        while isinstance(command, TyperGroup) and rest and re.fullmatch(r"[a-z][a-z-]*", rest[0]):
            assert rest[0] in command.commands, f"{document}: tensor-graphs {' '.join(words)}"
            command = command.commands[rest.pop(0)]
            known |= options_of(command)
        used = {w.partition("=")[0].rstrip(",.;:)]") for w in rest if re.match(r"--?[a-z]", w)}
        assert used <= known, f"{document}: tensor-graphs {' '.join(words)}: {used - known}"


def test_every_command_has_a_row_in_the_page_of_the_command_line() -> None:
    rows = re.findall(
        r"^\| `tensor-graphs (.*?)(?<!\\)` \|", (ROOT / "docs/cli.md").read_text(encoding="utf-8"), re.MULTILINE
    )
    listed = {f"tensor-graphs {row}".replace("\\|", "|") for row in rows}
    for name, command in typer.main.get_command(app).commands.items():  # type: ignore[attr-defined]
        own = [row.split() for row in listed if row.split()[1] == name]
        assert own, name
        for inner in getattr(command, "commands", ()):
            assert any(inner in re.split(r"[|]", word) for row in own for word in row[2:]), f"{name} {inner}"


@pytest.mark.parametrize(("code", "wrong"), [("tg.kernel('c', refrence=1)", {"refrence"}), ("f(x=1)", set())])
def test_a_misspelt_keyword_is_found(code: str, wrong: set[str]) -> None:
    (call,) = (n for n in ast.walk(ast.parse(code)) if isinstance(n, ast.Call))
    assert unknown_keywords(call) == wrong
