"""Run saved programs as any script would: Torch, what each `program.py` imports, and nothing of this package.

    python run_program.py [--device cuda] FOLDER ...

Each is run twice, kernel by kernel; its results must be near those of `want.safetensors`, and the same both times
unless there is a file `any_order` beside them: its kernels add in any order. A line for each: its name, the relative
error, and "ok" or "wrong".
"""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import torch
from safetensors.torch import load_file

TOLERANCE = {torch.bfloat16: 3e-2, torch.float16: 5e-3, torch.float32: 1e-3}


def main(arguments: list[str]) -> int:
    """How many are wrong."""
    device, wrong = "cuda", 0
    if arguments[0] == "--device":
        device, arguments = arguments[1], arguments[2:]
    for folder in map(Path, arguments):
        print(f"{folder.name}: begun", flush=True)
        spec = importlib.util.spec_from_file_location(f"program_{len(sys.modules)}", folder / "program.py")
        assert spec is not None and spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        run = module.bind(load_file(folder / "weights.safetensors"), None, device, graph=False)
        first, again = run(), run()
        want = load_file(folder / "want.safetensors")
        error, right, any_order = 0.0, len(first) == len(want), (folder / "any_order").exists()
        for a, b, w in zip(first, again, want.values()):
            exact = w.to(device)
            found = float((a.double() - exact).norm() / exact.norm())
            right &= (any_order or torch.equal(a, b)) and found < TOLERANCE.get(a.dtype, 0.0)
            error = max(error, found)
        print(f"{folder.name}: {error:.1e} {'ok' if right else 'wrong'}", flush=True)
        wrong += not right
    assert not any(name.partition(".")[0] == "tensor_graphs" for name in sys.modules), "the package was imported"
    return wrong


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
