"""Implements the `torch.compile` backend: graphs run eagerly until programs are ready and faster."""

from __future__ import annotations

import itertools
import time
import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ..backends.gpu import is_gpu
from ..errors import UsageError, warned
from ..processes.forks import Lock
from . import judge
from .create_graph import on_create_graph
from .decompositions import decompositions
from .eager_form import eager_form, inference_form
from .effects import effects, flat_parameter
from .exact import bitwise_difference
from .memory_layout import copy_where_views_fail, sharing
from .options import CompileOptions
from .random_operators import partition
from .recurrent_operators import keep_layers_whole
from .report import EAGER, PROGRAM, SEARCHING, GraphReport, register
from .runner import NoProgram
from .traced_graph import LOST, READY, TracedGraph
from .written_arguments import WrittenArguments, take_writes

_numbers = itertools.count()
_graphs: weakref.WeakSet[CompiledGraph] = weakref.WeakSet()


def compile_graph(module: Any, example_inputs: Sequence[Any], options: CompileOptions) -> CompiledGraph:
    """Callable for a graph `module` that Dynamo captured with `example_inputs`: takes the graph's flat inputs, returns
    its flat outputs.

    Operators that cannot be traced or imported run eagerly, with a warning; the report says why.
    """
    graph = CompiledGraph(module, options)
    graph.trace(module, example_inputs)
    return graph


class CompiledGraph:
    """One Dynamo graph: its eager module, and the graph that AOTAutograd traced, in which some parts are programs."""

    def __init__(self, module: Any, options: CompileOptions) -> None:
        from torch.autograd import forward_ad

        self.module, self.options = eager_form(module), options
        self._modes = forward_ad  # has the level of forward-mode differentiation
        self.report = GraphReport(f"graph{next(_numbers)}", _names(module))
        self.traced: list[TracedGraph] = []
        self._compiled: Callable[..., Any] | None = None
        self._arity = 0  # number of the Dynamo graph's inputs
        self._lock = Lock()  # only ever tried: a graph does not call itself
        self._written: set[int] | None = None  # positions of inputs that the graph writes; None: not known
        self._sharing: tuple[Any, ...] | None = None  # `sharing` of the first call's arguments
        self._held: list[Any] = []  # tensors of the graph module that the graph writes
        self._parameters: set[str] = set()  # names of placeholders: parameters, and buffers that are not written
        self._slower = ""  # why programs do not win although their median is smaller
        self._said: set[str] = set()
        register(self.report)
        _graphs.add(self)

    # ------------------------------------------------------------ compilation
    def trace(self, module: Any, example_inputs: Sequence[Any]) -> None:
        """Trace Dynamo's graph module with AOTAutograd for inputs like `example_inputs`. If that fails, the graph runs
        eagerly."""
        from torch._dynamo.backends.common import aot_autograd
        from torch._dynamo.exc import RestartAnalysis, SkipFrame
        from torch._functorch.aot_autograd import make_boxed_func

        self._arity = len(example_inputs)

        def compiler(kind: str) -> Callable[..., Any]:
            def compile_traced(module: Any, inputs: Sequence[Any]) -> Any:
                return make_boxed_func(self._add(kind, module))

            return compile_traced

        try:
            self.module = inference_form(self.module, example_inputs)
            keep_layers_whole(module)
            compiled = aot_autograd(
                fw_compiler=compiler("forward"), bw_compiler=compiler("backward"),
                inference_compiler=compiler("inference"), decompositions=decompositions(),
                partition_fn=partition, keep_inference_input_mutations=True,
            )(module, example_inputs)  # fmt: skip
            # this object is excluded from tracing already: without the wrapper that excludes it again
            self._compiled = getattr(compiled, "_torchdynamo_orig_callable", compiled)
        except (RestartAnalysis, SkipFrame):
            raise
        except Exception as error:
            self._give_up(f"it cannot be traced: {type(error).__name__}: {str(error).partition(chr(10))[0][:200]}")
            warned(f"{self.report.name} runs eagerly: {self.report.why}")

    def _add(self, kind: str, module: Any) -> Callable[..., Any]:
        """The callable of a graph that AOTAutograd traced."""
        import torch

        copy_where_views_fail(module)
        places = take_writes(module)
        context = torch._guards.TracingContext.try_get()
        facts = context.fw_metadata if context is not None else None
        names = [node.name for node in module.graph.find_nodes(op="placeholder")]
        count, frozen = len(names), list[int]()
        if once := effects(module):
            self._give_up(f"trial calls would repeat {once}, which other processes or the outside see")
            return WrittenArguments(module, places) if places else lambda *args: module(*args)
        if facts is not None and kind == "forward":
            facts.bw_donated_idxs = []  # programs do not overwrite saved tensors: a backward pass may run again
        if facts is not None and kind != "backward":
            written = {i for i, x in enumerate(facts.input_info) if x.mutates_data or x.mutates_metadata}
            if len(facts.input_info) == count:
                self._parameters |= {names[i] for i in facts.static_input_indices if i not in written}
                held = _held_tensors(self.module)
                if count == self._arity + len(held):  # AOTAutograd's inputs are the held tensors, then the arguments
                    self._written = {i - len(held) for i in written if i >= len(held)}
                    self._held = [x for i, x in enumerate(held) if i in written]
                else:  # arguments that share memory were merged, and have other positions
                    self._held = held
                if kind == "inference":
                    frozen = [i for i in facts.static_input_indices if i not in written]
        try:
            # gradients have memory of their own: autograd may add to them in place
            seen = {"backward": 0, "forward": getattr(facts, "num_forward", None)}.get(kind)
            seen = None if seen is None else seen + len(places)
            steady = [i for i, name in enumerate(names) if name in self._parameters]  # in backward graphs: saved ones
            # new values of arguments come first
            changed = getattr(facts, "num_mutated_inp_runtime_indices", 0) + len(places)
            made = TracedGraph(kind, module, frozen, self.options, self.report, seen, steady, changed)
        except Exception as error:  # an operator whose builder fails: the traced graph runs as it is
            self._warn(
                f"the {kind} graph has no programs: {type(error).__name__}: {str(error).partition(chr(10))[0][:200]}"
            )
            if kind != "backward":
                self._give_up(self.report.warnings[-1])
            return WrittenArguments(module, places) if places else lambda *args: module(*args)
        self.traced.append(made)
        return WrittenArguments(made, places) if places else made

    # ------------------------------------------------------------ calls
    def __call__(self, *args: Any) -> Any:
        """The graph's results: of programs if they are in use for these arguments, else of the eager graph."""
        if self.report.runs == EAGER or self._compiled is None or self._modes._current_level >= 0:
            return self.module(*args)  # also in forward-mode differentiation: programs would drop tangents
        if self._written != set() and self._share_otherwise(args):
            return self.module(*args)
        if self.report.runs == SEARCHING and not self.traced[0].variants and flat_parameter(args):
            self._give_up(
                "its parameters are those of FullyShardedDataParallel, which frees their memory between calls"
            )
            return self.module(*args)
        if self.report.runs == SEARCHING and self._searching():
            return self._eager(args)
        try:
            if self.report.runs == SEARCHING:
                for traced in self.traced:
                    traced.begin()
            return self._compiled(*args)
        except NoProgram:
            pass
        except Exception as error:
            if self.report.runs != SEARCHING:
                raise
            results = self.module(*args)  # nothing was computed yet; if this fails, too, a later call begins the search
            self._fail("a search cannot be started", error)
            return results
        if self._decide(args):
            try:
                return self._compiled(*args)
            except NoProgram:
                pass
        return self._eager(args)

    def _share_otherwise(self, args: Sequence[Any]) -> bool:
        """Whether arguments of a graph that writes some of them share memory in another way than in the first call:
        AOTAutograd's graph is made for one way, and it has no guard for that."""
        found = sharing(args)
        if self._sharing is None:
            self._sharing = found
        return found != self._sharing

    def _eager(self, args: Sequence[Any]) -> Any:
        """Results of the eager graph. While programs are not in use, gradients that are differentiated again
        (`create_graph=True`) end the search: AOTAutograd's backward pass raises an error for them.
        """
        results = self.module(*args)
        if self.report.runs == SEARCHING:
            on_create_graph(results, weakref.WeakMethod(self._refuse_second_derivatives))
        return results

    def _refuse_second_derivatives(self) -> None:
        if self.report.runs == SEARCHING:
            self._give_up("its gradients are differentiated again (create_graph=True), which programs do not support")

    def _searching(self) -> bool:
        """Whether variants exist and none of them can be decided yet."""
        variants = [v for t in self.traced for v in t.variants]
        return bool(self.traced[0].variants) and not any(
            v.state == READY or (v.state == SEARCHING and all(s.ended for s in v.searches)) for v in variants
        )

    @property
    def decided(self) -> bool:
        """Whether programs or eager execution have been chosen for all weights and sizes of calls so far."""
        if self.report.runs == EAGER:
            return True
        return self.report.runs == PROGRAM and not any(t.fitting(SEARCHING) for t in self.traced[:1])

    @property
    def awaits_backward(self) -> bool:
        """Whether the next call traces the backward graph and begins its search. Forward programs are timed together
        with the backward pass, so they wait for it.
        """
        forward = [t for t in self.traced if t.kind == "forward"]
        return self.report.runs == SEARCHING and len(self.traced) == len(forward) == 1 and bool(forward[0].variants)

    def _decide(self, args: Sequence[Any]) -> bool:
        """Bind programs whose searches have ended, and time them; returns whether programs came into use."""
        if not self._lock.acquire(blocking=False):
            return False
        try:
            for traced, variant in [(t, v) for t in self.traced for v in t.fitting(SEARCHING)]:
                if all(s.ended for s in variant.searches):
                    for reason in traced.bind(variant):
                        self._warn(reason)
            first = self.traced[0]
            pending = any(t.fitting(SEARCHING) for t in self.traced)
            if first.fitting(READY) and not (pending and len(self.traced) > 1):
                self._try(args)
            self._settle()
            return self.report.runs == PROGRAM
        except Exception as error:
            self._fail("programs cannot be loaded", error)
            return False
        finally:
            self._lock.release()

    def _try(self, args: Sequence[Any]) -> None:
        """Time the ready variant that fits a call against the eager graph."""
        import torch

        first, compiled = self.traced[0], self._compiled
        assert compiled is not None
        gradients = first.kind == "forward"
        ready = first.fitting(READY)
        written = range(len(args)) if self._written is None else self._written
        devices = [x.device for x in args if isinstance(x, torch.Tensor) and is_gpu(x.device)]
        first.trial, why = True, ""
        step: judge.TrialStep | None = None
        try:
            with judge.without_traces(devices):
                step = judge.TrialStep(args, list(written), gradients, self._held)
                before = len(self.traced)
                step.run(compiled)
                step.reset()
                if len(self.traced) > before:
                    self.traced[-1].begin()
                    return  # the backward graph has just been traced: its search comes first
                eager, program = (lambda: step.run(self.module)), (lambda: step.run(compiled))
                won, eager_us, program_us, self._slower = judge.faster(eager, program, bool(devices), step.reset)
                if won and self.options.tolerance == "exact":
                    frozen = {id(x) for v in ready for x in v.frozen.tensors}
                    if off := bitwise_difference(
                        compiled, self.module, args, list(written), gradients, frozen, self._held
                    ):
                        won, why = False, f"programs have other bits than eager calls: {off}"
        except NoProgram:
            return
        except Exception as error:
            if step is not None and judge.refuses(self.module, step, devices):
                return  # the call itself is wrong, as with an index outside of an axis: a later one decides
            won, eager_us, program_us = False, None, None
            self._warn(f"a trial call of the programs failed: {type(error).__name__}: {str(error)[:200]}")
        finally:
            first.trial = False
            if step is not None:
                step.reset()
        used = [v for v in ready if v.tried] or ready
        for variant in used:
            if not variant.active():
                won, why = False, (variant.reasons or [""])[-1]
            variant.settle(won)
            variant.why = variant.why or why
        self.report.eager_us, self.report.program_us = eager_us, program_us
        for reason in dict.fromkeys([*(r for v in used for r in v.reasons), why]):
            if reason:
                self._warn(reason)

    def _settle(self) -> None:
        """Record in the report which form runs the graph: programs or eager execution."""
        report, states = self.report, [v.state for v in self.traced[0].variants]
        times = (
            "" if report.eager_us is None else f": {report.program_us:.1f} µs a call, eager {report.eager_us:.1f} µs"
        )
        if PROGRAM in states:
            report.runs, report.why = PROGRAM, f"programs are faster{times}"
        elif states and all(s == LOST for s in states):
            why = next((v.why for v in self.traced[0].variants if v.why), "")
            clearly = "clearly " * ((report.program_us or 0.0) < (report.eager_us or 0.0))  # by their medians they are
            slower = f"programs are not {clearly}faster{times}" + (f": {self._slower}" if self._slower else "")
            self._give_up(why or (slower if times else "the trial call failed"))

    def _fail(self, what: str, error: Exception) -> None:
        self._warn(f"{what}: {type(error).__name__}: {str(error).partition(chr(10))[0][:200]}")
        self._give_up(self.report.warnings[-1])

    def _give_up(self, why: str) -> None:
        self.report.runs, self.report.why = EAGER, why

    def _warn(self, message: str) -> None:
        """Warn once of a message, and keep it in the report."""
        if message not in self._said:
            self._said.add(message)
            self.report.warnings.append(message)
            warned(f"{self.report.name}: {message}")


def _held_tensors(module: Any) -> list[Any]:
    """Parameters, then buffers of a graph module, which it has beside its arguments, in AOTAutograd's order."""
    return [
        *(x for _, x in module.named_parameters(remove_duplicate=False)),
        *(x for _, x in module.named_buffers(remove_duplicate=False)),
    ]


def _names(module: Any) -> list[str]:
    """Names of a Dynamo graph's inputs that are no parameters or buffers."""
    weights = "_dynamo_static_input_type"
    nodes = module.graph.find_nodes(op="placeholder")
    return [n.name for n in nodes if weights not in (n.meta.get("tensor_dict") or {})]


def wait(seconds: float | None = None) -> bool:
    """Wait until no search of this process runs, at most `seconds` (None: without limit).

    Returns whether all have ended, so that the next call of each graph chooses between its programs and eager
    execution. False also for a graph with gradients whose backward search begins at the next call.
    """
    until = None if seconds is None else time.monotonic() + seconds
    for graph in list(_graphs):
        for traced in graph.traced:
            for variant in traced.variants:
                for search in variant.searches:
                    if not search.wait(None if until is None else max(0.0, until - time.monotonic())):
                        return False
    return not any(graph.awaits_backward for graph in list(_graphs))


def options_of(given: Mapping[str, Any]) -> CompileOptions:
    """Options from the keyword arguments that Dynamo passes to the backend: the mapping `options`.

    Raises UsageError for other keywords, and for unknown options.
    """
    rest = {n: v for n, v in given.items() if n != "options" and not (n == "mode" and v in (None, "default"))}
    if rest:
        raise UsageError(
            f'torch.compile arguments {sorted(rest)} have no meaning for the backend "tensor_graphs"',
            hint="give options={...}",
        )
    return CompileOptions.of(given.get("options"))


__all__ = ["CompiledGraph", "compile_graph", "options_of", "wait"]
