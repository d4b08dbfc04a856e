"""Whole calls of what `tg.compile` returns: to the compiled callable, or to the caller's own where that is faster.

A graph's program is compared with the graph behind Dynamo's guards. The guards, and a graph that is slower than the code it was
captured from, can cost more than a program gains. Once all graphs of a callable are decided, calls of equal signature (shapes,
dtypes, modes) go

- to the caller's own module or function if no graph runs a program, or Dynamo captured none: the guards would be all that is added;
- with gradients, to the compiled callable: the decision about its graphs covers the backward pass, which a call does not;
- else alternately to both for a few calls, which are timed, and from then on to the compiled one if it is faster by more than noise,
  else to the caller's own. A form's time is the lower quartile of its calls, since other processes only make calls longer.

No call is repeated, so side effects happen once; both callables give the caller's results.
"""

from __future__ import annotations

import functools
import time
import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch._dynamo.eval_frame import OptimizedModule

from ..backends.runtime.cpu_tensors import tensor_guard
from .compiled_graph import CompiledGraph, compile_graph, options_of
from .judge import NOISE
from .report import EAGER

#: Timed calls of each callable: at least, and at most where times differ by less than CLOSE; seconds after which FEWEST are enough.
CALLS, MOST_CALLS, FEWEST, MOST_S = 12, 48, 3, 2.0
CLOSE = 0.15
KEPT = 64  # signatures that are remembered


class CompileBackend:
    """The `torch.compile` backend of one `tg.compile` call.

    `graphs`: those that it has compiled and that still exist.
    """

    def __init__(self) -> None:
        self.graphs: weakref.WeakSet[CompiledGraph] = weakref.WeakSet()

    def __call__(self, module: Any, example_inputs: Sequence[Any], **given: Any) -> Any:
        """See `tensor_graphs.torch_compile.backend`."""
        graph = compile_graph(module, example_inputs, options_of(given))
        self.graphs.add(graph)
        return graph

    def __reduce__(self) -> Any:
        return CompileBackend, ()  # a copy compiles graphs of its own


class CallTrial:
    """Timed calls of one signature, alternating between the compiled callable and the caller's own."""

    def __init__(self, compiled: Callable[..., Any], own: Callable[..., Any]) -> None:
        self.forms = compiled, own
        self.us: tuple[list[float], list[float]] = ([], [])

    def call(self, args: Sequence[Any], named: Mapping[str, Any], on_gpu: bool) -> Any:
        """Results of the next call of the trial."""
        turn = int(len(self.us[0]) > len(self.us[1]))
        if on_gpu:
            torch.cuda.synchronize()
        begin = time.perf_counter()
        found = self.forms[turn](*args, **named)
        if on_gpu:
            torch.cuda.synchronize()
        self.us[turn].append(1e6 * (time.perf_counter() - begin))
        return found

    def times(self) -> tuple[float, float]:
        """µs of a call of the compiled callable and of the caller's own: lower quartiles, without the first call of each."""
        compiled, own = (sorted(us[1:])[(len(us) - 1) // 4] for us in self.us)
        return compiled, own

    @property
    def ended(self) -> bool:
        """Whether both callables were called often enough; their first calls do not count."""
        count = len(self.us[1]) - 1
        if count < FEWEST:
            return False
        if sum(map(sum, self.us)) > 1e6 * MOST_S or count >= MOST_CALLS:
            return True
        compiled, own = self.times()
        return count >= CALLS and abs(compiled - own) > CLOSE * min(compiled, own)


class WholeCalls:
    """Dispatcher of calls to a compiled callable or to the caller's own."""

    def __init__(self, compiled: Callable[..., Any], own: Callable[..., Any], backend: CompileBackend) -> None:
        self.compiled, self.own, self.backend = compiled, own, backend
        self._training = isinstance(own, torch.nn.Module)
        self._chosen: dict[Any, Callable[..., Any]] = {}
        self._trials: dict[Any, CallTrial] = {}
        # of a frequent signature: check in C, number of tensors, modes, chosen callable
        self._last: tuple[Any, ...] | None = None
        self._repeated: tuple[Any, int] = None, 0  # the last signature that `_signature` made, and how often in a row

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_last": None}

    def __call__(self, *args: Any, **named: Any) -> Any:
        """The results of a call."""
        if torch.compiler.is_compiling():  # inside of another compiled function, which captures the module's operators
            return self.own(*args, **named)
        if self._last is not None and not named:
            check, count, grad, training, chosen = self._last
            if len(args) == count and check(*args) and torch.is_grad_enabled() is grad:
                if training is None or self.own.training is training:  # type: ignore[attr-defined]
                    return chosen(*args)
        key = self._signature(args, named)
        chosen = self._chosen.get(key)
        if chosen is None:
            return self._undecided(key, args, named)
        if not named:
            self._remember(key, args, chosen)
        return chosen(*args, **named)

    def _remember(self, key: Any, args: Sequence[Any], chosen: Callable[..., Any]) -> None:
        """Make a check in C for a signature of tensors that occurs often; it takes a third of the time of `_signature`."""
        last, count = self._repeated
        self._repeated = key, count + 1 if key == last else 1
        if key == last and count in (2, 20, 200) and args and all(type(x) is torch.Tensor for x in args):
            check = tensor_guard(args)
            self._last = None if check is None else (check, len(args), *key[:2], chosen)

    def _signature(self, args: Sequence[Any], named: Mapping[str, Any]) -> Any:
        key: list[Any] = [torch.is_grad_enabled(), self.own.training if self._training else None]  # type: ignore[attr-defined]
        for x in args if not named else (*args, *named.values()):
            if isinstance(x, torch.Tensor):
                key.append(x.shape)
                key.append(x.dtype)
            else:
                key.append(type(x))
        return tuple(key)

    def _undecided(self, key: Any, args: Sequence[Any], named: Mapping[str, Any]) -> Any:
        trial = self._trials.get(key)
        if trial is None:
            found = self.compiled(*args, **named)
            self._begin(key)
            return found
        given = (*args, *named.values())
        found = trial.call(args, named, any(isinstance(x, torch.Tensor) and x.is_cuda for x in given))
        if trial.ended:
            self._end(key, trial)
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
        elif torch.is_grad_enabled():
            self._choose(key, self.compiled, "")
        else:
            self._trials[key] = CallTrial(self.compiled, self.own)

    def _end(self, key: Any, trial: CallTrial) -> None:
        compiled, own = trial.times()
        faster = compiled < (1 - NOISE) * own
        said = f"go to {'the compiled one' if faster else 'the module itself'}: {compiled:.1f} µs compiled, {own:.1f} µs the module itself"
        self._choose(key, self.compiled if faster else self.own, said)
        self._trials.pop(key, None)

    def _choose(self, key: Any, chosen: Callable[..., Any], said: str) -> None:
        self._chosen[key] = chosen
        for graph in self.backend.graphs:
            graph.report.calls = said


class CompiledModule(OptimizedModule):  # type: ignore[misc]
    """Module that `torch.compile` returned, with calls that go to the caller's module itself where that is faster."""

    def __init__(self, mod: torch.nn.Module, dynamo_ctx: Any) -> None:
        super().__init__(mod, dynamo_ctx)
        self.choose(CompileBackend())

    def choose(self, backend: CompileBackend) -> None:
        """Time whole calls once the graphs of a backend are decided."""
        self.__dict__["_calls"] = WholeCalls(super().__call__, self._orig_mod, backend)

    def __call__(self, *args: Any, **named: Any) -> Any:
        """The module's results."""
        return self._calls(*args, **named)


def compiled(model: Any, **given: Any) -> Any:
    """Result of `torch.compile(model, **given)` with a backend of its own, and with the choice between it and `model`."""
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
