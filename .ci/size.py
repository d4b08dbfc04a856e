"""Print lines of Python by package: top-level folders, and their subpackages indented."""

from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
FOLDERS = ("egraph", "rules", "extract", "costdb", "backends", "models")
OUTSIDE = ("tests", "benchmarks")


def lines(folder: Path, *, deep: bool = True) -> int:
    """Lines of Python in a folder, and with `deep` below it; links are not followed."""
    files = [p for p in (folder.rglob("*.py") if deep else folder.glob("*.py")) if not p.is_symlink()]
    return sum(len(p.read_text(encoding="utf-8").splitlines()) for p in files)


def report(folder: Path, name: str, depth: int = 0) -> int:
    """Print a package and its subpackages; return the package's lines."""
    packages = sorted(p for p in folder.iterdir() if (p / "__init__.py").exists() and not p.is_symlink())
    total = lines(folder, deep=False) + sum(lines(p) for p in packages)
    print(f"{total:>7}  {'  ' * depth}{name}")
    for package in packages:
        report(package, package.name, depth + 1)
    return total


if __name__ == "__main__":
    code = sum(report(ROOT / name, name) for name in FOLDERS)
    code += report(ROOT / "src/tensor_graphs", "tensor_graphs")
    for name in OUTSIDE:
        print(f"{lines(ROOT / name):>7}  {name}")
    print(f"{code:>7}  code in all")
