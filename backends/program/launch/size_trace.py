"""Records the operations of a GPU program with free sizes: of its emitted function `at`, which prepares calls at given
sizes, and of the function that launches its kernels.

Both are run once with symbolic sizes and tensors, which record integer expressions, launches of generated kernels, and
calls of Torch. Conditions on sizes are decided by the sizes of one call and recorded, too.

Imports: the standard library.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import CellType, FunctionType, ModuleType, SimpleNamespace
from typing import Any

VIEWS = frozenset(["view", "permute", "transpose", "expand", "unsqueeze", "squeeze"])  # methods that keep the address
PROPERTIES = frozenset(["T", "mT"])


class Untraceable(Exception):
    """Raised where a program's code cannot be recorded as a function of sizes; the message names the operation."""


@dataclass(eq=False)
class Line:
    """A statement of the recorded function: `name = text`, or `text` without a name. `needs`: the statements whose
    names it reads. `effect`: it is kept even if nothing reads its name."""

    text: str
    needs: tuple[Line, ...] = ()
    name: str = ""
    effect: bool = False

    def __str__(self) -> str:
        return self.name


class TracedSize:
    """An integer that depends on sizes, during recording: its value at the sizes of the recorded call, and the line
    that computes it. Arithmetic on it is recorded."""

    __slots__ = ("line", "tracer", "value")
    __hash__ = None  # type: ignore[assignment]

    def __init__(self, tracer: Tracer, value: int, line: Line) -> None:
        self.tracer, self.value, self.line = tracer, value, line

    def __repr__(self) -> str:
        raise Untraceable("text of a size")

    __str__ = __repr__

    def __index__(self) -> int:
        raise Untraceable("a size as a plain integer")

    __int__ = __bool__ = __index__

    def __neg__(self) -> Any:
        return self.tracer.computed("0 - {}", -self.value, self)


def _operator(symbol: str, swapped: bool, compute: Callable[[int, int], int]) -> Callable[[TracedSize, Any], Any]:
    def method(self: TracedSize, other: Any) -> Any:
        if not isinstance(other, int | TracedSize):
            return NotImplemented
        a, b = (other, self) if swapped else (self, other)
        return self.tracer.computed(f"{{}} {symbol} {{}}", compute(known_value(a), known_value(b)), a, b)

    return method


def _comparison(symbol: str, compute: Callable[[int, int], bool]) -> Callable[[TracedSize, Any], Any]:
    def method(self: TracedSize, other: Any) -> Any:
        if not isinstance(other, int | TracedSize):
            return NotImplemented
        return self.tracer.decided(f"{{}} {symbol} {{}}", compute(self.value, known_value(other)), self, other)

    return method


def known_value(x: Any) -> int:
    """The value of `x`, a traced size or an integer, at the recorded sizes."""
    return x.value if isinstance(x, TracedSize) else int(x)


for _name, _symbol, _compute in (
    ("add", "+", lambda a, b: a + b), ("sub", "-", lambda a, b: a - b), ("mul", "*", lambda a, b: a * b),
    ("floordiv", "//", lambda a, b: a // b), ("mod", "%", lambda a, b: a % b),
):  # fmt: skip
    setattr(TracedSize, f"__{_name}__", _operator(_symbol, swapped=False, compute=_compute))
    setattr(TracedSize, f"__r{_name}__", _operator(_symbol, swapped=True, compute=_compute))
for _name, _symbol, _test in (
    ("lt", "<", lambda a, b: a < b), ("le", "<=", lambda a, b: a <= b), ("gt", ">", lambda a, b: a > b),
    ("ge", ">=", lambda a, b: a >= b), ("eq", "==", lambda a, b: a == b), ("ne", "!=", lambda a, b: a != b),
):  # fmt: skip
    setattr(TracedSize, f"__{_name}__", _comparison(_symbol, _test))


class TracedTensor:
    """Stand-in for a tensor during recording: the line that makes it, and its address as (line of a tensor, bytes after
    its start).

    Views of it are lines that are kept only if something reads them; its other methods are recorded as effects.
    """

    def __init__(self, tracer: Tracer, line: Line, base: Line | None = None, offset: Any = 0) -> None:
        self._tracer, self._line, self._base, self._offset = tracer, line, base or line, offset

    def __del__(self) -> None:
        # the recorded call frees a tensor that a library allocated: so does the function
        if self._line.effect and self._tracer.open:
            self._tracer.lines.append(Line(f"del {self._line.name}", (self._line,), effect=True))

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        if name in PROPERTIES:
            return self._view(f"{{}}.{name}")
        return lambda *given, **named: self._method(name, given, named)

    def _view(self, text: str, *given: Any, same: bool = True) -> TracedTensor:
        line = self._tracer.line(text, self, *given)
        return TracedTensor(self._tracer, line, *((self._base, self._offset) if same else ()))

    def _method(self, name: str, given: Sequence[Any], named: Mapping[str, Any]) -> TracedTensor:
        if name in VIEWS and not named:
            return self._view(f"{{}}.{name}({', '.join('{}' for _ in given)})", *given)
        if name == "as_strided" and not named:
            return self._view("{}.as_strided({}, {}, {})", *given, *((0,) if len(given) == 2 else ()), same=False)
        return self._tracer.effect(f"{{}}.{name}", given, named, self)

    def __getitem__(self, key: Any) -> TracedTensor:
        keys = key if isinstance(key, tuple) else (key,)
        if not all(isinstance(k, slice) and k.step is None for k in keys):
            raise Untraceable("an index")
        same = all(k.start is None or (type(k.start) is int and k.start == 0) for k in keys)
        return self._view("{}[{}]", keys, same=same)


class Spaces:
    """Stand-in for the workspace (memory of intermediate values) during recording: traced tensors by dtype."""

    def __init__(self, tracer: Tracer) -> None:
        self.tracer = tracer

    def __getitem__(self, dtype: Any) -> Any:
        return SimpleNamespace(as_strided=lambda *given: self.tensor(dtype, *given))

    def tensor(self, dtype: Any, shape: Any, strides: Any, offset: Any) -> TracedTensor:
        """The traced tensor with this dtype, shape, strides and offset (both in elements) in the workspace."""
        tracer = self.tracer
        line = tracer.line("spaces[{}].as_strided({}, {}, {})", dtype, shape, strides, offset)
        return TracedTensor(tracer, line, tracer.memory, offset * dtype.itemsize)


class Opaque:
    """Stand-in for a function, or a module of functions, whose calls are recorded as effects. `text`: its name in the
    recorded function."""

    def __init__(self, tracer: Tracer, text: str, value: Any) -> None:
        self._tracer, self._text, self._value = tracer, text, value

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._value, name)
        return (
            Opaque(self._tracer, f"{self._text}.{name}", value)
            if callable(value) or isinstance(value, ModuleType)
            else value
        )

    def __call__(self, *given: Any, **named: Any) -> TracedTensor:
        if isinstance(self._value, type):
            raise Untraceable(f"a new {self._text}")
        return self._tracer.effect(self._text, given, named)


@dataclass(eq=False)
class Launched(Line):
    """One recorded operation of a call: a launch of a generated kernel with its grid, arguments and options."""

    kernel: Any = None
    grid: Any = None
    given: Sequence[Any] = ()
    options: Mapping[str, Any] = field(default_factory=dict)


class Launcher:
    """Stand-in for a generated kernel during recording: calling it, in the form that emitted code uses, records a
    launch."""

    def __init__(self, tracer: Tracer, kernel: Any) -> None:
        self.tracer, self.kernel = tracer, kernel

    def __getitem__(self, grid: Any) -> Any:
        return lambda *given, **options: self.tracer.launch(self.kernel, grid, given, options)

    def __call__(self, *given: Any, **options: Any) -> None:
        self.tracer.launch(self.kernel, options.get("grid"), given, options)


class Tracer:
    """Records one run of the emitted function `at`, which makes the launching function for given sizes, and one run of
    that launching function: their statements, as `Line`s in order, and the conditions on sizes that they tested."""

    def __init__(self, space: Mapping[str, Any]) -> None:
        self.space = space
        self.lines: list[Line] = []
        self.memory = Line("spaces[{}]", name="memory")
        self.known: dict[Any, TracedSize] = {}
        self.conditions: dict[str, Line] = {}
        self.constants: dict[str, Any] = {}
        self.needed: Any = None  # bytes of the workspace, if it is used
        self.made: Any = None  # arguments of `Calls`
        self.open = True  # whether lines are added

    # ------------------------------------------------------------ lines
    def named(self, line: Line, prefix: str) -> Line:
        """Append `line` to the recorded operations under a new name, which begins with `prefix`; returns the line."""
        line.name = f"{prefix}{len(self.lines)}"
        self.lines.append(line)
        return line

    def spelled(self, x: Any, needs: list[Line]) -> str:
        """Python expression of the value `x` in the recorded function; the lines that it reads are added to `needs`."""
        if isinstance(x, TracedSize):
            needs.append(x.line)
            return x.line.name
        if isinstance(x, TracedTensor):
            needs.append(x._line)
            return x._line.name
        if isinstance(x, tuple):
            if x and all(isinstance(k, slice) for k in x):
                return ", ".join(self.spelled(k, needs) for k in x)
            return f"({''.join(self.spelled(k, needs) + ', ' for k in x)})"
        if isinstance(x, list):
            return f"[{', '.join(self.spelled(k, needs) for k in x)}]"
        if isinstance(x, slice):
            return ":".join("" if k is None else self.spelled(k, needs) for k in (x.start, x.stop))
        if x is None or type(x) in (int, bool, str):
            return repr(x)
        if isinstance(x, Launcher | Opaque):
            raise Untraceable("a function as an argument")
        name = f"constant{len(self.constants)}"
        name = next((n for n, value in self.constants.items() if value is x), name)
        self.constants[name] = x
        return name

    def line(self, text: str, *given: Any, effect: bool = False, prefix: str = "t") -> Line:
        """Append a line whose text is `text`, with each `{}` replaced by the Python expression of the next value of
        `given`; returns the line. `effect`: it is kept even if nothing reads it. `prefix`: what its name begins with.
        """
        needs: list[Line] = []
        return self.named(
            Line(text.format(*[self.spelled(x, needs) for x in given]), tuple(needs), effect=effect), prefix
        )

    def computed(self, text: str, value: int, *given: Any) -> TracedSize:
        """Record an integer that is computed from the operands `given`, and return it as a traced size. `text`: its
        Python expression, with `{}` in place of each operand.

        `value`: its value at the recorded sizes. Equal expressions are recorded once, as one line of the generated
        code.
        """
        needs: list[Line] = []
        whole = text.format(*[self.spelled(x, needs) for x in given])
        if whole not in self.known:
            self.known[whole] = TracedSize(self, value, self.named(Line(whole, tuple(needs)), "i"))
        return self.known[whole]

    def decided(self, text: str, holds: bool, *given: Any) -> bool:
        """Record a condition on sizes: `text` with the values `given`, which `holds` or not at the recorded sizes. It,
        or its negation, becomes a precondition of the recorded function. Returns `holds`."""
        needs: list[Line] = []
        whole = text.format(*[self.spelled(x, needs) for x in given])
        text = whole if holds else f"not {whole}"
        self.conditions[text] = Line(text, tuple(needs))
        return holds

    def effect(self, text: str, given: Sequence[Any], named: Mapping[str, Any], *first: Any) -> TracedTensor:
        """Append a call, of Torch or of a helper function, that is kept even if nothing reads its result: `text` with
        the values `first` is the function, `given` and `named` are its arguments. Returns its result as a traced
        tensor."""
        pairs = ["{}" for _ in given] + [f"{name}={{}}" for name in named]
        return TracedTensor(
            self, self.line(f"{text}({', '.join(pairs)})", *first, *given, *named.values(), effect=True)
        )

    def launch(self, kernel: Any, grid: Any, given: Sequence[Any], options: Mapping[str, Any]) -> None:
        """Append the launch of a generated kernel, with its grid, on the arguments `given` and keyword arguments
        `options`."""
        self.lines.append(Launched("", effect=True, kernel=kernel, grid=grid, given=given, options=options))

    # ------------------------------------------------------------ what emitted code uses
    def take(self, size: Any) -> Spaces:
        """Stand-in for `Workspace.take` during recording: notes how many bytes are needed and returns the workspace by
        dtype."""
        self.needed = size
        return Spaces(self)

    def extreme(self, which: Any) -> Any:
        """Stand-in for the built-in `max` or `min` (`which`) during recording: a function that records the call if an
        operand is a traced size."""

        def found(*given: Any) -> Any:
            if len(given) == 1 or not any(isinstance(x, TracedSize) for x in given):
                return which(*given)
            text = f"{which.__name__}({', '.join('{}' for _ in given)})"
            return self.computed(text, which(*map(known_value, given)), *given)

        return found

    def check_sizes(self, shapes: Any, wanted: Any, conditions: Any) -> None:
        """Stand-in for the helper `check_sizes` during recording. The conditions were recorded when they were compared;
        here `shapes` are compared with the declared ones (`wanted`). Raises Untraceable if one differs."""
        for seen, right in zip(shapes, wanted):
            for a, b in zip(seen, right):
                if a is not b and not a == b:
                    raise Untraceable("a shape")
        if not all(holds for _, holds in conditions):
            raise Untraceable("a condition")

    @staticmethod
    def described(x: Any, shape: Any, block: Any, swizzle: int = 0, strides: Any = ()) -> Any:
        """Stand-in for the helper `described` during recording: a tensor descriptor of `x` with its shape and
        strides."""
        return SimpleNamespace(base=x, shape=list(shape), strides=list(strides) or [shape[1], 1])

    def calls(self, *given: Any, **options: Any) -> Any:
        """Stand-in for the class `Calls` during recording: keeps and returns the arguments with which `at` makes its
        object for calls."""
        self.made = SimpleNamespace(launch=given[0], inputs=given[2], results=given[3], **options)
        return self.made

    def run(self, at: Any, shapes: Sequence[Sequence[int]]) -> Any:
        """Record the emitted function `at` on traced sizes of the value `shapes`, and the launching function that it
        makes on traced tensors; returns the lines of the results."""
        own = {"check_sizes": self.check_sizes, "described": self.described, "Calls": self.calls, "max": self.extreme(max), "min": self.extreme(min),
               "Launches": lambda *given: SimpleNamespace(of=lambda kernel: Launcher(self, kernel))}  # fmt: skip
        space = dict(self.space)
        for name, value in self.space.items():
            if isinstance(value, FunctionType) or name == "torch":
                space[name] = Opaque(self, name, value)
        cells = []
        for name, cell in zip(at.__code__.co_freevars, at.__closure__ or ()):
            found = cell.cell_contents
            if name in ("states", "weights"):
                raise Untraceable(name)
            if type(found).__name__ == "Workspace":
                found = SimpleNamespace(take=self.take)
            elif isinstance(found, FunctionType):
                raise Untraceable(name)
            cells.append(CellType(found))
        function = FunctionType(at.__code__, {**space, **own}, "at", at.__defaults__, tuple(cells))
        sizes = [
            tuple(TracedSize(self, n, Line("", name=f"s{i}_{k}")) for k, n in enumerate(shape))
            for i, shape in enumerate(shapes)
        ]
        function(*sizes)
        if self.made is None or self.made.reuse or getattr(self.made, "states", None):
            raise Untraceable("results or states in the program's memory")
        given = [TracedTensor(self, Line("", name=f"x{i}")) for i in range(len(self.made.inputs))]
        given += [TracedTensor(self, Line("", name=f"r{i}")) for i in range(len(self.made.results))]
        results = self.made.launch(*given)
        self.open = False
        return [r._line for r in results]


__all__ = ["Launched", "Line", "TracedSize", "TracedTensor", "Tracer", "Untraceable", "known_value"]
