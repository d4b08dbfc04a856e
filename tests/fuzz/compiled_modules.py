"""Random modules with state, effects and gradients under `torch.compile`, in several calls between which weights, modes
and arguments change, compared with eager calls of a copy.

    python -m tests.fuzz.compiled_modules --seconds 600 --seed 0 [--only PART]
    python -m tests.fuzz.compiled_modules --once SEED [--only PART]

A module is a chain of parts (`compiled_parts`). After every call these are compared: results with their structure,
dtypes, strides, `requires_grad`, shared memory and gradients; arguments; state dict and other attributes; the state of
random numbers. Programs win every comparison with eager. What differs in the same way under `backend="aot_eager"` is
PyTorch's own and counts as "torch".
"""

from __future__ import annotations

import argparse
import copy
import random
import traceback
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn
from torch.utils import _pytree

import tensor_graphs as tg
from tensor_graphs.pipeline.optimize import optimize

from .compiled_parts import WIDTH, Chosen, parts
from .evaluated import Evaluated
from .torch_comparison import described

Tensor = torch.Tensor
LIMITS = {torch.float32: 3e-4, torch.float64: 1e-5, torch.bfloat16: 8e-2, torch.float16: 3e-2, torch.complex64: 3e-4}


DEFERRED = 3  # seeds of which one has searches that run some calls later
_pending: list[Any] = []  # searches that were submitted and have not run; they run between later calls
SEARCHED = 6  # seeds of which one is searched; for the others the graph is evaluated with NumPy


class Chain(nn.Module):
    """The parts one after the other."""

    def __init__(self, names: Sequence[str], made: Sequence[nn.Module]) -> None:
        super().__init__()
        self.names, self.parts = list(names), nn.ModuleList(made)

    def forward(self, x: Tensor, chosen: Chosen) -> Any:
        """The last matrix, and what parts add to the results."""
        results: list[Any] = []
        for part in self.parts:
            x = part(x, results, chosen)
        return {"y": x, "results": results}


@dataclass
class Call:
    """How one call is made: the same for both copies."""

    seed: int
    rows: int
    layout: str
    dtype: torch.dtype
    mode: str
    gradient: str  # "", "argument", "inner"
    backward: str  # "", "once", "twice", "grad", "create"
    actions: list[str] = field(default_factory=list)
    count: int = 1
    flag: bool = False
    name: str = "gelu"
    maybe: float | None = None
    aliased: str = ""
    autocast: bool = False


@dataclass
class Outcome:
    """What a call gave and left behind."""

    error: str
    results: Any
    arguments: list[Any]
    gradients: dict[str, Any]
    state: dict[str, Any]
    random: Tensor


LAYOUTS = ("same", "same", "same", "turned", "steps", "offset", "expanded")
ACTIONS = (
    "train", "eval", "load", "assign", "in place", "data", "data in place", "replace", "freeze", "thaw", "sgd", "adam", "zero",
    "buffers", "copy", "tie", "vector", "double", "bfloat16", "float", "reset", "fill", "layer", "averaged",
)  # fmt: skip


def plan_of(r: random.Random) -> list[Call]:
    """The calls of a module."""
    mode = r.choice(("grad", "grad", "no_grad", "no_grad", "inference"))
    found: list[Call] = []
    for number in range(r.randint(3, 6)):
        if number and r.random() < 0.15:
            mode = r.choice(("grad", "no_grad", "inference"))
        call = Call(
            r.randrange(1 << 30), r.choice((3, 3, 3, 3, 2, 1, 5, 0)), r.choice(LAYOUTS), torch.float32, mode,
            r.choice(("", "argument", "inner")), r.choice(("once", "once", "once", "", "twice", "grad", "create")),
            [r.choice(ACTIONS) for _ in range(r.choice((0, 1, 1, 2)))] if number else [],
        )  # fmt: skip
        if r.random() < 0.4:
            call.count, call.flag, call.maybe = r.randrange(4), r.random() < 0.5, r.choice((None, None, 0.5, -2.0))
            call.name = r.choice(("gelu", "leaky"))
        call.aliased = r.choice(("", "", "", "", "x", "view", "rows"))
        call.autocast = r.random() < 0.04
        if r.random() < 0.04:
            call.dtype = r.choice((torch.float64, torch.bfloat16, torch.float16))
        found.append(call)
    return found


def laid_out(x: Tensor, layout: str) -> Tensor:
    """The matrix in another memory layout."""
    if layout == "turned":
        return x.t().contiguous().t()
    if layout == "steps":
        wide = torch.zeros(x.shape[0], 2 * x.shape[1], dtype=x.dtype)
        wide[:, ::2] = x
        return wide[:, ::2]
    if layout == "offset":
        wide = torch.zeros(x.numel() + 3, dtype=x.dtype)
        wide[3:] = x.flatten()
        return wide[3:].view(x.shape)
    if layout == "expanded" and x.shape[0]:
        return x[:1].clone().expand(x.shape)
    return x


def arguments_of(call: Call, dtype: torch.dtype) -> tuple[Tensor, Chosen, list[Tensor]]:
    """Arguments of a call and the leaves that get gradients."""
    g = torch.Generator().manual_seed(call.seed)
    with torch.inference_mode(False):
        x = laid_out(torch.randn(call.rows, WIDTH, generator=g).to(dtype), call.layout)
        z = torch.randn(4, WIDTH, generator=g).to(dtype)
        leaves = []
        if call.gradient:
            x.requires_grad_()
            leaves.append(x)
            if call.gradient == "inner":
                x = x * 1
        elif call.aliased == "x" and call.rows > 1 and call.layout != "expanded":
            z = x
        elif call.aliased == "view" and call.rows > 1 and call.layout == "same":
            z = x[1:]
        elif call.aliased == "rows" and call.rows > 1 and call.layout == "same":
            z = x.t()
        places = torch.randint(0, 7, (3,), generator=g)
    other = {"z": z, "places": places}
    return x, Chosen(call.count, round(0.5 + call.count * 0.25, 3), call.flag, call.name, call.maybe, other), leaves


def act(model: Any, action: str, seed: int) -> None:
    """A change of the module between calls."""
    g, parameters = torch.Generator().manual_seed(seed), [p for p in model.parameters() if p.is_floating_point()]
    drawn = lambda p: torch.randn(p.shape, generator=g).to(p.dtype) * 0.5
    if action in ("train", "eval", "double", "bfloat16", "float"):
        getattr(model, action)()
    elif action in ("load", "assign"):
        state = {k: drawn(v) if v.is_floating_point() else v.clone() for k, v in model.state_dict().items()}
        model.load_state_dict(state, assign=action == "assign", strict=False)
    elif action in ("freeze", "thaw"):
        for p in parameters[:: 1 + seed % 2]:
            p.requires_grad_(action == "thaw")
    elif action in ("sgd", "adam"):
        kind = torch.optim.SGD if action == "sgd" else torch.optim.Adam
        if parameters:
            kind(parameters, lr=0.1).step()
    elif action == "averaged":  # for a while, which a search that begins then must notice
        kept = [p.data.clone() for p in parameters]
        for p in parameters:
            p.data.mul_(1.01)
        run_searches()
        for p, value in zip(parameters, kept):
            p.data.copy_(value)
    elif action == "zero":
        model.zero_grad(set_to_none=seed % 2 == 0)
    elif action == "vector":
        nn.utils.vector_to_parameters(
            torch.cat([drawn(p).flatten() for p in parameters] or [torch.zeros(0)]), parameters
        )
    elif action == "buffers":
        for module in model.modules():
            for name, b in list(module.named_buffers(recurse=False)):
                module.register_buffer(name, b.clone() + 1)
    else:
        with torch.no_grad():
            act_on_weights(model, action, parameters, drawn)


def run_searches() -> None:
    """Run the searches that wait."""
    while _pending:
        _pending.pop(0).run_here()


def act_on_weights(model: Any, action: str, parameters: list[Any], drawn: Callable[[Tensor], Tensor]) -> None:
    """The changes of weights that need no gradients."""
    for module in model.modules():
        for name, p in list(module.named_parameters(recurse=False)):
            if not any(p is q for q in parameters):
                continue
            if action == "in place":
                p[..., :1].mul_(1.5)
            elif action == "fill":
                p.flatten()[-1:].fill_(0.25)
            elif action == "data":
                p.data = drawn(p)
            elif action == "data in place":
                p.data.add_(0.25)
            elif action == "replace" and "parametrizations" not in repr(model):
                setattr(module, name, nn.Parameter(drawn(p)))
    linear = [m for m in model.modules() if type(m) is nn.Linear and m.in_features == m.out_features == WIDTH]
    linear = [m for m in linear if "weight" in m._parameters]
    if action == "tie" and len(linear) > 1:
        linear[0].weight = linear[-1].weight
    if action == "layer" and linear:
        linear[0].weight = nn.Parameter(drawn(linear[0].weight))


def outcome(model: Any, fast: Callable[..., Any], call: Call) -> Outcome:
    """Make a call, with its backward passes."""
    kinds = [p.dtype for p in model.parameters() if p.is_floating_point()]
    dtype = call.dtype if call.dtype != torch.float32 or not kinds else kinds[0]
    x, chosen, leaves = arguments_of(call, dtype)
    torch.manual_seed(call.seed)
    mode = {"grad": nullcontext, "no_grad": torch.no_grad, "inference": torch.inference_mode}[call.mode]
    results, error, gradients = None, "", dict[str, Any]()
    try:
        with mode(), torch.autocast("cpu", torch.bfloat16) if call.autocast else nullcontext():
            results = fast(x, chosen)
        gradients = differentiated(model, results, leaves, call)
    except Exception as raised:
        error = f"{type(raised).__name__}: {raised}"
    for name, p in [*model.named_parameters(), *((f"argument {i}", v) for i, v in enumerate(leaves))]:
        gradients[name] = None if p.grad is None else p.grad.detach().clone()
    return Outcome(error, results, [x, *chosen.other.values()], gradients, state_of(model), torch.get_rng_state())


def differentiated(model: Any, results: Any, leaves: Sequence[Any], call: Call) -> dict[str, Any]:
    """The backward passes of a call; gradients that are not added to leaves."""
    roots = [
        y for y in _pytree.tree_leaves(results) if isinstance(y, Tensor) and y.requires_grad and y.grad_fn is not None
    ]
    if not roots or not call.backward:
        return {}
    loss = sum(
        (y.real.double() * torch.arange(1, y.numel() + 1).view(y.shape)).nan_to_num(0, 0, 0).sum() for y in roots
    )
    wanted = [*leaves, *(p for p in model.parameters() if p.requires_grad)]
    if call.backward == "twice":
        loss.backward(retain_graph=True)
        loss.backward()
    elif call.backward == "grad":
        found = torch.autograd.grad(loss, wanted, allow_unused=True)
        return {f"grad {i}": g for i, g in enumerate(found)}
    elif call.backward == "create" and wanted:
        found = torch.autograd.grad(loss, wanted, allow_unused=True, create_graph=True)
        second = sum(g.real.double().square().sum() for g in found if g is not None and g.requires_grad)
        if isinstance(second, Tensor):
            second.backward()
        return {f"grad {i}": None if g is None else g.detach() for i, g in enumerate(found)}
    else:
        loss.backward()
    return {}


def state_of(model: Any) -> dict[str, Any]:
    """Copies of the state dict and of other attributes."""
    found = {k: v.detach().clone() for k, v in model.state_dict().items() if isinstance(v, Tensor)}
    for name, module in model.named_modules():
        for key in ("steps", "last", "history", "training"):
            if key in module.__dict__:
                found[f"{name}.{key}"] = copy.deepcopy(_pytree.tree_map(lambda v: v.detach() if isinstance(v, Tensor) else v, module.__dict__[key]))  # fmt: skip
    return found


# ---------------------------------------------------------------- comparison
def close(got: Any, want: Any, what: str) -> Iterator[str]:
    """How two leaves differ."""
    if not isinstance(want, Tensor) or not isinstance(got, Tensor):
        if type(got) is not type(want) or (got != want and got == got):
            yield f"{what}: {described(got)} instead of {described(want)}"
        return
    if got.dtype != want.dtype or got.shape != want.shape:
        yield f"{what}: {got.dtype}{list(got.shape)} instead of {want.dtype}{list(want.shape)}"
        return
    a, b = got.detach(), want.detach()
    if a.is_complex():
        a, b = torch.view_as_real(a.resolve_conj().resolve_neg()), torch.view_as_real(b.resolve_conj().resolve_neg())
    if not b.is_floating_point():
        if not torch.equal(a, b):
            yield f"{what}: {described(a)} instead of {described(b)}"
        return
    limit, a, b = LIMITS.get(got.dtype, 1e-6), a.double(), b.double()
    finite = b.isfinite() & a.isfinite()
    same = (a == b) | (a.isnan() & b.isnan())
    scale = max(1.0, float(b[finite].abs().max())) if finite.any() else 1.0
    if not bool((same | (finite & ((a - b).abs() <= limit * scale))).all()):
        yield f"{what}: {described(got)} instead of {described(want)}"


def shared(values: Sequence[Any]) -> set[tuple[int, int]]:
    """Pairs of values with common memory."""
    at = [
        (i, v.untyped_storage().data_ptr())
        for i, v in enumerate(values)
        if isinstance(v, Tensor) and v.layout == torch.strided and v.numel()
    ]
    return {(i, k) for n, (i, p) in enumerate(at) for k, q in at[n + 1 :] if p == q}


def facts(x: Tensor) -> list[str]:
    """What autograd and lazy views know of a result."""
    flags = {"requires_grad": x.requires_grad, "leaf": x.is_leaf, "conj": x.is_conj(), "neg": x.is_neg(), "grad_fn": x.grad_fn is not None}  # fmt: skip
    return [f"{name} {value}" for name, value in flags.items()]


def compared(got: Outcome, want: Outcome, model: Any, other: Any) -> Iterator[str]:
    """How a call of the compiled module differs from the eager one."""
    if got.error.split(":")[0] != want.error.split(":")[0]:
        yield f"{got.error[:300]!r} instead of {want.error[:300]!r}"
        return
    if not want.error:
        g, spec = _pytree.tree_flatten(got.results)
        w, wanted = _pytree.tree_flatten(want.results)
        if spec != wanted:
            yield f"structure {spec} instead of {wanted}"
            return
        for i, (a, b) in enumerate(zip(g, w)):
            yield from close(a, b, f"result {i}")
            if isinstance(a, Tensor) and isinstance(b, Tensor):
                yield from (f"result {i}: {x} instead of {y}" for x, y in zip(facts(a), facts(b)) if x != y)
                if a.stride() != b.stride() and a.numel() > 1 and 0 not in b.stride():
                    yield f"result {i}: strides {a.stride()} instead of {b.stride()} of {list(b.shape)}"
        own = (
            [*got.arguments, *model.parameters(), *model.buffers()],
            [*want.arguments, *other.parameters(), *other.buffers()],
        )
        if (a := shared([*g, *own[0]])) != (b := shared([*w, *own[1]])):
            yield f"shared memory: more {sorted(a - b)}, less {sorted(b - a)} of {len(g)} results and {len(got.arguments)} arguments"
    for i, (a, b) in enumerate(zip(got.arguments, want.arguments)):
        yield from close(a, b, f"argument {i} after the call")
        if a.stride() != b.stride():
            yield f"argument {i} after the call: strides {a.stride()} instead of {b.stride()}"
    for what in ("gradients", "state"):
        a, b = getattr(got, what), getattr(want, what)
        if a.keys() != b.keys():
            yield f"{what}: {set(a) ^ set(b)}"
        for key in b.keys() & a.keys():
            left, right = _pytree.tree_leaves(a[key]), _pytree.tree_leaves(b[key])
            if len(left) != len(right):
                yield f"{what} {key}: {a[key]} instead of {b[key]}"
            for x, y in zip(left, right):
                yield from close(x, y, f"{what} {key}")
    if not torch.equal(got.random, want.random):
        yield "random numbers: another state"


# ---------------------------------------------------------------- running
def forms(r: random.Random, model: Any, backend: Any, options: dict[str, Any]) -> tuple[str, Callable[..., Any]]:
    """A compiled form of a module."""
    given = {"options": options} if options else {}
    dynamic = r.choice((None, None, None, True, False))
    kind = r.choice(("module", "module", "tg", "function", "forward"))
    if kind == "tg" and options:
        return kind, tg.compile(model, dynamic=dynamic, **options)
    if kind == "function":
        return kind, torch.compile(lambda x, c: model(x, c), backend=backend, dynamic=dynamic, **given)
    if kind == "forward":
        return kind, torch.compile(model.forward, backend=backend, dynamic=dynamic, **given)
    return kind, torch.compile(model, backend=backend, dynamic=dynamic, **given)


def tried(seed: int, only: str = "", backend: Any = None) -> tuple[str, str]:
    """(right, wrong, -), description."""
    from tests.torch_compile.quick_searches import IN_C, QUICK, timed

    from tensor_graphs.torch_compile import judge, report, search, traced_graph

    judge.timed = timed(100.0, 1.0)
    _pending.clear()
    traced_graph.submit = _pending.append if seed % DEFERRED == 0 else search.submit
    search.optimize = optimize if seed % SEARCHED == 0 else Evaluated
    torch._dynamo.reset()
    report._reports.clear()
    torch._dynamo.config.recompile_limit = torch._dynamo.config.accumulated_recompile_limit = 64
    r = random.Random(seed)
    torch.manual_seed(seed)
    known = parts(r)
    names = [r.choice(list(known)) for _ in range(r.choice((1, 1, 2, 3, 4)))]
    if only:
        names[r.randrange(len(names))] = only
    own = Chain(names, [known[n]() for n in names])
    own.train(r.random() < 0.6)
    plan = plan_of(r)
    options = {**r.choice((QUICK, QUICK, QUICK, IN_C)), "least": 1, "freeze": r.random() < 0.8}
    eager, text = copy.deepcopy(own), f"{names} {'train' if own.training else 'eval'}"
    kind, fast = forms(random.Random(seed), own, backend or tg.torch_compile.backend, {} if backend else options)
    text += f" {kind} freeze={options['freeze']} backend={options.get('backend', 'all')}"
    earlier: list[tuple[list[Any], list[Any]]] = []
    for number, call in enumerate(plan):
        text += f"\n    {call}"
        for action in call.actions:
            if action == "copy" and isinstance(fast, nn.Module):
                fast = copy.deepcopy(fast)
                own = fast._orig_mod
            elif action == "reset":
                torch._dynamo.reset()
            for model in (own, eager):
                try:
                    act(model, action, call.seed)
                except Exception as error:  # a change that eager refuses
                    text += f" [{action} refused: {error}]"[:200]
        before = (
            copy.deepcopy(eager)
            if not any(
                isinstance(v, Tensor) and v.grad_fn is not None for m in eager.modules() for v in m.__dict__.values()
            )
            else None
        )
        if number and call.seed % 3:
            run_searches()
        want = outcome(eager, eager, call)
        if want.error and "refused" not in want.error:
            text += f" [eager: {want.error[:100]}]"
            got = outcome(own, fast, call)
            if got.error.split(":")[0] != want.error.split(":")[0]:
                return "wrong", f"call {number}: error {got.error[:100]!r} instead of {want.error[:100]!r}\n    {text}"
            if before is None or not (same_state(own, before) and same_state(eager, before)):
                break
            continue
        got = outcome(own, fast, call)
        found = list(compared(got, want, own, eager))
        for k, (a, b) in enumerate(earlier):
            found += [f"later, call {k}: {why}" for pair in zip(a, b) for why in close(*pair, "result")]
        earlier.append((_pytree.tree_leaves(got.results), _pytree.tree_leaves(want.results)))
        if found:
            return "wrong", f"call {number}: " + "; ".join(found)[:1500] + f"\n    {text}"
    runs = [g.runs for g in tg.torch_compile.reports()][-8:]
    return "right", f"{text}\n    {runs}"


def same_state(model: Any, other: Any) -> bool:
    """Whether two modules have equal state."""
    a, b = state_of(model), state_of(other)
    leaves = zip(_pytree.tree_leaves([a[k] for k in b]), _pytree.tree_leaves(list(b.values())))
    return not any(why for pair in leaves for why in close(*pair, "state"))


def judged(seed: int, only: str = "") -> tuple[str, str]:
    """`tried`, and what PyTorch's own backend does where it is wrong."""
    try:
        status, text = tried(seed, only)
    except Exception as error:
        return "unnamed", f"{type(error).__name__}: {error}"[:500] + traceback.format_exc(limit=-5)[-1500:]
    if status == "wrong":
        try:
            other, why = tried(seed, only, "aot_eager")
        except Exception as error:
            other, why = "unnamed", str(error)
        if other != "right" and why.split(":")[0] == text.split(":")[0] and key(why) == key(text):
            return "torch", text
        text = f"{text}\n    aot_eager: {other} {why.splitlines()[0][:300]}"
    return status, text


def key(text: str) -> str:
    """What differs first, without values."""
    return text.partition(":")[2].split(":")[0][:40].split(" instead")[0]


def main() -> None:
    """Run the command line described above."""
    import time
    from collections import Counter

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", default="")
    parser.add_argument("--once", type=int, nargs="+", default=None)
    given = parser.parse_args()
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    counts, end, seed = Counter[str](), time.monotonic() + given.seconds, given.seed
    while time.monotonic() < end if given.once is None else seed - given.seed < len(given.once):
        at = seed if given.once is None else given.once[seed - given.seed]
        status, text = judged(at, given.only)
        counts[status] += 1
        counts["graphs with programs"] += sum(g.runs == "program" for g in tg.torch_compile.reports())
        if status not in ("right", "torch") or given.once:
            print(f"=== {at} {status}: {text}", flush=True)
        elif status == "torch":
            print(f"--- {at} torch: {text.splitlines()[0][:160]}", flush=True)
        seed += 1
    print(f"seeds {given.seed} to {seed - 1}: {dict(counts)}", flush=True)


if __name__ == "__main__":
    main()
