"""Generated C kernels under AddressSanitizer and UndefinedBehaviorSanitizer.

    python -m tests.fuzz.sanitized --graphs 200 [--seed 0] [--each 6] [--batch 50]

Kernels of random graphs (sizes 0, 1 and odd) are compiled with -fsanitize=address,undefined, a batch in one executable,
and run over buffers of exactly their size: random bits, NaN, infinities, denormals, 0, 1 and the limits of integers. So
reads and writes out of bounds, unaligned accesses, shifts by too much and bools other than 0 and 1 end in a report that
names the kernel. Results are not compared. Prints how many kernels ran; the exit code is 1 if there was a report.
"""

from __future__ import annotations

import argparse
import random
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from tensor_graphs.backends.c.emit.kernel import emit
from tensor_graphs.backends.c.emit.spelling import TYPES
from tensor_graphs.backends.c.helpers import c_compiler, c_flags
from tensor_graphs.backends.generate.template import GeneratedKernel
from tensor_graphs.backends.ir import c_math
from tensor_graphs.backends.ir.kernel import Buffer, Kernel
from tensor_graphs.backends.ir.unfusable import Unfusable
from tensor_graphs.backends.runtime.views import view_strides
from tensor_graphs.extract.candidates.candidates import candidate_hypergraph

from .checks import backends_of, forms
from .graphs import Grower, Kinds

KINDS = Kinds(sizes=(0, 1, 1, 2, 3, 5, 7, 17, 33), volume=4096)
SANITIZERS = ["-fsanitize=address,undefined", "-fno-omit-frame-pointer", "-g1"]
STEPS = 5
TESTS = r"""
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static uint64_t state = SEED;

static uint64_t drawn(void)
{
    state ^= state << 13; state ^= state >> 7; state ^= state << 17;
    return state;
}

/* One element of `wide` bytes: kind 'f' a float, 'i' an integer, 'b' a bool. */
static void element(unsigned char *to, int wide, char kind)
{
    static const uint64_t floats32[] = {0x7fc00000, 0x7f800000, 0xff800000, 1, 0x80000001, 0, 0x80000000, 0x7f7fffff, 0xff7fffff, 0x3f800000};
    static const uint64_t floats64[] = {0x7ff8000000000000, 0x7ff0000000000000, 0xfff0000000000000, 1, 0x8000000000000001, 0,
                                        0x8000000000000000, 0x7fefffffffffffff, 0xffefffffffffffff, 0x3ff0000000000000};
    uint64_t value = drawn(), choice = drawn() % 20;
    if (kind == 'b') value &= 1;
    else if (kind == 'i' && choice < 10)
        value = choice < 6 ? choice - 2 : choice < 8 ? (1ull << (8 * wide - 1)) - (choice == 7) : ~0ull;
    else if (kind != 'i' && choice < 10)
        value = wide == 8 ? floats64[choice] : wide == 4 ? floats32[choice] : floats32[choice] >> 16;
    memcpy(to, &value, wide);
}

/* Memory of exactly `count` elements. */
static void *filled(long count, int wide, char kind)
{
    unsigned char *made = malloc(count * wide);
    for (long i = 0; i < count; i++) element(made + i * wide, wide, kind);
    return made;
}
"""


@dataclass(frozen=True)
class Found:
    """A kernel with the text of its function, and the graph's seed."""

    name: str
    text: str
    kernel: Kernel
    seed: int


@cache
def unavailable() -> str:
    """Why nothing can be run under the sanitizers here; "" if it can."""
    with tempfile.TemporaryDirectory() as folder:
        try:
            message = _run(Path(folder), "int main(void) { return 0; }\n")
        except (OSError, RuntimeError, subprocess.TimeoutExpired) as error:
            return f"no sanitizers: {error}"
    return f"no sanitizers: {message[:300]}" if message else ""


def kernels_of(seed: int, each: int) -> Iterator[Found]:
    """Up to `each` C kernels of the random graph of a seed, each of another text."""
    try:
        _, view = forms(Grower(seed, KINDS).graph(STEPS))
    except ValueError:  # a graph that cannot be evaluated
        return
    made = [
        c for c in candidate_hypergraph(view, backends_of("numpy", "c"), view_strides).candidates
        if isinstance(c.template, GeneratedKernel) and not c.template.prep
    ]  # fmt: skip
    random.Random(seed).shuffle(made)
    texts = set[str]()
    for candidate in made:
        assert isinstance(candidate.template, GeneratedKernel)
        lowered = candidate.template.lower(candidate.call)
        if lowered is None:
            continue
        with suppress(Unfusable):
            text = emit(lowered.kernel, "kernel_name")
            if text not in texts:
                texts.add(text)
                name = f"k{seed}_{len(texts)}"
                yield Found(name, text.replace("kernel_name", name), lowered.kernel, seed)
        if len(texts) == each:
            return


def elements(buffer: Buffer) -> int:
    """Elements of the smallest memory that holds a buffer."""
    if 0 in buffer.shape:
        return 0
    return 1 + sum((d - 1) * abs(int(s)) for d, s in zip(buffer.shape, buffer.strides))


def program(found: Sequence[Found], seed: int) -> str:
    """A C program that calls each kernel twice over memory of exactly the right size, after it has said its name."""
    bodies = "\n\n".join(f.text for f in found)
    calls = []
    for f in found:
        sizes = [(TYPES[b.dtype], elements(b), _kind(b.dtype)) for b in f.kernel.buffers.values()]
        lines = [f"void *a{i} = filled({n}, sizeof({t}), '{k}');" for i, (t, n, k) in enumerate(sizes)]
        lines.append(f"{f.name}({', '.join(f'a{i}' for i in range(len(sizes)))});")
        for i in range(len(sizes)):  # without a reader, compilers leave out stores into memory that is freed
            lines.append(f'__asm__ volatile("" : : "r"(a{i}) : "memory"); free(a{i});')
        calls.append(
            f'fprintf(stderr, "@{f.name}\\n");\nfor (int turn = 0; turn < 2; turn++) {{\n' + "\n".join(lines) + "\n}"
        )
    main = "int main(void)\n{\n" + "\n".join(calls) + "\nreturn 0;\n}\n"
    needed = "".join(f"{text}\n" for text in c_math.needed(bodies))
    draws = TESTS.replace("SEED", f"{seed * 2 + 88172645463325252 & (1 << 63) - 1}ull")
    return f"{c_math.HEAD}\n{needed}\n{draws}\n{bodies}\n\n{main}"


def _kind(dtype: str) -> str:
    return "b" if dtype == "bool" else "f" if "float" in dtype else "i"


def _run(folder: Path, text: str) -> str:
    """What a C program writes to its standard error under the sanitizers. RuntimeError if it cannot be compiled."""
    source, made = folder / "kernels.c", folder / "kernels"
    source.write_text(text)
    flags = [f for f in c_flags() if f != "-O3"]
    command = [*c_compiler(), *flags, "-O1", "-fopenmp-simd", *SANITIZERS, "-o", str(made), str(source), "-lm"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240)
    if done.returncode:
        raise RuntimeError(f"the C compiler failed: {done.stderr[:2000]}")
    options = {"ASAN_OPTIONS": "detect_leaks=0", "UBSAN_OPTIONS": "print_stacktrace=0"}
    return subprocess.run([made], capture_output=True, text=True, timeout=240, errors="replace", env=options).stderr


def reports(found: Sequence[Found], seed: int = 0) -> dict[str, str]:
    """What the sanitizers say of kernels, by the kernel's name. Kernels after one that ends the process run in a
    process of their own."""
    bad: dict[str, str] = {}
    left = list(found)
    while left:
        with tempfile.TemporaryDirectory() as folder:
            message = _run(Path(folder), program(left, seed))
        pieces = re.split(r"^@(\w+)$", message, flags=re.MULTILINE)
        bad |= {name: text.strip() for name, text in zip(pieces[1::2], pieces[2::2]) if text.strip()}
        reached = len(pieces) // 2
        if not reached:
            raise RuntimeError(f"the kernels did not run: {message[:1000]}")
        left = left[reached:]
    return bad


def main() -> int:
    """Run the command line that the module describes."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz.sanitized", description=__doc__)
    parser.add_argument("--graphs", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--each", type=int, default=6, help="kernels of a graph, at most")
    parser.add_argument("--batch", type=int, default=50, help="kernels compiled together")
    given = parser.parse_args()
    if why := unavailable():
        print(why)
        return 2
    batch: list[Found] = []
    count, empty, bad = 0, 0, dict[str, str]()
    for seed in range(given.seed, given.seed + given.graphs):
        batch += kernels_of(seed, given.each)
        last = seed == given.seed + given.graphs - 1
        while batch and (last or len(batch) >= given.batch):
            now, batch = batch[: given.batch], batch[given.batch :]
            new = reports(now, given.seed)
            count, empty = count + len(now), empty + sum(0 in map(elements, f.kernel.buffers.values()) for f in now)
            bad |= new
            for f in now:
                if f.name in new:
                    print(f"=== graph {f.seed}: {new[f.name][:1500]}\n{f.text}\n", flush=True)
    print(f"{given.graphs} graphs, {count} kernels, {empty} of them with a buffer of no elements, {len(bad)} reports")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
