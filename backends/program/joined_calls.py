"""Consecutive calls of C kernels at fixed addresses as one C function, so that a step of a model is one call from Python."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

_CALL = re.compile(r"(\w+)\(([A-Za-z_]\w*(?:, [A-Za-z_]\w*)*)\)")  # a call with names only
COMMENT = "# "


@dataclass
class JoinedCalls:
    """Joins calls in the lines of a program.

    `fixed`: line -> call of a C function whose arguments are the same in each run. `named(base)`: a free name. `functions`: C
    functions by name; those of joined calls are added. `made(text, base)`: the name of an object made once.
    """

    fixed: Mapping[str, str]
    functions: dict[str, str]
    named: Callable[[str], str]
    made: Callable[[str, str], str]
    lines: list[str] = field(default_factory=list)
    group: list[str] = field(default_factory=list)  # the last lines: calls and comments between them

    def joined(self, lines: Iterable[str]) -> list[str]:
        """The lines with one call in place of each run of several calls."""
        for line in lines:
            if not line.startswith(COMMENT) and self._call(line) is None:
                self._flush()
                self.lines.append(line)
            else:
                self.group.append(line)
        self._flush()
        return self.lines

    def _call(self, line: str) -> tuple[str, Sequence[str]] | None:
        """Function and arguments of a line that calls a C function."""
        found = _CALL.fullmatch(self.fixed.get(line, ""))
        return None if found is None or found[1] not in self.functions else (found[1], found[2].split(", "))

    def _flush(self) -> None:
        """End the current run of calls."""
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
            at = [places.setdefault(a, len(places)) for a in call[1]]
            body.append(f"    {call[0]}({', '.join(f'at[{n}]' for n in at)});")
        name = self.named("steps")
        self.functions[name] = "\n".join([f"void {name}(void *const *at)", "{", *body, "}"])
        own = self.made(f"partial({name}, table({', '.join(places)}))", f"{name}_")
        self.lines += [f"{own}()", *trailing]


__all__ = ["JoinedCalls"]
