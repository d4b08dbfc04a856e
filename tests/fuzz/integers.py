"""Random programs of integers, searched without verification, against NumPy: results must be equal.

    python -m tests.fuzz.integers --backend c --count 50 --seed 1

Operands are extreme values, small values and any others of eight dtypes. Operations wrap, divide by 0 and by -1, cast
to other dtypes and compare.
"""

from __future__ import annotations

import argparse
import random
from collections.abc import Callable
from typing import Any

import numpy as np

import tensor_graphs as tg
import tensor_graphs.egraph.builders.builders as t
from tensor_graphs.egraph.evaluate.interpret import evaluate
from tensor_graphs.egraph.ir.graph import Graph
from tensor_graphs.egraph.ir.tensor import Tensor, make
from tensor_graphs.egraph.types.dims import concrete
from tensor_graphs.egraph.types.dtypes import numpy_dtype

DTYPES = ("int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64")
SHAPE = (4, 6)
CALLS = 3  # calls of each program, with other values


class Drawn:
    """Generator of random integer terms over inputs, reproducible by its seed."""

    def __init__(self, seed: int) -> None:
        self.rng, self.inputs = random.Random(seed), list[Tensor]()

    def leaf(self, dtype: str) -> Tensor:
        """An input, or a constant that the dtype can represent."""
        if self.rng.random() < 0.2:
            return t.full((1, 1), self.rng.choice((0, 1, 2, 3, 7, 8, 100, 127)), dtype)
        shape = self.rng.choice((SHAPE, SHAPE, (1, SHAPE[1]), (SHAPE[0], 1)))
        self.inputs.append(t.input(f"x{len(self.inputs)}", shape, dtype))
        return self.inputs[-1]

    def term(self, depth: int, dtype: str) -> Tensor:
        """A term of at most `depth` operations above each leaf."""
        if depth == 0:
            return self.leaf(dtype)
        below: Callable[[str], Tensor] = lambda kind: self.term(depth - 1, kind)
        other = self.rng.choice(DTYPES)
        ops: dict[str, Callable[[], Tensor]] = {
            "binary": lambda: make(self.rng.choice(("add", "sub", "mul", "maximum", "and", "xor")), [below(dtype), below(dtype)], {}),
            "divide": lambda: make(self.rng.choice(("floordiv", "mod")), [below(dtype), below(dtype)], {}),
            "unary": lambda: make(self.rng.choice(("neg", "abs", "sign")), [below(dtype)], {}),
            "cast": lambda: t.cast(below(other), dtype),
            "choose": lambda: t.where(t.lt(below(other), below(other)), below(dtype), below(dtype)),
            "reduce": lambda: t.cast(self.rng.choice((t.sum, t.max, t.min, t.prod))(below(dtype), 1, True), dtype),
        }  # fmt: skip
        return ops[self.rng.choice((*ops, "binary", "cast"))]()


def values(leaf: Tensor, rng: np.random.Generator) -> Any:
    """Values of an input: limits of its dtype, small ones and any others."""
    info = np.iinfo(leaf.dtype)
    shape = concrete(leaf.shape)
    found = rng.integers(info.min, info.max, shape, dtype=numpy_dtype(leaf.dtype), endpoint=True)
    pick = rng.random(shape)
    small = rng.integers(-3 if info.min else 0, 4, shape).astype(leaf.dtype)
    return np.where(pick < 0.3, small, np.where(pick < 0.4, info.min, np.where(pick < 0.55, info.max, found))).astype(
        leaf.dtype
    )


def fault(seed: int, backend: str) -> str:
    """Description of how a program's results differ from NumPy's; "" if they are equal, "refused" without a plan."""
    drawn, rng = Drawn(seed), np.random.default_rng(seed)
    root = drawn.term(drawn.rng.choice((2, 3)), drawn.rng.choice(DTYPES))
    graph = Graph.of(root)
    if not graph.inputs or root.is_leaf:
        return "refused"
    try:
        program = tg.optimize(root, backend=backend, budget=5, measure=False, verify=False, again=True)
    except tg.errors.TensorGraphsError:
        return "refused"
    for _ in range(CALLS):
        given = {str(n.attr("name")): values(n, rng) for n in graph.inputs}
        with np.errstate(all="ignore"):
            want = evaluate(graph, given)[0]
        got = np.asarray(program(**given))
        if got.dtype != want.dtype or not np.array_equal(got, want):
            return f"seed {seed}: {np.count_nonzero(got != want)} of {want.size} elements differ\n{graph}"
    return ""


def main() -> None:
    """Run the programs of the command line's options and print how many differ."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--backend", default="c")
    parser.add_argument("--count", type=int, default=50)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    found = [fault(options.seed * 1_000_000 + i, options.backend) for i in range(options.count)]
    wrong = [x for x in found if x not in ("", "refused")]
    print("\n".join(wrong))
    print(f"{options.backend}: {found.count('')} right, {found.count('refused')} refused, {len(wrong)} wrong")


if __name__ == "__main__":
    main()
