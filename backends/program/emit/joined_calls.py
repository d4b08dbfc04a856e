"""Joins consecutive calls of C kernels to one C function, so that a step of a model is one call from Python.

The kernels' addresses are in one table of the program. Addresses that never change are written into it once; those of a
call's inputs, results and views when the call defines them:

    at[3:5] = starts_of(x, y)
    steps()                    # calls kernel_a(at[3], at[0]) and kernel_b(at[0], at[4], 32)

Lines that only make arrays, views and addresses move in front of the calls between which they stand.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

_CALL = re.compile(r"(\w+)\(([A-Za-z_]\w*(?:, (?:[A-Za-z_]\w*|-?\d+))*)\)")  # a call with names and whole numbers only
_ARGUMENT = re.compile(r"(\w+) = argument\((\w+)\)")  # the address of an array or tensor of this call
_NAME = re.compile(r"[A-Za-z_]\w*")
COMMENT = "# "

Call = tuple[str, Sequence[str]]  # function, arguments


@dataclass
class JoinedCalls:
    """Joins consecutive calls of C functions among the lines of an emitted program into one C function.

    `fixed`: line -> call of a C function whose arguments are the same in each run. `movable`: lines that read no
    values: they make arrays, views and addresses. `functions`: C texts by function name, to which functions of joined
    calls are added. `libraries`: those whose texts are the same for all calls. `named(base)` gives an unused name.

    After `joined`, `once` are lines that make the table and the functions of joined calls.
    """

    fixed: Mapping[str, str]
    movable: Collection[str]
    functions: dict[str, str]
    libraries: Collection[str]
    named: Callable[[str], str]
    lines: list[str] = field(default_factory=list)
    group: list[str] = field(default_factory=list)  # the last lines: calls and comments between them
    sources: list[str] = field(default_factory=list)  # arrays whose addresses the calls need, in the table's order
    calls: dict[str, Call] = field(default_factory=dict)  # line -> call that can be joined
    places: dict[str, int] = field(default_factory=dict)  # address -> its index in the table
    made: list[tuple[str, str]] = field(default_factory=list)  # (variable, C function) of joined calls
    given: list[str] = field(default_factory=list)  # arrays of all joined calls whose addresses each run writes
    table: str = ""

    def joined(self, lines: Iterable[str]) -> list[str]:
        """`lines` with each sequence of several consecutive calls replaced by one call, of a new C function, and each
        call on arrays of this run by a call without arguments."""
        lines = list(lines)
        self.moving = self._addresses(lines)
        self.table = self.named("at")
        for line in lines:
            if line in self.calls or line.startswith(COMMENT):
                self.group.append(line)
            elif line in self.movable:  # before the calls of the group
                self.lines += self._without_address(line)
            else:
                self._flush()
                self.lines += self._kept(line)
        self._flush()
        return self.lines

    @property
    def once(self) -> list[str]:
        """Lines that make the table and the functions of joined calls."""
        given = [name if name not in self.moving else "None" for name in self.places]
        start = [f"{self.table} = table({', '.join(given)})"] if self.made else []
        return [*start, *(f"{name} = partial({function}, {self.table})" for name, function in self.made)]

    # ------------------------------------------------------------ what can be joined
    def _addresses(self, lines: Sequence[str]) -> set[str]:
        """Variables of addresses that each call defines, and that only calls of C kernels use; sets `calls`."""
        other = [x for x in lines if not (x in self.movable or x.startswith((COMMENT, "return ")))]
        called = [call[0] for line in other if (call := self._call(line))]
        # the own arguments of a single call are as fast beside other lines; a library is compiled once for all calls
        alone = len(called) < 2 and (len(other) > 1 or any(f in self.libraries for f in called))
        movable = () if alone else self.movable
        sources = {line: found for line in lines if line in movable and (found := _ARGUMENT.fullmatch(line))}
        moving = {found[1] for found in sources.values()}
        defined = {found[1] for line in lines if (found := re.match(r"(\w+) = ", line))}
        while True:
            self.calls = {
                line: call for line in lines
                if (call := self._call(line)) and all(a in moving or a not in defined for a in call[1])
            }  # fmt: skip
            rest = [
                x for x in lines if x not in self.calls and x not in sources and not x.startswith((COMMENT, "del "))
            ]
            used = moving & {name for line in rest for name in _NAME.findall(line)}
            if not used:
                return moving
            moving -= used

    def _call(self, line: str) -> Call | None:
        """(function, arguments) of a line that calls a C function; None for other lines."""
        found = _CALL.fullmatch(self.fixed.get(line, line))
        return None if found is None or found[1] not in self.functions else (found[1], found[2].split(", "))

    # ------------------------------------------------------------ lines
    def _place(self, address: str) -> int:
        return self.places.setdefault(address, len(self.places))

    def _without_address(self, line: str) -> list[str]:
        """A line, unless it defines an address that is in the table only."""
        found = _ARGUMENT.fullmatch(line)
        if found is None or found[1] not in self.moving:
            return [line]
        self._place(found[1])
        self.sources.append(found[2])
        return []

    def _kept(self, line: str) -> list[str]:
        """A line without the deletion of addresses that are in the table only."""
        if not line.startswith("del "):
            return [line]
        names = [name for name in line.removeprefix("del ").split(", ") if name not in self.moving]
        return [f"del {', '.join(names)}"] if names else []

    def _flush(self) -> None:
        """End the current sequence of calls: write it as one call, unless it is one call at fixed addresses."""
        group, self.group, sources, self.sources = self.group, [], self.sources, []
        self.given += sources
        if sources:  # no other address has got a place meanwhile
            end = len(self.places)
            one = f"[{end - 1}] = start_of({sources[0]})"
            several = f"[{end - len(sources)}:{end}] = starts_of({', '.join(sources)})"
            self.lines.append(f"{self.table}{one if len(sources) == 1 else several}")
        trailing: list[str] = []
        while group and group[-1].startswith(COMMENT):  # belongs to what follows
            trailing.insert(0, group.pop())
        calls = [self.calls[line] for line in group if line in self.calls]
        if len(calls) < 2 and not any(a in self.moving for _, given in calls for a in given):
            self.lines += [*group, *trailing]
            return
        body = []
        for line in group:
            if line.startswith(COMMENT):
                body.append(f"    /* {line.removeprefix(COMMENT).replace('*/', '* /')} */")
                continue
            function, given = self.calls[line]
            at = (f"at[{self._place(a)}]" if a.isidentifier() else a for a in given)
            body.append(f"    {function}({', '.join(at)});")
        name = self.named("steps")
        self.functions[name] = "\n".join([f"void {name}(void *const *at)", "{", *body, "}"])
        self.made.append((self.named(f"{name}_"), name))
        self.lines += [f"{self.made[-1][0]}()", *trailing]


__all__ = ["JoinedCalls"]
