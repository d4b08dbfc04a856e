"""Pages of the site that are made from tables, results and files of the repository. MkDocs runs it (`mkdocs.yml`).

Written: the home page (README), contributing, security and changes; the reference of the command line, settings and
errors; the list of decisions; one page a file of benchmarks/results and a notebook; one page for each other file that a
page links to.
"""

from __future__ import annotations

import inspect
import json
import re
import sys
import tempfile
from contextlib import suppress
from dataclasses import fields
from pathlib import Path

import mkdocs_gen_files

sys.path.insert(0, str(Path(__file__).resolve().parent))
from links import PAGES, ROOT, destination, linked, rewritten

LANGUAGES = {".py": "python", ".sh": "bash", ".c": "c", ".md": "markdown", ".toml": "toml", ".json": "json"}


def write(page: str, text: str) -> None:
    """Add a page to the site; `page` is relative to docs/."""
    with mkdocs_gen_files.open(page, "w") as file:
        file.write(text)


def files_as_pages() -> None:
    """README, CONTRIBUTING, SECURITY and CHANGELOG with links to pages."""
    for name, page in PAGES.items():
        if name.endswith(".md") and "/" not in name:
            write(page, rewritten((ROOT / name).read_text(encoding="utf-8"), name))


def sources() -> None:
    """One page for each file or folder that has no page of its own but is linked from one."""
    wanted: set[str] = set()
    pages = [p.relative_to(ROOT).as_posix() for p in ROOT.glob("docs/**/*.md")]
    pages += [name for name in PAGES if name.endswith(".md")]
    pages += [p.relative_to(ROOT).as_posix() for p in ROOT.glob("benchmarks/results/*.md")]
    for name in pages:
        wanted |= linked((ROOT / name).read_text(encoding="utf-8"), name)
    for path in sorted(p for p in wanted if destination(p).startswith("source/")):
        place = ROOT / path
        if place.is_dir():
            listing = "\n".join(f"- `{p.name}`" for p in sorted(place.iterdir()) if not p.name.startswith((".", "__")))
            write(destination(path), f"# {path}\n\n{listing}\n")
        else:
            fence, language = "`" * 6, LANGUAGES.get(place.suffix, "text")
            text = place.read_text(encoding="utf-8")
            write(destination(path), f"# {path}\n\n{fence}{language}\n{text}\n{fence}\n")


def notebooks() -> None:
    """One page a notebook: its cells with the outputs that are stored in it, as text."""
    for path in sorted((ROOT / "notebooks").glob("*.ipynb")):
        parts = []
        for cell in json.loads(path.read_text(encoding="utf-8"))["cells"]:
            text = "".join(cell["source"])
            parts.append(text if cell["cell_type"] == "markdown" else f"``````python\n{text}\n``````")
            for output in cell.get("outputs", ()):
                shown = "".join(output.get("text", output.get("data", {}).get("text/plain", "")))
                parts.append(f"``````text\n{shown.rstrip()}\n``````")
        name = path.relative_to(ROOT).as_posix()
        download = f"This is `{name}` of the repository, with the outputs of the machine on which it ran last."
        write(destination(name), "\n\n".join([parts[0], download, *parts[1:]]) + "\n")


def decisions() -> None:
    """The list of decisions, by number."""
    rows = []
    for path in sorted((ROOT / "docs/decisions").glob("0*.md")):
        title = path.read_text(encoding="utf-8").splitlines()[0].lstrip("# ")
        rows.append(f"- [{title}]({path.name})")
    write("decisions/index.md", "# Decisions\n\nWhat was decided, and why.\n\n" + "\n".join(rows) + "\n")


def benchmarks() -> None:
    """Measured tables, and the list of benchmarks by question."""
    rows = []
    for path in sorted((ROOT / "benchmarks/results").glob("*.md")):
        name = path.relative_to(ROOT).as_posix()
        text = path.read_text(encoding="utf-8")
        write(destination(name), rewritten(text, name))
        rows.append(f"- [{text.splitlines()[0].lstrip('# ')}]({path.name})")
    listed = (ROOT / "benchmarks/README.md").read_text(encoding="utf-8")
    text = rewritten(listed, "benchmarks/README.md")
    write("benchmarks/index.md", text + "\n## Results\n\n" + "\n".join(rows) + "\n")


def settings() -> None:
    """Environment variables, from the fields of `Settings` and the comments beside them."""
    from tensor_graphs.settings import Settings

    source = inspect.getsource(Settings)
    rows = []
    for field in fields(Settings):
        line = next(x for x in source.splitlines() if x.strip().startswith(f"{field.name}:"))
        rows.append(
            f"| `TENSOR_GRAPHS_{field.name.upper()}` | `{field.default!r}` | {line.partition('#')[2].strip()} |"
        )
    write(
        "reference/settings.md",
        "# Settings\n\nEnvironment variables. Precedence: an argument, `tg.settings.override(name=value)`, the "
        "variable, the default.\n\n| variable | default | meaning |\n|---|---|---|\n" + "\n".join(rows) + "\n",
    )  # fmt: skip


def errors() -> None:
    """Classes of errors with their base, exit code and code."""
    from tensor_graphs import errors as module

    rows = []
    for name, kind in vars(module).items():
        if inspect.isclass(kind) and issubclass(kind, module.TensorGraphsError):
            doc = " ".join((inspect.getdoc(kind) or "").split()).replace("|", "\\|")
            rows.append(f"| `{name}` | `{kind.__mro__[1].__name__}` | {kind.exit_code} | `{kind.code}` | {doc} |")
    write(
        "reference/errors.md",
        "# Errors\n\nAll are in `tensor_graphs.errors`, with a message, a location (`where`) and a hint. The command line "
        "returns the exit code; with `--json` the document names the code.\n\n"
        "| class | base | exit | code | raised for |\n|---|---|---|---|---|\n" + "\n".join(rows) + "\n",
    )  # fmt: skip


def command_line() -> None:
    """Every command with its arguments and options, as the command line declares them."""
    import typer.main

    from tensor_graphs.cli.app import app

    text = ["# Command line", "", "Every command with its options. [What the commands are for](../cli.md)."]

    def describe(command: object, name: str) -> None:
        children = getattr(command, "commands", None)
        if children:
            for word, child in children.items():
                describe(child, f"{name} {word}")
            return
        text.extend(["", f"## {name}", "", (getattr(command, "help", "") or "").strip(), ""])
        rows = []
        for p in getattr(command, "params", []):
            shown = ", ".join(p.opts + p.secondary_opts) if p.param_type_name == "option" else p.name.upper()
            if p.name == "help":
                continue
            default = "" if p.default in (None, False, (), []) or callable(p.default) else f"`{p.default}`"
            note = " ".join((getattr(p, "help", "") or "").split()).replace("|", "\\|")
            rows.append(f"| `{shown}` | {default} | {note} |")
        if rows:
            text.extend(["| argument | default | meaning |", "|---|---|---|", *rows])

    describe(typer.main.get_command(app), "tensor-graphs")
    write("reference/cli.md", "\n".join(text) + "\n")


def described(name: str, thing: object, level: int) -> list[str]:
    """A heading, the signature and the docstring of a public function, class or method, as Markdown."""
    lines = ["", f"{'#' * level} {name}", ""]
    if callable(thing):
        with suppress(TypeError, ValueError):
            parameters = [
                p.replace(annotation=inspect.Parameter.empty)
                for p in inspect.signature(thing).parameters.values()
                if p.name != "self"
            ]
            one = f"{name}{inspect.Signature(parameters)}"
            many = f"{name}(\n" + "".join(f"    {p},\n" for p in parameters) + ")"
            lines += ["```python", one if len(one) < 90 else many, "```", ""]
    doc = inspect.getdoc(thing) or ""
    return [
        *lines,
        re.sub(r"^(`\w+`: )", r"- \1", doc.replace("Keyword arguments:\n", "Keyword arguments:\n\n"), flags=re.M),
    ]


def python() -> None:
    """The public names of the package, documented from their docstrings."""
    import tensor_graphs as tg
    from tensor_graphs import _PUBLIC, numeric

    text = ["# Python", "", "`import tensor_graphs as tg`. Array functions are at the end of the page."]
    for name, (_, attribute) in sorted(_PUBLIC.items(), key=lambda item: item[0] != "optimize"):
        if not attribute:
            continue
        thing = getattr(tg, name)
        text += described(f"tg.{name}", thing, 2)
        if inspect.isclass(thing) and not issubclass(thing, Exception):
            for word, member in inspect.getmembers(thing):
                if (
                    not word.startswith("_")
                    and (callable(member) or isinstance(member, property))
                    and inspect.getdoc(member)
                ):
                    text += described(f"{name}.{word}", member, 3)
    text += [
        "",
        "## Array functions",
        "",
        "Builders of expressions, named as in the array API.",
        "",
        "| function | is |",
        "|---|---|",
    ]
    for name in numeric.__all__:
        found = getattr(tg, name)
        with suppress(TypeError, ValueError):
            first = (inspect.getdoc(found) or "").partition("\n\n")[0].replace("\n", " ").replace("|", "\\|")
            text.append(f"| `{name}({', '.join(inspect.signature(found).parameters)})` | {first} |")
    write("reference/python.md", "\n".join(text) + "\n")


def example_page() -> None:
    """The interactive page of the e-graph that the tutorial reads."""
    import numpy as np

    import tensor_graphs as tg

    rng = np.random.default_rng(0)
    weights = dict(zip("wv", 0.03 * rng.standard_normal((2, 256, 256), dtype=np.float32)))
    x, w, v = tg.input("x", (64, 256)), tg.param("w", (256, 256)), tg.param("v", (256, 256))
    explorer = tg.saturate(tg.softmax((x * 0.125) @ w + x @ v), params=weights, backend="numpy")
    with tempfile.TemporaryDirectory() as folder:
        write("assets/egraph.html", explorer.save_html(Path(folder) / "egraph.html").read_text(encoding="utf-8"))


for make in (
    example_page,
    files_as_pages,
    sources,
    notebooks,
    decisions,
    benchmarks,
    settings,
    errors,
    command_line,
    python,
):
    make()
