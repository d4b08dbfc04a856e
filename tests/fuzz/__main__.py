"""Fuzzing from the command line: `python -m tests.fuzz CHECK [--seconds S] [--seed N] [--steps K]`.

Prints every graph that fails, reduced (`shrink.py`), with the seed that reproduces it; then counts of failures and of
what the checks covered.
"""

from __future__ import annotations

import argparse
import os
import random
import sys
import time
import traceback
from collections import Counter
from collections.abc import Callable, Mapping
from functools import partial

os.environ.setdefault("TRITON_INTERPRET", str(int("gpu" not in sys.argv[1:])))  # before Triton is imported

from . import checks, generated, repeated, sizes
from .graphs import Case, Grower, Kinds
from .shrink import shrunk

PRODUCTS = (
    *("matmul", "linear", "attention") * 4, "softmax", "rms_norm", "layer_norm", "add", "mul", "relu", "silu", "sum", "max", "permute",
    "reshape", "concat", "slice",
)  # fmt: skip
LARGE = Kinds(floats=("bfloat16", "float16", "float32"), sizes=(1, *(16, 48, 64, 80, 128, 192, 256, 300) * 2), volume=1 << 18,
              integers=0.0, rules=0.1, ops=PRODUCTS)  # fmt: skip
FLOAT32 = Kinds(floats=("float32",), ints=("int64",))
CHECKS: Mapping[str, tuple[Callable[..., str], Kinds]] = {
    "simplified": (checks.simplified, Kinds()),
    "classes": (checks.classes, Kinds(rules=0.4)),
    "exact": (partial(checks.classes, exact=True), Kinds(rules=0.4, exact=True)),
    "plans": (checks.plans, Kinds()),
    "filed": (checks.filed, Kinds()),
    "narrow": (partial(checks.plans, narrow=True), Kinds(floats=("bfloat16",))),
    "optimized": (checks.optimized, Kinds()),
    "bitwise": (partial(checks.optimized, exact=True), Kinds(rules=0.4)),
    "empty": (checks.optimized, Kinds(sizes=(0, 0, 1, 2, 3))),
    "blocks": (repeated.blocks, Kinds(floats=("float32",))),
    "sizes": (sizes.sizes, Kinds(sizes=(1, 3, 7, 11), volume=1500)),
    "specified": (generated.specified, Kinds()),
    "triton": (generated.triton, Kinds()),
    "cuda": (generated.cuda, Kinds()),
    "gpu": (generated.gpu, LARGE),
}


def attempted(check: Callable[..., str], one: Case, seed: int) -> str:
    """The problem that a check finds in a graph, "" for none; an exception becomes a text."""
    try:
        return check(one, random.Random(seed))
    except Exception as error:
        return f"raised {type(error).__name__}: {error}\n{traceback.format_exc(limit=-4)}"


def kind_of(message: str) -> str:
    """The kind of a failure: the raised exception, "wrong" for wrong values, "" for no failure."""
    return message.partition(":")[0] if message.startswith("raised") else "wrong" if message else ""


def _alike(check: Callable[..., str], seed: int, kind: str, one: Case) -> bool:
    return kind_of(attempted(check, one, seed)) == kind


def main() -> None:
    """Run the command line described above."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("check", choices=list(CHECKS))
    parser.add_argument("--seconds", type=float, default=30.0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--steps", type=int, default=7)
    parser.add_argument("--once", action="store_true", help="this seed alone")
    parser.add_argument("--whole", action="store_true", help="graphs that fail as they are, not cut down")
    given = parser.parse_args()
    check, kinds = CHECKS[given.check]
    end, seed, failed = time.monotonic() + given.seconds, given.seed, Counter[str]()
    while time.monotonic() < end:
        one = Grower(seed, kinds).graph(given.steps)
        if message := attempted(check, one, seed):
            failed[kind_of(message)] += 1
            small = one if given.whole else shrunk(one, partial(_alike, check, seed, kind_of(message)))
            message = message if given.whole else attempted(check, small, seed)
            print(f"=== seed {seed}\n{small.text()}\n{message[:6000]}\n", flush=True)
        seed += 1
        if given.once:
            break
    print(f"{seed - given.seed} graphs from seed {given.seed}, failures: {dict(failed)}")
    for name, count in sorted(checks.SEEN.items()):
        print(f"{count:>8} {name}")


if __name__ == "__main__":
    main()
