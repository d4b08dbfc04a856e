"""Draws random programs of PyTorch's operator samples (OpInfo): a sample in one of the operator's forms, with changed
arguments, followed by further samples that accept a value made so far (torch_values.py)."""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from functools import cache
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from torch.utils import _pytree
from torch.utils._python_dispatch import TorchDispatchMode

from . import opinfo
from .torch_comparison import Arguments, altered_values, described, laid_out

Function = Callable[..., Any]
DTYPES = (torch.float32,) * 6 + (torch.int64, torch.int32, torch.bool, torch.bfloat16, torch.float16, torch.float64,
          torch.uint8, torch.int8, torch.int16, torch.complex64)  # fmt: skip
LARGEST = 1500  # elements of a tensor
FOLLOWERS = (torch.float32, torch.float32, torch.int64, torch.bool, torch.bfloat16, torch.float16, torch.int32)


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
    return [e for e in opinfo.entries() if not opinfo.UNDEFINED.search(e.name) and "jiterator" not in e.name]


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
