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
import re
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from functools import cache
from itertools import accumulate, islice
from pathlib import Path
from queue import Empty
from typing import Any

import torch
from torch.testing._internal.common_methods_invocations import op_db
from torch.utils import _pytree
from torch.utils._python_dispatch import TorchDispatchMode

import tensor_graphs as tg
from tensor_graphs.errors import TensorGraphsError

from .opinfo import UNDEFINED
from .torch_comparison import Arguments, altered_values, compared, described, laid_out

Function = Callable[..., Any]
DTYPES = (torch.float32,) * 6 + (torch.int64, torch.int32, torch.bool, torch.bfloat16, torch.float16, torch.float64,
          torch.uint8, torch.int8, torch.int16, torch.complex64)  # fmt: skip
LARGEST = 1500  # elements of a tensor
FOLLOWERS = (torch.float32, torch.float32, torch.int64, torch.bool, torch.bfloat16, torch.float16, torch.int32)
OPTIONS: dict[str, Any] = {"budget": 1, "measure": False}


@dataclass(eq=False)
class Step:
    """A call of an operator on values by number: `flat` holds the call's leaves, `reads` the value that each place
    reads, `write` what is called: the function or one of its other forms."""

    name: str
    call: Function
    flat: list[Any]
    spec: Any
    reads: dict[int, int]

    def __call__(self, values: Sequence[Any]) -> Any:
        given = list(self.flat)
        for place, number in self.reads.items():
            given[place] = values[number]
        first, args, kwargs = _pytree.tree_unflatten(given, self.spec)
        return self.call(first, *args, **kwargs)


@dataclass(eq=False)
class Program:
    """A random function of `arguments`; `steps` each add their tensors to the values, `returned` chooses results."""

    seed: int
    arguments: Arguments
    steps: list[Step]
    returned: Callable[[list[Any], list[Any]], Any]
    own_dtype: torch.dtype
    autocast: bool = False
    clones: bool = False  # of the arguments, which eager writes
    notes: list[str] = field(default_factory=list)

    def values(self, tensors: Sequence[Any]) -> list[Any]:
        """Arguments and all tensors of the steps."""
        values = list(tensors)
        for step in self.steps:
            values += [v for v in _pytree.tree_leaves(step(values)) if isinstance(v, torch.Tensor)]
        return values

    def __call__(self, *tensors: Any) -> Any:
        values, kept = [x.clone() for x in tensors] if self.clones else list(tensors), []
        with torch.autocast("cpu", torch.bfloat16) if self.autocast else nullcontext():
            for step in self.steps:
                made = step(values)
                kept.append(made)
                values += [v for v in _pytree.tree_leaves(made) if isinstance(v, torch.Tensor)]
        return self.returned(values, kept)

    def text(self) -> str:
        """The program in words."""
        lines = [f"arguments {[described(x) for x in self.arguments.fresh()]}"]
        for step in self.steps:
            shown = [f"v{step.reads[i]}" if i in step.reads else described(v) for i, v in enumerate(step.flat)]
            lines.append(f"{step.name}({', '.join(shown)}) as {_pytree.treespec_pprint(step.spec)}"[:700])
        return "\n    ".join([*lines, *self.notes, *(["autocast"] if self.autocast else [])])


# ---------------------------------------------------------------- samples and forms
@cache
def entries() -> list[Any]:
    """Entries whose results are defined."""
    return [e for e in op_db if not UNDEFINED.search(e.name) and "jiterator" not in e.name]


@cache
def refused() -> frozenset[str]:
    """ATen operators that docs/reliability/opinfo.md lists as refused."""
    text = (Path(__file__).parents[2] / "docs" / "reliability" / "opinfo.md").read_text()
    return frozenset(
        re.findall(r"\b(\w+\.[a-z]\w*)(?=[ ;]|$)", " ; ".join(re.findall(r"^\| (.*?) \| \d+ \| `", text, re.M)))
    )


class Called(TorchDispatchMode):
    """Notes whether an operator is called that is refused."""

    def __init__(self) -> None:
        super().__init__()
        self.refused = False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = str(func).removeprefix("aten.")
        self.refused |= name in refused() or name.startswith("as_strided")
        return func(*args, **(kwargs or {}))


@cache
def numbers() -> dict[int, int]:
    """Numbers of the entries by identity."""
    return {id(e): n for n, e in enumerate(entries())}


def samples(entry: Any, dtype: torch.dtype) -> list[Any]:
    """The first samples of an entry with small tensors, [] where there are none."""
    return samples_at(numbers()[id(entry)], dtype)


@cache
def samples_at(number: int, dtype: torch.dtype) -> list[Any]:
    """`samples` of the entry of a number."""
    torch.manual_seed(0)
    entry = entries()[number]
    try:
        found = list(islice(entry.sample_inputs_func(entry, "cpu", dtype, False), 60))
    except Exception:
        return []
    small = lambda s: all(
        v.layout == torch.strided and v.numel() <= LARGEST
        for v in _pytree.tree_leaves((s.input, s.args, s.kwargs))
        if isinstance(v, torch.Tensor)
    )
    return [s for s in found if small(s)]


def in_place_on(make: Function, form: Function) -> Function:
    """The form in place on what `make` gives of its first argument; the result and what was written."""

    def run(first: Any, *args: Any, **kwargs: Any) -> Any:
        target = make(first)
        base = target._base if target._base is not None else target
        return form(target, *args, **kwargs), base

    return run


def halves(x: Any) -> Any:
    """A view of a wider copy with x's shape and values."""
    wide = torch.zeros((*x.shape, 2), dtype=x.dtype)
    wide[..., 1] = x
    return wide[..., 1]


def into(form: Function, make: Function) -> Function:
    """The form with `out=`: tensors that `make` gives for eager's results."""

    def run(*args: Any, **kwargs: Any) -> Any:
        with torch.no_grad():
            made = form(*args, **kwargs)
        out = _pytree.tree_map(make, made)
        result = form(*args, **kwargs, out=tuple(out) if isinstance(out, tuple | list) else out)
        return result, out

    return run


def written(form: Function) -> Function:
    """The form, whose first result is then written through a view where that is allowed."""

    def run(*args: Any, **kwargs: Any) -> Any:
        made = form(*args, **kwargs)
        first = next(v for v in _pytree.tree_leaves(made) if isinstance(v, torch.Tensor))
        part = first[..., :1] if first.ndim else first
        part.zero_() if first.dtype == torch.bool else part.add_(3)
        return made

    return run


def form_of(entry: Any, r: random.Random) -> tuple[str, Function]:
    """One of an entry's forms with its name."""
    forms: list[tuple[str, Function]] = [("", entry.op)] * 3
    if entry.method_variant:
        forms.append((".method", entry.method_variant))
    if form := entry.inplace_variant:
        forms += [("_", form), ("_ on a clone", in_place_on(torch.clone, form)), ("_ on a view", in_place_on(halves, form)),
                  ("_ on a transposed clone", in_place_on(lambda x: x.mT.clone().mT if x.ndim > 1 else x.clone(), form))]  # fmt: skip
    if entry.supports_out:
        forms += [(" out=", into(entry.op, torch.zeros_like)), (" out= of a view", into(entry.op, halves))]
    if not entry.name.startswith("unsafe"):  # whose results must not be written
        forms.append((", written", written(entry.op)))
    name, form = r.choice(forms)
    title = f"{entry.name}.{entry.variant_test_name}" if entry.variant_test_name else entry.name
    return title + name, form


# ---------------------------------------------------------------- making programs
def first_step(r: random.Random, entry: Any, dtype: torch.dtype) -> tuple[Step, Arguments, list[str]] | None:
    """A sample of the entry with changed arguments."""
    found = samples(entry, dtype)
    if not found:
        return None
    sample = r.choice(found)
    flat, spec = _pytree.tree_flatten((sample.input, list(sample.args), dict(sample.kwargs)))
    name, call = form_of(entry, r)
    places = [i for i, v in enumerate(flat) if isinstance(v, torch.Tensor)]
    if not places:
        return None
    notes, tensors = list[str](), [flat[i].detach().clone() for i in places]
    if len(places) > 1 and r.random() < 0.25:  # another kind of operand
        at = r.randrange(len(places))
        number = tensors[at].flatten()[:1]
        other = r.choice(("number", "0-d", "dtype", "same"))
        if other == "number" and number.numel():
            flat[places[at]] = number.item()
            del places[at], tensors[at]
        elif other == "0-d" and number.numel():
            tensors[at] = number[0].to(r.choice((dtype, *FOLLOWERS)))
        elif other == "dtype":
            tensors[at] = tensors[at].to(r.choice((*FOLLOWERS, torch.uint8)))
        notes.append(f"operand {at}: {other}")
    if not places:
        return None
    kinds = [altered_values(r, x) if x.dtype == dtype and r.random() < 0.5 else x for x in tensors]
    arguments = Arguments([laid_out(r, x) for x in kinds])
    step = Step(name, call, flat, spec, {place: n for n, place in enumerate(places)})
    if not runs(step, arguments.fresh()):
        arguments = Arguments([laid_out(r, x) for x in tensors])
        if not runs(step, arguments.fresh()):
            return None
    return step, arguments, notes


def runs(step: Step, values: Sequence[Any]) -> bool:
    """Whether eager accepts the step and gives tensors of moderate size."""
    try:
        with Called() as called:
            made = [v for v in _pytree.tree_leaves(step(values)) if isinstance(v, torch.Tensor)]
    except Exception:
        return False
    if called.refused:
        return False
    return bool(made) and all(
        v.layout == torch.strided and not v.is_quantized and v.numel() <= 4 * LARGEST for v in made
    )


def next_step(r: random.Random, values: list[Any]) -> Step | None:
    """A sample of a random entry that accepts one of the values in place of its input."""
    at = r.randrange(max(0, len(values) - 2), len(values)) if r.random() < 0.8 else r.randrange(len(values))
    entry = r.choice(entries())
    found = samples(entry, values[at].dtype if r.random() < 0.8 else r.choice(FOLLOWERS))
    if not found:
        return None
    sample = r.choice(found)
    flat, spec = _pytree.tree_flatten((sample.input, list(sample.args), dict(sample.kwargs)))
    places = [i for i, v in enumerate(flat) if isinstance(v, torch.Tensor)]
    name, call = form_of(entry, r)
    reads = dict.fromkeys(places[:1], at)
    for place in places[1:]:
        if r.random() < 0.7:
            reads[place] = r.randrange(len(values))
    step = Step(name, call, [v.detach() if isinstance(v, torch.Tensor) else v for v in flat], spec, reads)
    return step if places else None


def results_of(r: random.Random) -> tuple[str, Callable[[list[Any], list[Any]], Any]]:
    """Structures of results."""
    return r.choice((
        ("last", lambda values, made: made[-1]), ("last", lambda values, made: made[-1]),
        ("all", lambda values, made: made), ("dict", lambda values, made: {"y": made[-1], "x": values[-1]}),
        ("twice", lambda values, made: (made[-1], values[-1], made[-1])),
        ("with an argument", lambda values, made: (values[0], made[-1])),
        ("views", lambda values, made: (values[-1], values[-1].reshape(-1), None)),
    ))  # fmt: skip


def program_of(seed: int, only: str = "", way: str = "") -> Program | None:
    """The random program of a seed, None where eager refuses its first call."""
    r = random.Random(seed)
    chosen = [e for e in entries() if e.name == only] if only else entries()
    for _ in range(20):
        first = first_step(r, r.choice(chosen), r.choice(DTYPES if way == "compile" else DTYPES[:-1]))
        if first is not None:
            break
    else:
        return None
    step, arguments, notes = first
    steps = [step]
    title, returned = results_of(r)
    program = Program(
        seed, arguments, steps, returned, arguments.fresh()[0].dtype, r.random() < 0.04, [*notes, f"returns {title}"]
    )
    for _ in range(r.choice((0, 0, 0, 1, 2, 3, 5))):
        for _ in range(25):
            try:
                values = program.values(arguments.fresh())
            except Exception:  # a kernel that the check of the step did not reach
                return None
            if (more := next_step(r, values)) and runs(more, values):
                steps.append(more)
                break
    try:
        program(*(given := arguments.fresh()))
    except Exception:
        return None
    if way != "compile":
        program.clones, program.autocast = any(x._version for x in given), False
    return program


# ---------------------------------------------------------------- running programs
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
