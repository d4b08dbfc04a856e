"""Random programs of PyTorch's own operator samples (OpInfo) in other forms, layouts, values and dtypes, run as
programs and compared with eager.

    python -m tests.fuzz.torch_values --seconds 600 --seed 0 [--way optimize,compile,sizes] [--only ENTRY]
    python -m tests.fuzz.torch_values --once SEED

A program is one sample of an operator, changed (memory layout, values with ties, special floats, limits of integers, a
tensor replaced by a number, a 0-d tensor or one of another dtype), in one of the operator's forms (function, method,
in place on an argument, a clone or a view, `out=`), followed by up to five further samples that accept a value made so
far; what eager refuses is dropped. It is given to `tg.optimize` as a function or a module, for one size or with a free
size, or to `torch.compile(backend="tensor_graphs")` with programs that always win; `comparison.py` says what is
compared. Errors of errors.py count as refused; each worker process is replaced when it dies or exceeds its time.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import random
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from queue import Empty
from typing import Any

import torch

import tensor_graphs as tg
from tensor_graphs.errors import TensorGraphsError

from .torch_comparison import compared
from .torch_draws import Function, Program, program_of

OPTIONS: dict[str, Any] = {"budget": 1, "measure": False}


class AsModule(torch.nn.Module):
    """A group of programs with all arguments of each but the first as buffers."""

    def __init__(self, group: Group) -> None:
        super().__init__()
        self.group = (group,)
        for n, x in enumerate(group.rest()):
            self.register_buffer(f"b{n}", x)

    def forward(self, *firsts: Any) -> Any:
        """Results of all programs."""
        rest = iter([b for _, b in self.named_buffers()])
        return [
            p(x, *(next(rest) for _ in range(len(p.arguments) - 1))) for p, x in zip(self.group[0].programs, firsts)
        ]


@dataclass(eq=False)
class Group:
    """Programs that are compiled together."""

    programs: list[Program]

    def __call__(self, *tensors: Any) -> list[Any]:
        rest = list(tensors)
        return [p(*(rest.pop(0) for _ in range(len(p.arguments)))) for p in self.programs]

    def examples(self) -> list[Any]:
        """The arguments of all."""
        return [x for p in self.programs for x in p.arguments.fresh()]

    def rest(self) -> list[Any]:
        """The arguments of all but the first of each."""
        return [x for p in self.programs for x in p.arguments.fresh()[1:]]


def made_by_optimize(r: random.Random, group: Group) -> tuple[str, Function]:
    """The group as `tg.optimize` gives it."""
    backend, verify = r.choice(("numpy", "c", "torch", "torch", "auto")), r.random() < 0.6
    options = {**OPTIONS, "backend": backend, "verify": verify, "effort": r.choice((0, 1))}
    if r.random() < 0.1:
        options["tolerance"] = "exact"
    title = f"optimize { ({k: v for k, v in options.items() if k not in OPTIONS}) }"
    if r.random() < 0.2:
        firsts = tuple(p.arguments.fresh()[0] for p in group.programs)
        fast = tg.optimize(AsModule(group), firsts, **options)
        ends = [0, *accumulate(len(p.arguments) for p in group.programs)]
        return title + " of a module", lambda *x: fast(*(x[n] for n in ends[:-1]))
    return title, tg.optimize(lambda *x: group(*x), tuple(group.examples()), **options)


def made_by_compile(r: random.Random, group: Group) -> tuple[str, Function]:
    """The group under torch.compile; programs win every comparison with eager."""
    from tests.torch_compile.quick_searches import IN_C, QUICK, timed

    from tensor_graphs.torch_compile import judge

    judge.timed = timed(100.0, 1.0)
    torch._dynamo.config.recompile_limit = torch._dynamo.config.accumulated_recompile_limit = 1000
    torch._dynamo.reset()
    options = {**r.choice((IN_C, QUICK, QUICK)), "least": 1, "effort": r.choice((0, 1))}
    dynamic = r.choice((None, None, True))
    title = f"compile {options['effort']} {options.get('backend')} dynamic={dynamic}"
    return title, torch.compile(
        lambda *x: group(*x), backend=tg.torch_compile.backend, options=options, dynamic=dynamic
    )


def made_for_sizes(r: random.Random, group: Group) -> tuple[str, Function]:
    """The group as a module whose programs each have a free number of rows."""
    options = {**OPTIONS, "backend": r.choice(("numpy", "c", "torch")), "effort": r.choice((0, 1))}
    firsts = tuple(p.arguments.fresh()[0] for p in group.programs)
    shapes = tuple({0: f"n{k}"} if x.ndim and x.shape[0] > 1 else None for k, x in enumerate(firsts))
    fast = tg.optimize(AsModule(group), firsts, dynamic_shapes=(shapes,), **options)
    ends = [0, *accumulate(len(p.arguments) for p in group.programs)]
    return f"sizes {options['backend']} {options['effort']} of a module", lambda *x: fast(*(x[n] for n in ends[:-1]))


#: How programs are made, and how many are compiled together.
WAYS = {"optimize": (made_by_optimize, 6), "compile": (made_by_compile, 3), "sizes": (made_for_sizes, 2)}


def tried(seeds: Sequence[int], way: str, only: str = "") -> Iterator[tuple[int, str, str]]:
    """How each program ended (right, refused, wrong, unnamed, slow, -) with a description."""
    programs = list[Program]()
    for seed in seeds:
        torch.manual_seed(seed)
        if program := program_of(seed, only, way):
            programs.append(program)
        else:
            yield seed, "-", ""
    yield from ended(programs, way)


def ended(programs: list[Program], way: str) -> Iterator[tuple[int, str, str]]:
    """How programs ended that are compiled together, or in halves where they cannot be."""
    if not programs:
        return
    first = programs[0].seed
    r, group, began, title = random.Random(f"{first} {way}"), Group(programs), time.process_time(), way
    status = why = ""
    try:
        title, fast = WAYS[way][0](r, group)
        found = compared(group, fast, r, fixed=title.endswith("module"), sharing=way == "compile", sizes=way == "sizes")
    except TensorGraphsError as error:
        status = "wrong" if type(error).code in ("verification", "internal", "worker") else "refused"
        why = f"{title}: {type(error).__name__}: {error}"[:900]
    except Exception as error:
        status = "unnamed"
        why = f"{title}: {type(error).__name__}: {error}"[:700] + traceback.format_exc(limit=-4)[-1200:]
    if status and len(programs) > 1:
        half = len(programs) // 2
        yield from ended(programs[:half], way)
        yield from ended(programs[half:], way)
    elif status:
        yield first, status, why
    else:
        slow = time.process_time() - began > 20 * len(programs)
        for p in programs:
            text = found.get(p.seed, "")
            yield (
                p.seed,
                "wrong" if text else "slow" if slow else "right",
                f"{title} of {len(programs)} from {first}: {text}",
            )


def worker(given: Any, results: Any, only: str) -> None:
    """Run lists of seeds until there are none; each result is sent with its seed."""
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    while (task := given.get()) is not None:
        way = task[1]
        for seed, status, why in tried(*task, only):
            program = program_of(seed, only, way) if status not in ("right", "-") else None
            results.put(
                (
                    seed,
                    status,
                    why,
                    program.text() if program else "",
                    [s.name for s in program.steps] if program else [],
                )
            )
        results.put(None)


def main() -> None:
    """Run the command line described above."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--way", default="optimize,optimize,optimize,compile")
    parser.add_argument("--only", default="", help="entry of the first step")
    parser.add_argument("--once", type=int, nargs="+", default=None)
    parser.add_argument("--log", default="", help="JSON lines of all that is not right")
    given = parser.parse_args()
    ways = given.way.split(",")
    if given.once is not None:
        torch.set_num_threads(1)
        warnings.simplefilter("ignore")
        for seed in given.once:
            program = program_of(seed, given.only, ways[0])
            print(program and program.text())
        for result in tried(given.once, ways[0], given.only):
            print(*result)
        return
    print(dict(run_workers(given, ways)))


def run_workers(given: Any, ways: Sequence[str]) -> Counter[str]:
    """Run seeds one after the other in a worker process, which is replaced when it dies or takes too long."""
    context, counts, seed = multiprocessing.get_context("spawn"), Counter[str](), given.seed
    end, turn, child = time.monotonic() + given.seconds, 0, None
    while time.monotonic() < end:
        if child is None:
            tasks, results = context.Queue(), context.Queue()
            child = context.Process(target=worker, args=(tasks, results, given.only))
            child.start()
        way = ways[turn % len(ways)]
        turn += 1
        seeds = list(range(seed, seed + WAYS[way][1]))
        seed = seeds[-1] + 1
        tasks.put((seeds, way))
        began = time.monotonic()
        while True:
            try:
                result = results.get(timeout=2)
                if result is None:
                    break
                told(given, counts, way, *result)
            except Empty:
                if not child.is_alive() or time.monotonic() - began > 400:
                    told(
                        given,
                        counts,
                        way,
                        seeds[0],
                        "hang" if child.is_alive() else "died",
                        f"{seeds} {child.exitcode}",
                        "",
                        [],
                    )
                    child.kill()
                    child.join()
                    child = None
                    break
    if child is not None:
        tasks.put(None)
        child.join(20)
        child.kill()
    print(f"seeds {given.seed} to {seed - 1}")
    return counts


def told(
    given: Any, counts: Counter[str], way: str, seed: int, status: str, why: str, text: str, names: list[str]
) -> None:
    """Count, print and log a result."""
    counts[f"{way} {status}"] += 1
    if status not in ("right", "-", "refused"):
        print(f"=== {seed} {way} {status}: {why}\n    {text}", flush=True)
    if given.log:
        with open(given.log, "a") as f:
            f.write(json.dumps({"seed": seed, "way": way, "status": status, "why": why, "names": names}) + os.linesep)


if __name__ == "__main__":
    main()
