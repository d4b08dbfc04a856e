"""Holds a graph traced by AOTAutograd, with programs for its parts: one variant for each set of frozen weights and
fixed sizes."""

from __future__ import annotations

import copy
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from ..backends.gpu import is_gpu
from ..backends.program.program import Program
from ..backends.registry import backend
from ..errors import TensorGraphsError
from ..models.torch_export.traced import read_traced, sizes_of, symbols_of, tensor_symbols
from ..wording import counted
from .frozen_weights import Frozen
from .memory_layout import TracedLayouts
from .options import CompileOptions
from .partition import Part, Split, device_of, saved_results, split
from .report import PROGRAM, SEARCHED, SEARCHING, GraphReport, PartReport
from .runner import NoProgram, PartRunner, direct_call
from .search import Search, submit
from .typical import typical_of

#: States of a variant: a search runs, programs are ready to be timed, they are used, they are not.
READY, LOST = "ready", "lost"
#: Variants of frozen weights after which weights become inputs, and variants of fixed sizes.
MOST_FROZEN, MOST_SIZES = 4, 8


class Variant:
    """Programs of a traced graph for certain frozen weights and fixed sizes."""

    def __init__(
        self, split_: Split, reports: Sequence[PartReport], frozen: Frozen, fixed: Mapping[str, int],
        sizes: Mapping[str, int], options: CompileOptions, name: str, args: Sequence[Any] = (), seen: int | None = None,
        steady: Collection[int] = (), written: int = 0,
    ) -> None:  # fmt: skip
        """Start the searches. `args`: a call's arguments, whose values are typical of inputs; none if not known.
        `seen`: number of results that are not saved for the backward pass (None: all). `steady`, `written`: as in
        `TracedGraph`.
        """
        self._steady, self._written = steady, written
        self._kind, self._seen, self._layouts = name, seen, TracedLayouts(split_.module)
        self.state, self.why = SEARCHING, ""
        self.tried = False  # whether its programs have run
        self.reasons: list[str] = []  # reasons why parts have no program
        self._runners: list[PartRunner] = []
        self.frozen, self.fixed = frozen, dict(fixed)
        self.within: dict[str, tuple[int, int]] = {}  # size symbol -> least and largest value
        self._starts: dict[str, set[int]] = {}  # size symbol -> least sizes of the programs' buckets
        self.run: Callable[..., Any] | None = None
        self._exact = options.tolerance == "exact"
        self._split, self._reports = split_, reports
        self._searches: list[tuple[Search, list[int], Mapping[str, str]] | None] = []
        for i, (part, report) in enumerate(zip(split_.parts, reports)):
            report.state = SEARCHING
            try:
                self._searches.append(self._begin(part, sizes, options, f"{name}_{i}", args, report))
            except Exception as error:  # a part that cannot be imported stays eager
                report.state = f"not imported: {type(error).__name__}: {getattr(error, 'message', error)}"
                self._searches.append(None)

    def _begin(
        self,
        part: Part,
        sizes: Mapping[str, int],
        options: CompileOptions,
        name: str,
        args: Sequence[Any],
        report: PartReport,
    ) -> tuple[Search, list[int], Mapping[str, str]]:
        """Start the search for a part's program.

        Returns it with the part's placeholders that are program inputs, and the size symbol of each of its free
        dimensions.
        """
        placeholders = part.module.graph.find_nodes(op="placeholder")
        held = dict(zip(self.frozen.positions, self.frozen.tensors))
        weights: dict[str, Any] = {}
        for node, source in zip(placeholders, part.sources):
            if isinstance(source, int) and source in held:
                weights[node.name] = held[source]
            elif source is not None and not isinstance(source, int):
                weights[node.name] = source
        own = tensor_symbols(part.module, frozenset(weights))
        fixed = {**{n: s for n, s in sizes.items() if n not in own}, **self.fixed}
        try:
            graph, symbols = read_traced(part.module, weights=weights, fixed=fixed, name=name)
        except TensorGraphsError:
            if not own - set(fixed):
                raise
            fixed = dict(sizes)  # sizes of an input that is not free: the program is for these sizes only
            graph, symbols = read_traced(part.module, weights=weights, fixed=fixed, name=name)
        used = symbols_of(part.module)
        self.fixed |= {n: s for n, s in fixed.items() if n in used}
        device = device_of(part.module)
        if not held:  # weights or what the forward pass saved are inputs
            known = {
                n.name: args[s] for n, s in zip(placeholders, part.sources) if isinstance(s, int) and s < len(args)
            }
            graph = replace(graph, typical=typical_of(known))
        inside = saved_results(self._split.module, part.name, self._seen, self._written)
        inner = graph.names if self._kind == "backward" else [graph.names[i] for i in inside]
        graph = replace(graph, inner=frozenset(inner))
        search = Search(
            graph,
            {n: sizes[s] for n, s in symbols.items() if s in sizes},
            _placed(options, device),
            str(device),
            self.frozen.unchanged,
        )
        search.at_end = partial(setattr, report, "state", SEARCHED)
        submit(search)
        inputs = {str(x.attr("name")) for x in graph.inputs}
        return search, [i for i, node in enumerate(placeholders) if node.name in inputs], symbols

    @property
    def searches(self) -> list[Search]:
        """The searches of all parts that were imported."""
        return [s[0] for s in self._searches if s is not None]

    def bind(self) -> list[str]:
        """Load the programs of the searches, which have ended; returns the reasons why parts have no program.

        The variant's state is then READY, or LOST if no part has a program.
        """
        reasons: list[str] = []
        module = copy.copy(self._split.module)
        module.graph.owning_module = (
            self._split.module
        )  # both share the graph, which would keep this variant's programs
        bound = False
        for part, report, found in zip(self._split.parts, self._reports, self._searches):
            if found is None:
                reasons.append(report.state)
                continue
            search, positions, symbols = found
            try:
                program = search.program()
            except TensorGraphsError as error:
                report.state = f"no program: {error.message}"
                reasons.append(report.state)
                continue
            self._restrict(program, search.sizes, symbols)
            places = [part.sources[i] for i in positions]
            if steady := [k for k, at in enumerate(places) if isinstance(at, int) and at in self._steady]:
                program.steady(steady)
            recalled = ", its plan from the cache" if search.remembered else ""
            report.state, bound = f"program of {counted(program.manifest.kernels, 'kernel')}{recalled}", True
            saved = saved_results(self._split.module, part.name, self._seen)
            refuse, backward = _refusing(report, reasons), self._kind == "backward"
            self._runners.append(PartRunner(part, program, positions, refuse, self._exact, saved, backward))
            setattr(module, part.name, self._runners[-1].as_module())
        self._searches.clear()
        if bound:
            direct = direct_call(module, self._runners[0]) if len(self._split.parts) == 1 else None
            self.state, self.run = READY, direct or (lambda *args: module(*self._layouts.of(args)))
        else:
            self.state, self.run = LOST, None
        self.why = "" if bound else (reasons[0] if reasons else "no part has enough operators")
        self.reasons = reasons
        return reasons

    def _restrict(self, program: Program, searched: Mapping[str, int], symbols: Mapping[str, str]) -> None:
        """Note the sizes at which a program runs, and where its buckets begin."""
        ranges, divided = program.manifest.sizes, program.manifest.buckets
        for name, size in searched.items():
            low, high, _ = ranges.get(name, (size, size, size))
            before = self.within.get(symbols[name], (low, high))
            self.within[symbols[name]] = max(low, before[0]), min(high, before[1])
        if divided is not None:
            self._starts.setdefault(symbols[divided.dimension], set()).update(row.least for row in divided.rows)

    def by_bucket(self) -> list[Variant]:
        """Copies of this variant, one for each bucket of sizes in which its programs run another plan, so that each
        bucket is judged separately.
        """
        found = [self]
        for symbol, starts in self._starts.items():
            low, high = self.within[symbol]
            inner = sorted(s for s in starts if low < s <= high)
            rows = list(zip([low, *inner], [*(s - 1 for s in inner), high]))
            found = [v._for_sizes({symbol: row}) for v in found for row in rows]
        return found

    def _for_sizes(self, within: Mapping[str, tuple[int, int]]) -> Variant:
        made = copy.copy(self)
        made.within = {**self.within, **within}
        return made

    def settle(self, won: bool) -> None:
        """End the variant's trial; if its programs won, calls run them."""
        self.state = PROGRAM if won else LOST
        for runner in self._runners:
            runner.on_trial = runner.on_trial and not won

    def active(self) -> bool:
        """Whether calls run any of the variant's programs."""
        return any(r.active for r in self._runners)

    def fits(self, args: Sequence[Any], sizes: Mapping[str, int]) -> bool:
        """Whether the programs are for the weights in `args` and the sizes of a call."""
        for name, (low, high) in self.within.items():
            if not low <= sizes.get(name, low) <= high:
                return False
        for name, size in self.fixed.items():
            if sizes.get(name) != size:
                return False
        return self.frozen.hold(args)


class TracedGraph:
    """An inference, forward or backward graph traced by torch.compile. Calling it runs its optimized programs, if they
    are in use (those of a backward graph: if they are ready). Otherwise an inference or forward graph raises NoProgram,
    and a backward graph runs eagerly.

    `frozen`: positions of placeholders that are constants; `seen`: number of results, the first ones, that the caller
    gets; `steady`: positions of placeholders that are parameters, which keep their memory between calls; `written`:
    number of results, the first ones, that are new values of mutated arguments (running statistics).
    """

    def __init__(
        self, kind: str, module: Any, frozen: Sequence[int], options: CompileOptions, report: GraphReport,
        seen: int | None = None, steady: Collection[int] = (), written: int = 0,
    ) -> None:  # fmt: skip
        self.kind, self.module, self.options = kind, module, options
        self._frozen = list(frozen) if options.freeze else []
        self.split, self.report = split(module, kind, options.least, self._frozen, seen)
        report.traced.append(self.report)
        self.variants: list[Variant] = []
        self._frozen_sets = 0  # sets of frozen weights for which searches were begun
        self._steady, self._written = frozenset(steady), written
        self.trial = False  # whether ready variants run although they are not in use yet
        self._sized = bool(sizes_of(module))
        self._seen, self._layouts = seen if kind == "forward" else None, TracedLayouts(module)

    def begin(self) -> None:
        """Start the searches of a backward graph, at the sizes that it was traced with. Other graphs start theirs at
        their first call, whose arguments give weights and sizes."""
        if self.kind == "backward" and not self.variants:
            self._begin(None, sizes_of(self.module))

    def __call__(self, *args: Any) -> Any:
        """Results of the graph: of the programs of a variant that is in use for these weights and sizes, else of the
        eager graph."""
        sizes = sizes_of(self.module, args) if self._sized else {}
        found: Variant | None
        for found in self.variants:
            if found.fits(args, sizes):
                break
        else:
            found = self._begin(args, sizes)
        if found is not None and found.run is not None:
            if found.state == PROGRAM or (found.state == READY and (self.trial or self.kind == "backward")):
                found.tried = True
                return found.run(*args)
        if self.kind == "backward":
            return self.module(*self._layouts.of(args))
        raise NoProgram

    def bind(self, variant: Variant) -> list[str]:
        """Load the programs of a variant, and divide it into one variant for each bucket of sizes of its programs.

        Returns the reasons why parts have no program (`Variant.bind`).
        """
        if any(search.stale for search in variant.searches):
            self._drop([variant])  # the next call of its weights searches anew
            return []
        reasons = variant.bind()
        self.variants = [one for v in self.variants for one in (v.by_bucket() if v is variant else [v])]
        return reasons

    def fitting(self, state: str) -> list[Variant]:
        """Variants whose `state` is the given one (SEARCHING, READY, LOST, PROGRAM or EAGER)."""
        return [v for v in self.variants if v.state == state]

    def _begin(self, args: Sequence[Any] | None, sizes: Mapping[str, int]) -> Variant | None:
        """Start the searches of a new variant; None if there are enough. Variants of weights that were written are
        freed; those without frozen weights, which fit all, come last."""
        for old in {id(v.frozen): v.frozen for v in self.variants if v.frozen.outdated}.values():
            self._forget(old)
        frozen = [] if args is None else [i for i in self._frozen if _is_versioned(args[i])]
        if self._frozen_sets >= MOST_FROZEN:
            frozen = []  # weights that change: they become inputs
        if len({id(v.frozen) for v in self.variants}) >= MOST_FROZEN + MOST_SIZES:
            return None
        self._frozen_sets += bool(frozen)
        guard = Frozen(frozen, args or (), self._forget)
        made = Variant(self.split, self.report.parts, guard, {}, sizes, self.options, self.kind, args or (), self._seen,
                       self._steady, self._written)  # fmt: skip
        self.report.frozen = len(frozen)
        self.variants = [made, *self.variants] if frozen else [*self.variants, made]
        return made

    def _forget(self, frozen: Frozen) -> None:
        """Free the programs of weights that do not exist any more, and end their searches. Runs at any time, on any
        thread."""
        self._drop([v for v in self.variants if v.frozen is frozen])

    def _drop(self, variants: Sequence[Variant]) -> None:
        """Forget variants, and end their searches."""
        for search in [s for v in variants for s in v.searches]:
            search.abandoned = True
        self.variants = [v for v in self.variants if all(v is not one for one in variants)]


def _is_versioned(x: Any) -> bool:
    """Whether a weight is a plain tensor whose changes can be noticed."""
    import torch

    return type(x) in (torch.Tensor, torch.nn.Parameter) and not x.is_inference()


def _placed(options: CompileOptions, device: Any) -> CompileOptions:
    """The options with a backend for a device, if none was asked for. On a machine with a GPU, "auto" is the GPU."""
    if options.backend is not None:
        return options
    if device is not None and is_gpu(device):
        return replace(options, backend="gpu")
    return options if backend("torch_cuda").unavailable() else replace(options, backend="torch")


def _refusing(report: PartReport, reasons: list[str]) -> Callable[[str], None]:
    def refuse(reason: str) -> None:
        report.state = f"not used: {reason}"
        reasons.append(report.state)

    return refuse


__all__ = ["LOST", "READY", "TracedGraph", "Variant"]
