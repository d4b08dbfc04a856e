"""Build sdist → wheel, check the wheel's file list, install it into a clean environment, run the command line
elsewhere."""

import json
import subprocess
import sys
import tempfile
import venv
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
FOLDERS = ("egraph", "rules", "extract", "backends", "costdb", "models")


def expected() -> set[str]:
    """Every Python file that must be in the wheel, and nothing that must not."""
    source = ROOT / "src/tensor_graphs"
    folders = [ROOT / name for name in FOLDERS]
    folders += [p for p in source.iterdir() if p.is_dir() and p.name not in FOLDERS]  # the six are links here
    found = {p.relative_to(source) for p in source.iterdir() if p.is_file()}
    for folder in folders:
        found |= {p.relative_to(folder.parent) for p in folder.rglob("*") if p.is_file()}
    return {f"tensor_graphs/{p.as_posix()}" for p in found if "__pycache__" not in p.parts}


def main() -> None:
    """Fail with the difference, or print what was checked."""
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run(
            [sys.executable, "-m", "build", "--no-isolation", "--outdir", folder, str(ROOT)],
            check=True,
            stdout=subprocess.DEVNULL,
        )
        wheel = next(Path(folder).glob("*.whl"))
        files = {n for n in zipfile.ZipFile(wheel).namelist() if not n.split("/")[0].endswith(".dist-info")}
        if files != expected():
            sys.exit(
                f"missing from the wheel: {sorted(expected() - files)}; should not be there: {sorted(files - expected())}"
            )
        home = Path(folder, "venv")
        venv.create(home)
        python = home / "bin/python"  # this environment's pip installs there: half of the time is saved
        install = [sys.executable, "-m", "pip", "--python", str(python), "install", "--no-compile", "--quiet"]
        subprocess.run([*install, str(wheel)], check=True)
        run = subprocess.run(
            [str(home / "bin/tensor-graphs"), "doctor", "--json"],
            cwd=folder,
            check=True,
            capture_output=True,
            text=True,
        )
        document = json.loads(run.stdout)
        if not document["ok"] or document["torch"] != "not installed":
            sys.exit(f"doctor in a clean environment said {document}")
        code = (
            "import numpy as np, tensor_graphs as tg\n"
            "x = tg.input('x', (4, 8)); w = tg.param('w', (8, 8))\n"
            "W = np.eye(8, dtype='f')\n"
            "program = tg.optimize(tg.softmax((x * 0.125) @ w), params={'w': W}, measure=False)\n"
            "assert abs(program(np.ones((4, 8), 'f')).sum() - 4) < 1e-5\n"
        )
        subprocess.run(
            [str(python), "-"],
            input=code,
            cwd=folder,
            check=True,
            text=True,
            env={"TENSOR_GRAPHS_HOME": str(Path(folder, "h"))},
        )
        print(f"wheel: {len(files)} files, installed without torch, command line and optimize run elsewhere")


if __name__ == "__main__":
    main()
