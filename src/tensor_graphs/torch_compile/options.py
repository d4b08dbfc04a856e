"""Defines the options of the `torch.compile` backend: those of `tensor_graphs.optimize` that concern search, and those
of compilation."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from ..backends.registry import select
from ..errors import UsageError
from ..option_checks import is_bound
from ..options import Options
from ..wording import near


@dataclass(frozen=True)
class CompileOptions:
    """Options of one `torch.compile` call.

    `budget`, `tolerance`, `backend`, `costdb`, `verify`, `measure`, `deterministic`, `seed`, `memory_limit`,
    `error_budget`, `effort`: as for `tensor_graphs.optimize`; `budget` is in seconds for each program searched.
    `cache`: reuse plans of earlier searches on this machine, also of other processes.
    `wait`: search in this process during the first call. By default the search runs in a subprocess and calls run
    eagerly until it ends.
    `timeout`: seconds after which a subprocess is killed (default: four budgets and two minutes).
    `freeze`: treat parameters and buffers as constants in graphs without gradients. Programs are guarded by identity,
    memory address and version of each weight. A write through `weight.data` does not change the version; it needs
    `freeze=False`.
    `least`: smallest number of operators of a subgraph for which a program is searched.
    """

    budget: float = 60.0
    tolerance: str | float = "eager"
    backend: str | None = None
    costdb: str | None = None
    verify: bool = True
    measure: bool = True
    deterministic: bool = False
    seed: int = 0
    memory_limit: float | None = None
    error_budget: float | None = None
    effort: int = 1
    cache: bool = True
    wait: bool = False
    timeout: float | None = None
    freeze: bool = True
    least: int = 2

    @classmethod
    def of(cls, options: Mapping[str, Any] | None) -> CompileOptions:
        """Options from a mapping.

        Raises UsageError for unknown names and invalid values, DeviceUnavailableError for a backend whose device is
        missing.
        """
        given = dict(options or {})
        known = {f.name: f for f in fields(cls)}
        if unknown := sorted(set(given) - set(known)):
            raise UsageError(
                f'no options of the backend "tensor_graphs" are called {unknown}{near(unknown[0], known)}',
                hint=f"they are {sorted(known)}",
            )
        if isinstance(given.get("costdb"), Path):
            given["costdb"] = str(given["costdb"])
        for name, value in given.items():
            if not _fits(value, str(known[name].type)):
                raise UsageError(f"the option {name} is {value!r}", hint=f"it takes a value of type {known[name].type}")
        made = cls(**given)
        for name in ("timeout", "least"):
            is_bound(name, getattr(made, name))
        Options(**made.search)
        if made.backend is not None:
            select(made.backend)
        return made

    @property
    def search(self) -> dict[str, Any]:
        """The options as keyword arguments of `tensor_graphs.optimize`, as plain data."""
        found = asdict(self)
        found["again"] = not self.cache
        for name in ("cache", "wait", "timeout", "freeze", "least"):
            del found[name]
        return found

    @property
    def seconds(self) -> float:
        """Seconds after which a search process is killed."""
        return 4 * self.budget + 120 if self.timeout is None else self.timeout


def _fits(value: Any, kind: str) -> bool:
    """Return whether an option's value has the type that its annotation names."""
    kinds = kind.split(" | ")
    if value is None:
        return "None" in kinds
    if isinstance(value, bool):
        return "bool" in kinds
    return (isinstance(value, int | float) and ("float" in kinds or ("int" in kinds and isinstance(value, int)))) or (
        isinstance(value, str) and "str" in kinds
    )


__all__ = ["CompileOptions"]
