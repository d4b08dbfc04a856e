"""A backend whose kernels add two lines of float32 and go wrong, each in its own way; found by its entry point where
`installed` has put it. What measuring makes of them is what test_measure_command.py is about."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from functools import partial
from pathlib import Path

from tensor_graphs.backends.gpu_backend import GpuBackend
from tensor_graphs.extract.model.kernel import Call
from tensor_graphs.extract.model.library_kernel import LibraryKernel

NAME = "faulty"
BODIES = {
    "right": "tl.store(out + at, a + b, inside)",
    "wrong": "tl.store(out + at, a - b, inside)",
    "unfinished": "tl.store(out + at, a + b, at < n - 1)",
    "outside": "tl.store(out + at, a + b, at <= n)",
    "far": "tl.store(out + at + (n.to(tl.int64) << 40), a + b, inside)",
    "hanging": "first = tl.load(x, volatile=True)\n    while first == first:\n        first = tl.load(x, volatile=True)\n    tl.store(out + at, a + b + first, inside)",
    "broken": "tl.store(out + at, tl.no_such_function(a, b), inside)",
}  # fmt: skip
"""What the body of each kernel does at last."""
BEFORE = {
    "refusing": "raise ValueError('not today')\n",
    "crashing": "import os\nif x.device.type != 'meta':\n    os._exit(3)\n",
}
"""What is done before a right kernel is launched."""
KERNELS = (*BODIES, *BEFORE)


def _source(name: str, call: Call) -> Mapping[str, str]:
    return {
        f"{name}_kernel": f'''@triton.jit
def {name}_kernel(x, y, out, n, BLOCK: tl.constexpr):
    """x + y, or not."""
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = at < n
    a, b = tl.load(x + at, inside), tl.load(y + at, inside)
    {BODIES[name]}'''
    }


def _code(name: str, call: Call) -> str:
    (n,) = call.output.type.shape
    x, y, out = (call.names.get(place, place) for place in ("x", "y", "out"))
    body = name if name in BODIES else "right"
    return f"{BEFORE.get(name, '')}{body}_kernel[({-(-int(n) // 64)},)]({x}, {y}, {out}, {n}, BLOCK=64)"


class Code:
    """Code of a kernel, identified by its name."""

    def __init__(self, name: str) -> None:
        self.name, self.identity = name, f"{NAME}.{name}"

    def __call__(self, call: Call) -> str:
        return _code(self.name, call)


class Faulty(GpuBackend):
    """The backend."""

    name = NAME
    templates = tuple(
        LibraryKernel(
            f"{NAME}.{name}",
            NAME,
            "add(x, y)",
            Code(name),
            family="pointwise",
            source=partial(_source, name if name in BODIES else "right"),
        )
        for name in KERNELS
    )

    def unavailable(self) -> str:
        """Never."""
        return ""


BACKEND = Faulty()


def made() -> Faulty:
    """What the entry point names."""
    return BACKEND


def installed(folder: Path) -> str:
    """Put this module with its entry point into a folder; what PYTHONPATH must begin with."""
    about = folder / f"{Path(__file__).stem}-1.dist-info"
    about.mkdir(parents=True)
    shutil.copy(__file__, folder)
    (about / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {Path(__file__).stem}\nVersion: 1\n")
    (about / "entry_points.txt").write_text(f"[tensor_graphs.backends]\n{NAME} = {Path(__file__).stem}:made\n")
    return f"{folder}{os.pathsep}"
