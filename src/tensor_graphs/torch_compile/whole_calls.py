"""Directs the calls of the callable that `tg.compile` returns: to the compiled callable, or to the caller's own where
that is faster.

For each captured graph, judge.py decides whether the optimized program or the graph itself runs; it times both after
Dynamo's guards (checks of the arguments) have passed. The guards, and a graph that is slower than the code it was
captured from, can cost more than a program gains, so whole calls are compared here, too. Once every graph of a callable
is decided, calls of equal signature (shapes, dtypes, modes) go

- to the caller's own module or function if no graph runs a program, or Dynamo captured none: the guards would be all
  that is added. If all signatures met so far go there, the signature of only one call in 17 is checked, since a check
  costs 0.5 µs, and some 3 µs where the module's own work has emptied the caches. A new signature is noticed later;
- else to both for a few calls, in pairs, which are timed, and from then on to the compiled one if it is faster by more
  than noise, else to the caller's own. The time of each callable is the lower quartile of the times of its calls, since
  other processes only make calls longer; the compiled one must also win most pairs. With gradients, a call's time ends
  where the next call begins: the backward pass and the optimizer's step lie between. Where signatures alternate, no
  such time can be taken, and calls go to the compiled callable.

No call is repeated, so side effects happen once; both callables give the caller's results.
"""

from __future__ import annotations

import functools
import random
import weakref
from collections.abc import Callable, Mapping, Sequence
from threading import get_ident
from typing import Any

import torch
from torch import is_grad_enabled
from torch._dynamo.eval_frame import OptimizedModule
from torch.compiler import is_compiling

from ..backends.runtime.cpu_tensors import tensor_guard
from ..pipeline.execution.timing import Instant, why_pairs_lost, wins_pairs
from .compiled_graph import CompiledGraph, compile_graph, options_of
from .judge import NOISE
from .recurrent_modules import captures_layers
from .report import EAGER

#: Timed calls of each callable: at least, and at most where times differ by less than CLOSE; seconds after which FEWEST
#: are enough.
CALLS, MOST_CALLS, FEWEST, MOST_S = 12, 48, 3, 2.0
CLOSE = 0.15
KEPT = 64  # signatures that are remembered
UNSEEN = 16  # calls in a row whose signature is not looked at, if no signature goes to the compiled callable


@captures_layers
class CompileBackend:
    """The `torch.compile` backend of one `tg.compile` call.

    `graphs`: those that it has compiled and that still exist.
    """

    def __init__(self) -> None:
        self.graphs: weakref.WeakSet[CompiledGraph] = weakref.WeakSet()

    def __call__(self, module: Any, example_inputs: Sequence[Any], **given: Any) -> Any:
        """Compile a captured graph (`tensor_graphs.torch_compile.backend`) and note it in `graphs`."""
        graph = compile_graph(module, example_inputs, options_of(given))
        self.graphs.add(graph)
        return graph

    def __reduce__(self) -> Any:
        return CompileBackend, ()  # a copy compiles graphs of its own


class CallTrial:
    """Timed calls of one signature, in pairs of the compiled callable and the caller's own.

    `steps`: times last until the next call begins, and which callable is first in a pair is random, so that a module
    that a training step calls twice is timed in both places with either callable.
    """

    def __init__(self, compiled: Callable[..., Any], own: Callable[..., Any], steps: bool = False) -> None:
        self.forms, self.steps = (compiled, own), steps
        self.us: tuple[list[float], list[float]] = ([], [])
        self._random = random.Random(0)
        # of `steps`: the callable of the last call, its begin and its thread
        self._began: tuple[int, Instant, int] | None = None
        self.interrupted = 0  # calls of `steps` whose times were left out

    def call(self, args: Sequence[Any], named: Mapping[str, Any], on_gpu: bool) -> Any:
        """Make the next call of the trial, with positional and named arguments, to one of the two callables, and time
        it; returns its results. `on_gpu`: waits for the GPU."""
        if on_gpu:
            torch.cuda.synchronize()
        last, self._began = self._began, None
        if last is not None and last[2] == get_ident():  # an `Instant` has the clocks of its thread
            self.us[last[0]].append(last[1].us())
        ahead = len(self.us[0]) - len(self.us[1])
        turn = int(ahead > 0 or (ahead == 0 and self.steps and self._random.random() < 0.5))
        began = Instant()
        found = self.forms[turn](*args, **named)
        if self.steps:
            self._began = turn, began, get_ident()
            return found
        if on_gpu:
            torch.cuda.synchronize()
        self.us[turn].append(began.us())
        return found

    def interrupt(self) -> None:
        """Discard the time of the last call if times last until the next call (`steps`), because a call of another
        signature came first.
        """
        self._began = None
        self.interrupted += 1

    def times(self) -> tuple[float, float]:
        """µs of a call of the compiled callable and of the caller's own: lower quartiles, without the first call of
        each."""
        compiled, own = (sorted(us[1:])[(len(us) - 1) // 4] for us in self.us)
        return compiled, own

    @property
    def faster(self) -> bool:
        """Whether the compiled callable is faster by more than noise."""
        compiled, own = self.times()
        return compiled < (1 - NOISE) * own and wins_pairs(self.us[0][1:], self.us[1][1:], NOISE)

    @property
    def why(self) -> str:
        """Why the compiled callable is not `faster` although it takes less time; "" if it is, or takes more."""
        compiled, own = self.times()
        if compiled >= own or self.faster:
            return ""
        if compiled >= (1 - NOISE) * own:
            return f": the difference is within the noise of {100 * NOISE:.0f} %"
        return f": {why_pairs_lost(self.us[0][1:], self.us[1][1:], NOISE)}"

    @property
    def ended(self) -> bool:
        """Whether both callables were called often enough; their first calls do not count."""
        count = min(map(len, self.us)) - 1
        if count < FEWEST:
            return False
        if sum(map(sum, self.us)) > 1e6 * MOST_S or count >= MOST_CALLS:
            return True
        compiled, own = self.times()
        clear = compiled > own or self.faster
        return count >= CALLS and clear and abs(compiled - own) > CLOSE * min(compiled, own)


class WholeCalls:
    """Dispatcher of calls to a compiled callable or to the caller's own."""

    def __init__(self, compiled: Callable[..., Any], own: Callable[..., Any], backend: CompileBackend) -> None:
        self.compiled, self.own, self.backend = compiled, own, backend
        self._training = isinstance(own, torch.nn.Module)
        self._chosen: dict[Any, Callable[..., Any]] = {}
        self._trials: dict[Any, CallTrial] = {}
        self._stepping: CallTrial | None = None  # the trial whose last call's time lasts until the next call
        # of a frequent signature: number of tensors, check in C, modes, chosen callable
        self._last: tuple[Any, ...] | None = None
        self._settled = False  # whether all signatures that were met go to the caller's own callable
        self.unseen, self.direct = 0, own  # number of next calls whose signature is not looked at, and where they go
        self._hooked = False  # whether the compiled module has hooks of its own, which calls of `own` would leave out
        self._repeated: tuple[Any, int] = None, 0  # the last signature that `_signature` made, and how often in a row

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_last": None, "unseen": 0, "direct": self.own}

    def keep_compiled(self) -> None:
        """Send all further calls to the compiled callable, because it has hooks."""
        self._hooked, self._settled, self._last, self._stepping, self.unseen = True, False, None, None, 0
        self._chosen.clear()
        self._trials.clear()

    def __call__(self, *args: Any, **named: Any) -> Any:
        """Results of a call by the chosen callable: the compiled one, or the caller's own."""
        if is_compiling():  # inside of another compiled function, which captures the module's operators
            return self.own(*args, **named)
        if self.unseen > 0 and not named:  # threads may count below 0
            self.unseen -= 1
            return self.direct(*args)
        if self._last is not None and not named:
            count, check, grad, training, chosen = self._last
            if len(args) == count and check(*args) and is_grad_enabled() is grad:
                if training is None or self.own.training is training:  # type: ignore[attr-defined]
                    if self._settled:
                        self.unseen, self.direct = UNSEEN, _without_wrapper(self.own)
                    return chosen(*args)
        key = self._signature(args, named)
        chosen = self._chosen.get(key)
        stepping = self._stepping  # read once: other threads may end the comparison
        if stepping is not None and self._trials.get(key) is not stepping:
            stepping.interrupt()
            self._stepping = None
        if chosen is None:
            return self._undecided(key, args, named)
        if not named and self._stepping is None:
            self._remember(key, args, chosen)
        return chosen(*args, **named)

    def _remember(self, key: Any, args: Sequence[Any], chosen: Callable[..., Any]) -> None:
        """Store a check in C (`tensor_guard`) for a signature of tensors that occurs often; the check takes a third of
        the time of `_signature`.
        """
        last, count = self._repeated
        self._repeated = key, count + 1 if key == last else 1
        if key == last and count in (2, 20, 200) and args and all(type(x) is torch.Tensor for x in args):
            check = tensor_guard(args)
            self._last = None if check is None else (len(args), check, *key[:2], chosen)
            self._settled = not self._trials and all(c is self.own for c in self._chosen.values())

    def _signature(self, args: Sequence[Any], named: Mapping[str, Any]) -> Any:
        key: list[Any] = [is_grad_enabled(), self.own.training if self._training else None]  # type: ignore[attr-defined]
        for x in args if not named else (*args, *named.values()):
            if isinstance(x, torch.Tensor):
                key.append(x.shape)
                key.append(x.dtype)
            else:
                key.append(type(x))
        return tuple(key)

    def _undecided(self, key: Any, args: Sequence[Any], named: Mapping[str, Any]) -> Any:
        trial = self._trials.get(key)
        if self._hooked:
            return self.compiled(*args, **named)
        if trial is None:
            found = self.compiled(*args, **named)
            self._begin(key)
            return found
        given = (*args, *named.values())
        found = trial.call(args, named, any(isinstance(x, torch.Tensor) and x.is_cuda for x in given))
        if trial.steps:
            self._stepping, self._last, self.unseen = trial, None, 0  # so that a call of another signature is noticed
        if trial.ended:
            self._end(key, trial)
        elif trial.interrupted > MOST_CALLS:  # signatures alternate, as those of a GAN's two models
            self._trials.pop(key, None)
            self._choose(
                key, self.compiled, "go to the compiled one: their calls alternate with calls of other shapes or modes"
            )
        return found

    def _begin(self, key: Any) -> None:
        """Choose a callable, or begin to time both, if all graphs are decided."""
        graphs = list(self.backend.graphs)
        if not all(g.decided for g in graphs):
            return
        if len(self._chosen) + len(self._trials) >= KEPT:
            self._chosen.clear()
            self._trials.clear()
            self._last = None
        if all(g.report.runs == EAGER for g in graphs):
            # without graphs, too: Dynamo has captured none
            self._choose(key, self.own, "go to the module itself: no graph runs a program")
        else:
            self._trials[key] = CallTrial(self.compiled, self.own, torch.is_grad_enabled())

    def _end(self, key: Any, trial: CallTrial) -> None:
        compiled, own = trial.times()
        where, what = "the compiled one" if trial.faster else "the module itself", "a step " if trial.steps else ""
        self._choose(
            key,
            self.compiled if trial.faster else self.own,
            f"go to {where}: {what}{compiled:.1f} µs compiled, {own:.1f} µs the module itself{trial.why}",
        )
        self._trials.pop(key, None)
        self._stepping = None

    def _choose(self, key: Any, chosen: Callable[..., Any], outcome: str) -> None:
        self._chosen[key], self._settled, self.unseen = chosen, False, 0
        for graph in self.backend.graphs:
            graph.report.calls = outcome


def _without_wrapper(own: Any) -> Callable[..., Any]:
    """What a module's `__call__` calls, without its outermost frames; another callable as it is."""
    if type(own).__call__ is not torch.nn.Module.__call__ or own._compiled_call_impl is not None:
        return own  # type: ignore[no-any-return]
    return own._call_impl  # type: ignore[no-any-return]


class CompiledModule(OptimizedModule):  # type: ignore[misc]
    """Module that `torch.compile` returned, with calls that go to the caller's module itself where that is faster."""

    def __init__(self, mod: torch.nn.Module, dynamo_ctx: Any) -> None:
        super().__init__(mod, dynamo_ctx)
        self.choose(CompileBackend())

    def choose(self, backend: CompileBackend) -> None:
        """Start over with choosing between the compiled module and the original one: once all graphs that `backend`
        compiles are decided (program or eager), whole calls of both are timed."""
        self.__dict__["_calls"] = WholeCalls(super().__call__, self._orig_mod, backend)

    def __call__(self, *args: Any, **named: Any) -> Any:
        """The module's results."""
        calls = self._calls
        if not is_compiling() and calls.unseen > 0 and not named:  # as in `WholeCalls.__call__`, without its frame
            calls.unseen -= 1
            return calls.direct(*args)
        return calls(*args, **named)


def _registration(name: str) -> Callable[..., Any]:
    """`torch.nn.Module`'s method `name`, which registers a hook, for a compiled module, to which calls go from then
    on."""
    registered = getattr(torch.nn.Module, name)

    @functools.wraps(registered)
    def method(self: CompiledModule, *args: Any, **named: Any) -> Any:
        self._calls.keep_compiled()
        return registered(self, *args, **named)

    return method


for _name in ("forward_pre_hook", "forward_hook", "full_backward_pre_hook", "full_backward_hook", "backward_hook"):
    setattr(CompiledModule, f"register_{_name}", _registration(f"register_{_name}"))


def compiled(model: Any, **given: Any) -> Any:
    """Callable that runs `torch.compile(model, **given)`, with a backend of its own, or `model` itself if that is
    faster.
    """
    backend = CompileBackend()
    made = torch.compile(model, backend=backend, **given)
    if type(made) is OptimizedModule:
        made.__class__ = CompiledModule
        made.choose(backend)
        return made
    if made is model or isinstance(made, torch.nn.Module) or not callable(made):  # compilation is disabled
        return made
    calls = WholeCalls(made, model, backend)

    @functools.wraps(made)
    def call(*args: Any, **named: Any) -> Any:
        return calls(*args, **named)

    return call


__all__ = ["CompileBackend", "CompiledModule", "WholeCalls", "compiled"]
