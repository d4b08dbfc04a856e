"""Consecutive calls of C kernels at fixed addresses as one C function, so that a step of a model is one call from
Python."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

_CALL = re.compile(r"(\w+)\(([A-Za-z_]\w*(?:, (?:[A-Za-z_]\w*|-?\d+))*)\)")  # a call with names and whole numbers only
COMMENT = "# "


@dataclass
class JoinedCalls:
    """Joins consecutive calls of C functions among the lines of an emitted program into one C function.

    `fixed`: line -> call of a C function whose arguments are the same in each run. `functions`: C texts by function
    name, to which functions of joined calls are added. `named(base)` gives an unused name; `made(text, base)` gives the
    name of an object that is made once from the source `text`. `lines`: the lines so far.
    """

    fixed: Mapping[str, str]
    functions: dict[str, str]
    named: Callable[[str], str]
    made: Callable[[str, str], str]
    lines: list[str] = field(default_factory=list)
    group: list[str] = field(default_factory=list)  # the last lines: calls and comments between them

    def joined(self, lines: Iterable[str]) -> list[str]:
        """`lines` with each sequence of several consecutive calls replaced by one call, of a new C function."""
        for line in lines:
            if not line.startswith(COMMENT) and self._call(line) is None:
                self._flush()
                self.lines.append(line)
            else:
                self.group.append(line)
        self._flush()
        return self.lines

    def _call(self, line: str) -> tuple[str, Sequence[str]] | None:
        """(function, arguments) of a line that calls a C function with fixed arguments; None for other lines."""
        found = _CALL.fullmatch(self.fixed.get(line, ""))
        return None if found is None or found[1] not in self.functions else (found[1], found[2].split(", "))

    def _flush(self) -> None:
        """End the current sequence of calls: write it as one call if it has at least two."""
        group, self.group = self.group, []
        trailing: list[str] = []
        while group and group[-1].startswith(COMMENT):  # belongs to what follows
            trailing.insert(0, group.pop())
        if sum(not line.startswith(COMMENT) for line in group) < 2:
            self.lines += [*group, *trailing]
            return
        places: dict[str, int] = {}
        body = []
        for line in group:
            call = self._call(line)
            if call is None:
                body.append(f"    /* {line.removeprefix(COMMENT).replace('*/', '* /')} */")
                continue
            at = (f"at[{places.setdefault(a, len(places))}]" if a.isidentifier() else a for a in call[1])
            body.append(f"    {call[0]}({', '.join(at)});")
        name = self.named("steps")
        self.functions[name] = "\n".join([f"void {name}(void *const *at)", "{", *body, "}"])
        own = self.made(f"partial({name}, table({', '.join(places)}))", f"{name}_")
        self.lines += [f"{own}()", *trailing]


__all__ = ["JoinedCalls"]
