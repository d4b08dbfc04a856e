"""Declares, documents and validates the keyword arguments of `optimize`, `saturate` and `paths`, each once.

The public functions take the fields of a class of this module as keyword arguments (`takes_options` in
`public_functions.py`) and pass them on as one object. Each class adds arguments to those of its base:

    CommonOptions           all functions
      PathOptions           paths
      SaturateOptions       saturate
        Options             optimize, and the state of every `Session`
"""

# ruff: noqa: RUF009 (`option` is `dataclasses.field`)

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import cached_property
from pathlib import Path
from types import NoneType
from typing import TYPE_CHECKING, Any

from . import settings
from .errors import UsageError
from .option_checks import (
    Check,
    anything,
    are_bounds,
    is_amount,
    is_bound,
    is_budget,
    is_count,
    is_flag,
    is_level,
    is_limits,
    is_named,
    is_progress,
    is_quantization,
    is_rules,
    is_seed,
    is_share,
    is_tolerance,
    of_kind,
)

if TYPE_CHECKING:
    from .egraph.patterns.rule import Rule
    from .egraph.saturate.saturate import Limits
    from .progress import Progress


def option(default: Any, doc: str, check: Check, *, decides: bool = True) -> Any:
    """Field of an options class: default, documentation, validator. `decides`: whether the plan of a search depends on
    the option.
    """
    return field(default=default, metadata={"doc": doc, "check": check, "decides": decides})


# ---------------------------------------------------------------- options
@dataclass(frozen=True, kw_only=True)
class CommonOptions:
    """Options that `optimize`, `saturate` and `paths` share. Raises UsageError for invalid values."""

    params: Mapping[str, Any] | None = option(
        None, "Data of weights and initial states by name.", is_named, decides=False
    )
    dims: Mapping[str, int] | None = option(
        None,
        "Sizes of free dimensions at which the program is optimized (default: batch 1, sequence 128). The program runs"
        " at every size that the dimensions allow.",
        is_named, decides=False,
    )  # fmt: skip
    backend: str | None = option(
        None,
        'Kernels to use: "auto" (default of the setting), "numpy", "torch", "c", "gpu", "cuda", "triton", "triton-only"'
        ' or "generated".',
        of_kind("a name", str, NoneType),
    )
    budget: float = option(
        60.0, "Time limit of the whole optimization in seconds. For `saturate` and `paths`: of rewriting.", is_budget, decides=False
    )  # fmt: skip
    limits: Limits | None = option(None, "Saturation limits per block (`tg.Limits`).", is_limits)
    costdb: str | Path | None = option(
        None, "Folder of the store of measured kernel costs.", of_kind("a folder", str, Path, NoneType), decides=False
    )
    memory_limit: float | None = option(
        None,
        "Maximum bytes of all kernel outputs and scratch memory together, an upper bound of the peak beside weights,"
        " inputs and states; of a model with quantized weights also the weights that kernels read, packed or expanded."
        " NoPlanError if no plan satisfies it.",
        is_bound,
    )
    error_budget: float | None = option(
        None,
        "Maximum sum of the kernels' measured relative errors (unmeasured: 0). NoPlanError if no plan satisfies it.",
        is_bound,
    )
    effort: int = option(
        1,
        "0: no rewriting; 1: rewriting within the limits on e-nodes and iterations; each further level adds a run with"
        " doubled limits and keeps what lower levels found.",
        is_level,
    )
    quantize: str | None = option(
        None,
        'Encoding of the weights of matrix products, quantized when they are loaded: "int8", "int4", "fp8" or "mxfp4".',
        is_quantization, decides=False,
    )  # fmt: skip
    rules: Sequence[Rule] = option(
        (),
        "Rewrite rules in addition to the built-in ones; each is first tested on random instances. Rules that are not"
        " tested after half of the budget take no part; `report.omitted` says how many.",
        is_rules,
    )
    kernels: Sequence[Any] = option(
        (),
        "Files of user kernels (or kernels declared in one) that are candidates beside the built-in ones, after the checks"
        " of `use_kernels`. The files are executed as code.",
        of_kind("a list of files", list, tuple, str, Path), decides=False,
    )  # fmt: skip

    def __post_init__(self) -> None:
        for declared in fields(self):
            declared.metadata["check"](declared.name, getattr(self, declared.name))

    @cached_property
    def backend_name(self) -> str:
        """Name of the backend: the option `backend`, or the setting `backend` if the option is not given."""
        return self.backend or settings.current().backend

    @cached_property
    def saturation_limits(self) -> Limits:
        """The option `limits`, or the default limits if it is not given."""
        from .egraph.saturate.saturate import Limits

        return self.limits or Limits()

    def common(self) -> dict[str, Any]:
        """Values, by name, of the options that `optimize`, `saturate` and `paths` share."""
        return {f.name: getattr(self, f.name) for f in fields(CommonOptions)}

    @property
    def limited(self) -> bool:
        """Whether the options limit memory or rounding error of the plan."""
        return self.memory_limit is not None or self.error_budget is not None


@dataclass(frozen=True, kw_only=True)
class PathOptions(CommonOptions):
    """Options of `tg.paths`, the best few plans of a model."""

    count: int = option(10, "Maximum number of plans.", is_count)
    max_gap: float = option(
        0.5, "Plans cost at most (1 + `max_gap`) times the cheapest.", is_amount
    )  # fmt: skip
    diversity: float = option(0.0, "Minimum fraction of a plan's kernels that every earlier plan lacks.", is_share)


@dataclass(frozen=True, kw_only=True)
class SaturateOptions(CommonOptions):
    """Options of `tg.saturate`."""

    example_kwargs: Mapping[str, Any] | None = option(
        None, "Named arguments of the example call, for an nn.Module.", is_named, decides=False
    )
    tolerance: str | float = option(
        "eager",
        'Allowed error: "eager" (at most 1.25 times that of the unoptimized graph), "fast" (2 times), "exact" (bitwise'
        " equal to the graph in NumPy, and to the caller's function, which runs itself if no plan is; with `quantize` to"
        " the graph with the quantized weights), or a relative error."
        " From 3e-4 on, float32 products may use TF32 on a GPU.",
        is_tolerance,
    )
    progress: Progress | None = option(
        None, "Receives messages about the stages, and ends the call early (`tg.Progress`).", is_progress, decides=False
    )
    trust: bool = option(
        False, "Allow model formats that can run code while loading (.pt2).", is_flag, decides=False
    )  # fmt: skip

    @property
    def exact(self) -> bool:
        """Whether only rewriting is allowed that changes no bit of a value."""
        return self.tolerance == "exact"


@dataclass(frozen=True, kw_only=True)
class Options(SaturateOptions):
    """Options of `tg.optimize`."""

    fixed: Mapping[str, int] | bool = option(
        False,
        "Free dimensions that get one size only, as a dict, or True for all of them; the program may be faster.",
        of_kind("a dict by name, or True", Mapping, bool, NoneType), decides=False,
    )  # fmt: skip
    dynamic_shapes: Any = option(None, "As in torch.export, for modules.", anything, decides=False)
    size_buckets: Sequence[int] | None = option(
        None,
        "Largest sizes of all buckets but the last: ranges of a free dimension that get plans of their own where these,"
        " or the caller's own function, are measured faster. None: (16, 128, 1024) on a GPU, none on a CPU. (): one plan"
        " for all sizes. UsageError for a model without free dimensions.",
        are_bounds, decides=False,
    )  # fmt: skip
    verify: bool = option(True, "Verify the program against a float64 run of the original.", is_flag, decides=False)
    measure: bool = option(
        True, "Measure kernels that the cost store does not contain. False: stored and predicted prices only.", is_flag
    )
    deterministic: bool = option(
        False,
        "The same plan for the same cost store; implies that nothing is measured. Rewriting, matching and solving end at"
        " counts of work, not with `budget`, so the call may take many times that long.",
        is_flag,
    )
    seed: int = option(0, "Random seed of the verification inputs.", is_seed)
    again: bool = option(
        False,
        "Search again instead of reusing the cached plan of an earlier equal search on this machine. Such a plan is"
        " reused only if no price has become worse (pipeline/cache/plan_cache.py).",
        is_flag, decides=False,
    )  # fmt: skip
    complete_checks: bool = option(
        True,
        "Complete the checks that the search of a cached plan had no time for: verification on further inputs, timing of"
        " the whole program. False: leave them; `report.omitted` names them.",
        is_flag, decides=False,
    )  # fmt: skip
    allow_caller: bool = option(
        True,
        "Allow the caller's own function to run instead of the program: on the CPU both are timed on the examples, and"
        " `source` runs if it is faster by more than noise, as `report.runs` and `report.compared` say. False: the"
        " compiled plan, or the unfused graph where that is faster.",
        is_flag, decides=False,
    )  # fmt: skip

    @staticmethod
    def of(options: SaturateOptions, **more: Any) -> Options:
        """Options of `optimize` with the values of other options, and fields from `more`."""
        return Options(**{f.name: getattr(options, f.name) for f in fields(options)}, **more)

    @property
    def keeps_plans(self) -> bool:
        """Whether the plan cache is used: the plan of a search without measuring depends on the cost store's current
        content."""
        return self.measure and not self.deterministic

    def deciding(self) -> dict[str, Any]:
        """Values, by name, of the options that the plan of a search depends on."""
        found = {f.name: getattr(self, f.name) for f in fields(self) if f.metadata["decides"]}
        return found | {"backend": self.backend_name, "limits": self.saturation_limits}


def with_builtin(
    rules: Sequence[Rule],
    over: Callable[[], bool] = lambda: False,
    warn: Callable[[str], None] = lambda text: None,
) -> tuple[Rule, ...]:
    """All rules of a call: the built-in ones and the caller's, which are tested on random instances first; `warn` gets
    a text for each that could not be tested.

    Those of the caller's that are not tested yet once `over` is true are left out. Raises RuleError if a rule is
    malformed or refuted (with the counterexample), UsageError if it is not a Rule or its name is taken.
    """
    from .rules import ALL, EVERY

    if not rules:
        return ALL
    from .rules.check.check import require
    from .rules.tables import partial

    tried = {r.name: r for r in (*EVERY, *partial.RULES)}
    names = {r.name for r in ALL}
    for rule in rules:
        if rule.name in names:
            raise UsageError(f"two rules are called {rule.name!r}")
        names.add(rule.name)
        rule.check()
    for n, rule in enumerate(rules):
        if tried.get(rule.name) == rule:
            continue
        if over():
            return (*ALL, *rules[:n])
        verdict = require(rule)
        if verdict.status == "unknown":
            warn(f"the rule {rule.name} is untested: {verdict.detail.removeprefix(f'{rule.name}: ')}")
    return (*ALL, *rules)


def summary(name: str) -> str:
    """Command-line help of the option `name`: the first sentence of its documentation, without its full stop, in lower
    case."""
    doc: str = next(f.metadata["doc"] for f in fields(Options) if f.name == name)
    first = doc.partition(". ")[0].rstrip(".")
    return first[0].lower() + first[1:]


__all__ = ["CommonOptions", "Options", "PathOptions", "SaturateOptions", "option", "summary", "with_builtin"]
