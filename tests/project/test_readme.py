"""The README's example is the script beside it, and prints what the README shows, apart from numbers."""

import re
import runpy
from pathlib import Path

import pytest

from tensor_graphs import settings
from tensor_graphs.backends.registry import BUILT_IN, CHOICES, HIDDEN

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = ROOT / "docs/readme_example.py"
DOCUMENTS = [
    *ROOT.glob("*.md"),
    *(ROOT / "docs").rglob("*.md"),
    *(ROOT / "benchmarks").glob("*.md"),
    *(ROOT / "benchmarks/results").glob("*.md"),
]
COMMANDS = [
    *DOCUMENTS,
    *(ROOT / "benchmarks").rglob("*.py"),
    *(ROOT / "tests").rglob("*.sh"),
]  # name `python -m` commands


def blocks(language: str) -> list[str]:
    """The README's code blocks of a language."""
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    return [
        body for kind, body in re.findall(r"^```(\w*)\n(.*?)^```", text, re.DOTALL | re.MULTILINE) if kind == language
    ]


def test_the_code_is_the_scripts() -> None:
    (code,) = blocks("python")
    assert SCRIPT.read_text(encoding="utf-8").endswith(code)
    assert len([line for line in code.splitlines() if line.strip()]) <= 10


@pytest.mark.slow
def test_the_output_has_the_shape_shown(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with settings.override(home=str(tmp_path)):
        runpy.run_path(str(SCRIPT), run_name="__main__")
    printed = capsys.readouterr().out
    shown = next(b for b in blocks("") if "proven bound" in b)
    found = lambda text: [line.split()[0] for line in text.splitlines()]
    labels = lambda text: [label for label in found(text) if label != "note"]  # a busy machine has more to say
    assert labels(printed) == labels(shown)
    assert printed.splitlines()[:3] == shown.splitlines()[:3]
    assert "passed" in printed and "5 where each op" in printed


def test_links_lead_somewhere() -> None:
    links = [(p, t) for p in DOCUMENTS for t in re.findall(r"\]\(([^)\s]+)\)", p.read_text(encoding="utf-8"))]
    files = [(p, t) for p, t in links if not t.startswith(("http://", "https://", "#", "mailto:"))]
    assert not [(str(p), t) for p, t in files if not (p.parent / t.split("#")[0]).exists()]


def test_every_backend_is_documented() -> None:
    (row,) = re.findall(r"^\| `--backend (\S+)` \|", (ROOT / "docs/cli.md").read_text(encoding="utf-8"), re.MULTILINE)
    assert set(row.split("\\|")) == {*CHOICES, *BUILT_IN} - HIDDEN
    table = (ROOT / "docs/backends.md").read_text(encoding="utf-8").partition("## Adding")[0]
    assert set(re.findall(r"`(\w+)`", "".join(re.findall(r"^\| (`.*?) \|", table, re.MULTILINE)))) == {*BUILT_IN} - {
        "null"
    }


def test_source_files_named_in_documents_exist() -> None:
    for path in DOCUMENTS:
        for name in set(re.findall(r"`([\w/]+/\w+\.(?:py|cuh|sh))\b", path.read_text(encoding="utf-8"))):
            assert any((ROOT / root / name).exists() for root in ("", "src/tensor_graphs")), f"{path} names {name}"


def test_modules_and_make_targets_named_in_documents_exist() -> None:
    targets = re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)
    for path in COMMANDS:
        text = path.read_text(encoding="utf-8")
        for module in set(re.findall(r"python -m\s+([\w.]+)", text)):
            parts = module.removesuffix(".").split(".")
            found = ROOT.joinpath(*(parts[1:] if parts[0] == "tensor_graphs" else parts))
            sources = (
                found.with_suffix(".py"),
                found / "__main__.py",
                ROOT / "src/tensor_graphs" / "/".join(parts[1:]),
            )
            known = parts in (["pytest"], ["pip"], ["tensor_graphs"]) or any(
                s.exists() or s.with_suffix(".py").exists() for s in sources
            )
            assert known, f"{path.name} names the module {module}"
        for target in re.findall(r"`make ([\w-]+)`", text):
            assert target in targets, f"{path.name} names the make target {target}"


def test_every_benchmark_is_in_their_list_or_among_the_figures() -> None:
    listed = (ROOT / "benchmarks/README.md").read_text(encoding="utf-8")
    figures = (ROOT / "benchmarks/run.py").read_text(encoding="utf-8")
    for path in (ROOT / "benchmarks").rglob("*.py"):
        name = ".".join(path.relative_to(ROOT).with_suffix("").parts)
        if "\nif __name__ ==" in path.read_text(encoding="utf-8"):
            known = f"`python -m {name}" in listed or f'"{name.removeprefix("benchmarks.")}"' in figures
            assert known, f"{name} is in no list"


def test_the_architecture_lists_every_subpackage() -> None:
    text = (ROOT / "docs/architecture.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| `([\w/]+)` \| (`.*) \|$", text, re.MULTILINE)
    assert len(rows) == 7
    for package, subpackages in rows:
        folders = {p.parent.name for p in (ROOT / package).glob("*/__init__.py") if not p.parent.is_symlink()}
        assert folders == set(re.findall(r"`(\w+)`", subpackages)), package


def test_the_tutorials_example_of_a_stopped_search_runs(capsys: pytest.CaptureFixture[str]) -> None:
    text = (ROOT / "docs/tutorial/first-model.md").read_text(encoding="utf-8")
    codes = re.findall(r"^```python [^\n]*\n(.*?)^```", text, re.DOTALL | re.MULTILINE)
    (code,) = [c for c in codes if "tg.Progress(" in c]
    begin = codes[0].split("program = ")[0]
    exec(begin + code, {})
    shown = capsys.readouterr().out
    assert shown.startswith("load ") and "the search was stopped: " in shown.splitlines()[-1]


def test_the_architecture_names_the_file_of_every_stage() -> None:
    """Each file that times a stage is in the row of the stage, by its path."""
    text = (ROOT / "docs/architecture.md").read_text(encoding="utf-8").partition("| stage in a report |")[2]
    rows = re.findall(r"^\| ([a-z' ,]+) \| (`.*) \|$", text.partition("\n\n")[0], re.MULTILINE)
    files = {stage: cell for names, cell in rows for stage in names.split(", ")}
    pipeline, found = ROOT / "src/tensor_graphs/pipeline", set[str]()
    for path in pipeline.rglob("*.py"):
        text = path.read_text(encoding="utf-8")
        constants = {"STAGE": "finalists", "FIRST_RUN": "first run", "SCHEDULES": "schedules"}
        for name in re.findall(r"(?:session|self)\.(?:stage|stage_clock\.running)\((\"[^\"]+\"|[A-Z_]+)", text):
            stage = constants.get(name, name.strip('"'))
            assert f"`{path.relative_to(ROOT)}`" in files.get(stage, ""), f"{stage} in {path.name}"
            found.add(stage)
    assert found == files.keys()
