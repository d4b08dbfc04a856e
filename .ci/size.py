"""Print lines per folder, tests apart."""

from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def lines(folder: str) -> int:
    """Lines of Python below a folder."""
    return sum(
        len(p.read_text(encoding="utf-8").splitlines()) for p in (ROOT / folder).rglob("*.py") if not p.is_symlink()
    )


names = ("egraph", "rules", "extract", "costdb", "backends", "models", "tests", "benchmarks")
counts = {n: lines(n) for n in names} | {
    "tensor_graphs": sum(len(p.read_text().splitlines()) for p in (ROOT / "src/tensor_graphs").glob("*.py"))
}
for name, count in counts.items():
    print(f"{count:>7}  {name}")
print(f"{sum(c for n, c in counts.items() if n not in ('tests', 'benchmarks')):>7}  code in all")
