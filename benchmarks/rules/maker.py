"""Random terms with operators and variables of the rule language, made to a given kind and shape."""

from __future__ import annotations

import itertools
import random
from typing import Any

from benchmarks.rules.terms import (
    Term,
)


class Retry(Exception):
    """Raised when a random term needs too many variables."""


class Maker:
    """Generator of random terms of a type.

    A shape is a tuple of sizes; a size is a sum of named atoms, which get numbers later (`shapes`). The two spatial
    axes of an image are one entry, the windows that reduced them.
    """

    def __init__(self, rng: random.Random) -> None:
        self.rng, self.kinds, self.atoms = rng, dict[str, tuple[str, Any]](), itertools.count()
        self.free = {"matrix": list(range(1, 7)), "image": [7, 8, 9], "kernel": list(range(10, 19))}

    def size(self) -> tuple[str, ...]:
        """A size of one or two new atoms."""
        return tuple(f"d{next(self.atoms)}" for _ in range(self.rng.choice((1, 1, 1, 2))))

    def leaf(self, kind: str, shape: Any) -> str:
        """A variable of a kind and shape, new or used before. Raises Retry if there are too many variables."""
        same = [n for n, known in self.kinds.items() if known == (kind, shape)]
        if same and (self.rng.random() < 0.45 or not self.free[kind]):
            return self.rng.choice(same)
        if not self.free[kind]:
            raise Retry
        name = f"?input_{self.free[kind].pop(0)}"
        self.kinds[name] = (kind, shape)
        return name

    def scalar(self) -> str:
        """A scalar variable, new or used before."""
        name = self.rng.choice(("?input_20", "?input_20", "?input_21"))
        self.kinds[name] = ("scalar", ())
        return name

    def term(self, kind: str, shape: Any, depth: int) -> Term:
        """A random term of a kind and shape, of at most `depth` nested operators."""
        more = {"matrix": ["matmul"] * 4 + ["transpose"] * 2, "image": ["conv"] * 4 + ["pool"] * 2,
                "kernel": ["enlarge", "constant", "leaf", "leaf"]}  # fmt: skip
        op = self.rng.choice(["pointwise"] * 2 + ["smul", "unary"] + ["concat"] * 2 + more[kind]) if depth else "leaf"
        made: Term = getattr(self, f"_{op}")(kind, shape, depth - 1)
        return made

    def _leaf(self, kind: str, shape: Any, depth: int) -> Term:
        return self.leaf(kind, shape)

    def _pointwise(self, kind: str, shape: Any, depth: int) -> Term:
        op = self.rng.choice(("ewadd", "ewadd", "ewmul"))
        return (op, self.term(kind, shape, depth), self.term(kind, shape, depth))

    def _smul(self, kind: str, shape: Any, depth: int) -> Term:
        return ("smul", self.term(kind, shape, depth), self.scalar())

    def _unary(self, kind: str, shape: Any, depth: int) -> Term:
        return (self.rng.choice(("relu", "relu", "tanh", "sigmoid")), self.term(kind, shape, depth))

    def _concat(self, kind: str, shape: Any, depth: int) -> Term:
        axes = [i for i in (0, 1) if len(shape[i]) > 1]
        if not axes:
            return self._pointwise(kind, shape, depth)
        axis = self.rng.choice(axes)
        cut = self.rng.randrange(1, len(shape[axis]))
        parts = [
            tuple(p if i == axis else s for i, s in enumerate(shape)) for p in (shape[axis][:cut], shape[axis][cut:])
        ]
        return ("concat", axis, 2 if kind == "matrix" else 4, *(self.term(kind, p, depth) for p in parts))

    def _matmul(self, kind: str, shape: Any, depth: int) -> Term:
        inner = shape[0] if self.rng.random() < 0.15 else self.size()
        left, right = self.term(kind, (shape[0], inner), depth), self.term(kind, (inner, shape[1]), depth)
        return ("matmul", self.rng.choice((0, 0, 0, 2, 3, 1)), left, right)

    def _transpose(self, kind: str, shape: Any, depth: int) -> Term:
        return ("transpose", self.term(kind, shape[::-1], depth))

    def _constant(self, kind: str, shape: Any, depth: int) -> Term:
        if shape[0] != shape[1] or not all(k.startswith("c") for k in shape[2:]):
            return self.leaf(kind, shape)
        return (self.rng.choice(("Iconv", "Cpool")), *(int(k[1]) for k in shape[2:]))

    def _enlarge(self, kind: str, shape: Any, depth: int) -> Term:
        if not all(k in ("c3", "c5") for k in shape[2:]):
            return self.leaf(kind, shape)
        small = self.rng.choice([k for k in ("c1", "c3", "c5") if k <= min(shape[2:])])
        return ("enlarge", *(int(k[1]) for k in shape[2:]), self.term(kind, (*shape[:2], small, small), depth))

    def window(self, shape: Any, kernels: Any) -> tuple[Any, Any]:
        """(kernel, stride, padding) of an operator with a result of this shape, and the spatial entry of its image."""
        if shape[2] and self.rng.random() < 0.8:
            return shape[2][-1], shape[2][:-1]
        return (self.rng.choice(kernels), 1, 0), shape[2]

    def _pool(self, kind: str, shape: Any, depth: int) -> Term:
        kernels = (("c3", "c3"), ("c2", "c2"), ("c5", "c5"), ("c3", "c5"), ("c1", "c3"))
        (kernel, stride, pad), inner = self.window(shape, kernels)
        if not all(k.startswith("c") for k in kernel):
            return self.leaf(kind, shape)
        op = self.rng.choice(("poolavg", "poolmax"))
        return (op, *(int(k[1]) for k in kernel), stride, stride, pad, self.term(kind, (*shape[:2], inner), depth))

    def _conv(self, kind: str, shape: Any, depth: int) -> Term:
        (kernel, stride, pad), inner = self.window(shape, (("o1", "o2"), ("o3", "o4"), ("c3", "c3"), ("c5", "c5")))
        if "c2" in kernel:
            return self.leaf(kind, shape)
        channels = shape[1] if self.rng.random() < 0.2 else self.size()
        x = self.term(kind, (shape[0], channels, inner), depth)
        return ("conv2d", stride, stride, pad, self.rng.choice((0, 0, 0, 2, 3, 1)), x,
                self.term("kernel", (shape[1], channels, *kernel), depth))  # fmt: skip

    def start(self) -> Term:
        """A random term of a random kind and shape."""
        kind, depth = self.rng.choice(("matrix", "matrix", "image", "image", "kernel")), self.rng.choice((1, 2, 2, 3))
        sizes = (self.size(), self.size())
        if kind == "matrix":
            return self.term(kind, sizes, depth)
        if kind == "kernel":
            k = self.rng.choice(("c3", "c5", "o1"))
            return self.term(kind, (*(sizes[:1] * 2 if self.rng.random() < 0.3 else sizes), k, k), depth)
        three, odd = ("c3", "c3"), ("o1", "o2")
        shrunk = ((), (), ((three, 2, 0),), ((three, 2, 1),), ((odd, 2, 0),), ((odd, 1, 1),), ((("c2", "c2"), 2, 1),))
        return self.term(kind, (*sizes, self.rng.choice(shrunk)), depth)

    def shapes(self, square: bool) -> dict[str, tuple[int, ...]] | None:
        """Random shapes of the variables; None if some size would be below 1. `square`: all sizes are equal."""
        drawn: dict[str, int] = {}

        def number(atom: str) -> int:
            if atom[0] == "c":
                return int(atom[1])
            least = 1 if self.rng.random() < 0.2 else 2
            small = self.rng.choice((1, 3, 3)) if atom[0] == "o" else 2 if square else self.rng.randint(least, 4)
            return drawn.setdefault(atom, small)

        whole, found = [5, 5] if square else [self.rng.randint(4, 7) for _ in range(2)], {}
        for name, (kind, shape) in self.kinds.items():
            sizes = [sum(map(number, s)) for s in shape[:2]]
            space = [number(k) for k in shape[2:]] if kind == "kernel" else list(whole) if kind == "image" else []
            for kernel, stride, pad in shape[2] if kind == "image" else ():
                space = [-(-n // stride) if pad == 0 else (n - number(k)) // stride + 1 for n, k in zip(space, kernel)]
            found[name] = (*sizes, *space)
        return None if any(n < 1 for s in found.values() for n in s) else found
