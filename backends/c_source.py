"""C functions from the kernel IR: loops over the parallel axes, statements hoisted to the outermost loop that binds their
axes, reductions as loops of their own, the innermost loops written so that a compiler vectorises them.

    void softmax(const float *restrict x0, float *restrict out)
    {
        #pragma omp parallel for schedule(static)
        for (long i0 = 0; i0 < 128; i0++) {
            float row0[768];
            float v0 = -INFINITY; ...

Rows: a reduction runs along memory, its loop inside those of the parallel axes it depends on. Columns: where memory runs along
a parallel axis instead, that axis is walked in blocks, each with a line of accumulators. Expensive values of a row that several
of its loops need are kept in a buffer of the row (`row0`). Sums are associated anew in vector lanes (`omp simd reduction`), and
nothing else is: products and sums round one by one, NaN, infinities and signed zeros are as in NumPy.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from math import prod

from .c_expr import CALLS, Spelling, position
from .index import Axis, Index, index
from .kir import NEUTRAL, Builder, Expr, Kernel, Store, Unfusable, below_maximum, if_fusable, walk
from .tiling import shape_of

SINGLE = Spelling({
    **{op: f"{op}_f({{0}})" for op in ("exp", "exp2", "log", "log1p", "expm1", "tanh", "erf")},
    **{op: f"__builtin_{f}f({{0}})" for op, f in {"abs": "fabs", "sqrt": "sqrt", "floor": "floor", "ceil": "ceil", "round": "rint", "sin": "sin", "cos": "cos", "atan": "atan"}.items()},
    "pow": "__builtin_powf({0}, {1})", "rsqrt": "1.0f / __builtin_sqrtf({0})", "recip": "1.0f / {0}",
    "is_inf": "__builtin_fabsf({0}) == INFINITY",
})  # fmt: skip
DOUBLE = Spelling({
    **{op: f"{ {'abs': 'fabs', 'round': 'rint'}.get(op, op) }({{0}})" for op in CALLS if op != "pow"},
    "pow": "pow({0}, {1})", "rsqrt": "1.0 / sqrt({0})", "recip": "1.0 / {0}", "is_inf": "fabs({0}) == INFINITY",
}, suffix="")  # fmt: skip

#: dtype -> type in memory.
TYPES = {
    "float32": "float", "float64": "double", "float16": "_Float16", "bfloat16": "uint16_t", "bool": "uint8_t",
    **{f"{u}int{n}": f"{u}int{n}_t" for u in ("", "u") for n in (8, 16, 32, 64)},
}  # fmt: skip
COSTLY = frozenset(("exp", "exp2", "tanh", "erf", "log", "log1p", "expm1", "pow", "sin", "cos", "atan"))
WEIGHTS = {
    **dict.fromkeys(COSTLY, 8.0),
    "div": 3.0,
    "sqrt": 4.0,
    "rsqrt": 5.0,
    "recip": 3.0,
    "const": 0.0,
    "index": 0.0,
}
BLOCK, LEAST = 2048, 256  # accumulators in a line, at most; at least, where threads share the lines
TILE = 16  # edge of the tiles of a transposing copy
ROW = 16384  # longest row that is kept
PARALLEL = 500_000.0  # work (in additions) from which on a kernel is worth several threads: some 10 µs


@dataclass
class Scope:
    """A block of C: the axes it binds, its lines and blocks, and names of the values that it holds."""

    parent: Scope | None
    axis: Axis | None
    head: list[str] = field(default_factory=list)
    items: list[str | Scope] = field(default_factory=list)
    known: dict[Expr, str] = field(default_factory=dict)

    @cached_property
    def bound(self) -> frozenset[Axis]:
        """Axes that have values here."""
        outer: frozenset[Axis] = self.parent.bound if self.parent is not None else frozenset()
        return outer | ({self.axis} if self.axis is not None else set())

    def opened(self, axis: Axis | None, *head: str) -> Scope:
        """A block within this one, not yet in its place: what is hoisted out of it comes first."""
        return Scope(self, axis, list(head))

    def close(self) -> None:
        """Put the block in its place, after what is there."""
        assert self.parent is not None
        self.parent.items.append(self)

    @property
    def innermost(self) -> bool:
        """Whether there is no loop inside."""
        return not any(isinstance(item, Scope) for item in self.items)

    def text(self, depth: int) -> Iterator[str]:
        """Lines of C."""
        pad = "    " * depth
        *pragmas, loop = self.head
        yield from (pad + line for line in pragmas)
        yield f"{pad}{loop} {{"
        for item in self.items:
            yield from item.text(depth + 1) if isinstance(item, Scope) else [f"{pad}    {item}"]
        yield f"{pad}}}"


def emit(kernel: Kernel, name: str, doc: str = "") -> str:
    """The C function of a kernel: `void name(operands..., out)`. Unfusable where C has no spelling for something."""
    return _Writer(kernel, name).function(doc)


def work(kernel: Kernel) -> float:
    """Operations in all, in additions."""
    extra = {e: prod(a.size for a in e.axes) for e in kernel.exprs}
    bodies = {e.args[0] for e in kernel.reductions}
    return sum(n * WEIGHTS.get(e.op, 1.0) + (n if e in bodies else 0.0) for e, n in extra.items())


@dataclass
class _Writer:
    kernel: Kernel
    name: str
    count: int = 0

    def __post_init__(self) -> None:
        kernel = self.kernel
        dtypes_ = {b.dtype for b in kernel.buffers.values()}
        if not dtypes_ <= TYPES.keys():
            raise Unfusable(f"no C type for {', '.join(sorted(dtypes_ - TYPES.keys()))}")
        self.wide = "float64" in dtypes_
        self.real, self.spelling = ("double", DOUBLE) if self.wide else ("float", SINGLE)
        self.axes = self._ordered()
        self.inner = self.axes[-1] if self.axes else None
        self.columns = self.inner is not None and any(self._across(e) for e in kernel.reductions)
        self.uses: dict[Expr, int] = {}
        for e in kernel.exprs:
            for a in e.args:
                self.uses[a] = self.uses.get(a, 0) + 1
        self.same: dict[Expr, Expr] = {}
        self.lines: dict[Expr, str] = {}  # reductions that are lines of accumulators -> array
        self.rows: dict[Expr, tuple[str, Scope]] = {}  # kept values of a row -> array, and where it is known
        self.kept = {} if self.columns else self._kept()
        self._check()

    # ------------------------------------------------------------ which loops there are
    def _ordered(self) -> list[Axis]:
        """The parallel axes, outermost first: that along which results are neighbours is the last."""
        at = max((s.at for s in self.kernel.stores), key=lambda at: len(at.axes))
        return sorted(self.kernel.axes, key=lambda a: -abs(at.coefficient(a)) if a in dict(at.terms) else -(1 << 62))

    def _across(self, e: Expr) -> bool:
        """Whether a reduction's operands lie along the innermost parallel axis rather than along its own."""
        if self.inner not in e.axes:
            return False
        loads = [x.value[1] for x in walk(e.args) if x.op == "load" and e.axis in x.value[1].axes]
        strided = [at for at in loads if abs(at.coefficient(e.axis)) != 1]
        return any(abs(at.coefficient(self.inner)) == 1 for at in strided)

    @cached_property
    def _joined(self) -> Mapping[Axis, Axis]:
        """Reduction axes that run over the elements of the innermost axis."""
        shape = if_fusable(shape_of, self.kernel, products=False)
        return {r: a for r, a in shape.joined.items() if a == self.inner} if shape is not None else {}

    def _alike(self, e: Expr) -> Expr:
        """The expression over the innermost axis, where its own free axis runs over the same elements."""
        return _moved(self.kernel.builder, e, {r: index(a) for r, a in self._joined.items()}, self.same)

    def _kept(self) -> dict[Expr, Axis]:
        """Costly values along a row that several loops over it compute, each with the axis of the row. Keys are `_alike`."""
        loops: list[tuple[Axis, Expr]] = [(e.axis, e.args[0]) for e in self.kernel.reductions]
        if self.inner is not None:
            loops += [(self.inner, e) for s in self.kernel.stores for e in (s.value, *s.guards)]
        costly = self._costly()
        seen: dict[Expr, int] = {}
        over: dict[Expr, Axis] = {}
        for axis, body in loops:
            inside = {self._alike(e) for e in _inside(body, axis) if axis.size <= ROW and e in costly}
            for e in inside:
                seen[e] = seen.get(e, 0) + 1
                over[e] = self._joined.get(axis, axis)
        shared = {e for e, n in seen.items() if n > 1}
        below = {a for e in shared for a in e.args}
        return {e: over[e] for e in shared - below}

    def _costly(self) -> set[Expr]:
        """Floats that take a costly operation."""
        found: set[Expr] = set()
        for e in self.kernel.exprs:
            if e.axes and (e.op in COSTLY or not found.isdisjoint(e.args)):
                found.add(e)
        return {e for e in found if e.kind == "float"}

    def _check(self) -> None:
        """Unfusable where C's whole numbers would not wrap as NumPy's do."""
        narrow: set[Expr] = set()
        for e in self.kernel.exprs:
            if not narrow.isdisjoint(e.args):
                if e.kind == "int" and e.op in ("add", "sub", "mul", "neg", "abs", "reduce") and not _extreme(e):
                    raise Unfusable("arithmetic on narrow integers")
                narrow.add(e)
            if e.op == "load" and e.kind == "int" and e.value[3] != "int64":
                narrow.add(e)
            if e.op == "reduce" and e.kind == "bool":
                raise Unfusable("a reduction of truth values")

    # ------------------------------------------------------------ the function
    def function(self, doc: str) -> str:
        """Its text."""
        top = Scope(None, None, [self._signature()])
        self.parallel = work(self.kernel) >= PARALLEL
        self._loops(top)
        comment = [f"/* {doc.replace('*/', '* /')} */"] if doc else []
        return "\n".join([*comment, *_brace_on_its_own(top.text(0))])

    def _signature(self) -> str:
        results = {s.buffer for s in self.kernel.stores}
        operands = [
            f"{'' if n in results else 'const '}{TYPES[b.dtype]} *restrict {n}" for n, b in self.kernel.buffers.items()
        ]
        return f"void {self.name}({', '.join(operands)})"

    def _loops(self, top: Scope) -> None:
        scope = top
        outer = self.axes if not self.columns else self.axes[:-1]
        turned = self._turned() if not self.kernel.reductions else None
        if turned is not None:
            scope = self._tiled(top, turned)
        else:
            for axis in outer:
                scope = self._loop(scope, axis)
        if self.columns:
            scope = self._blocks(scope)
        self._store(scope)
        while scope.parent is not None:
            scope.close()
            scope = scope.parent

    def _loop(self, scope: Scope, axis: Axis) -> Scope:
        made = scope.opened(axis, f"for (long {axis} = 0; {axis} < {axis.size}; {axis}++)")
        self._shared(made, axis.size)
        return made

    def _shared(self, scope: Scope, count: int, few: int = 8) -> None:
        """Let threads share a loop: the outermost one with enough to share."""
        if self.parallel and count >= few:
            scope.head.insert(0, "#pragma omp parallel for schedule(static)")
            self.parallel = False

    def _blocks(self, scope: Scope) -> Scope:
        """The innermost axis in blocks."""
        axis = self.inner
        assert axis is not None
        size = min(BLOCK, max(LEAST, -(-axis.size // 8))) if self.parallel else BLOCK
        made = scope.opened(None, f"for (long first = 0; first < {axis.size}; first += {size})")
        self.block = min(size, axis.size)
        made.items.append(f"const long past = first + {size} < {axis.size} ? first + {size} : {axis.size};")
        self._shared(made, -(-axis.size // size), 2)
        return made

    def _line(self, scope: Scope) -> Scope:
        """A loop over the elements of a block."""
        axis = self.inner
        return scope.opened(axis, f"for (long {axis} = first; {axis} < past; {axis}++)")

    def _turned(self) -> Axis | None:
        """A parallel axis along which some operand lies that is far apart along the innermost one."""
        for e in self.kernel.exprs:
            if e.op == "load" and self.inner in e.value[1].axes and abs(e.value[1].coefficient(self.inner)) > 1:
                for axis in self.axes[:-1]:
                    if abs(e.value[1].coefficient(axis)) == 1 and axis.size >= 4:
                        return axis
        return None

    def _tiled(self, scope: Scope, turned: Axis) -> Scope:
        """Loops in tiles over two axes, so that what lies along the one is read while it is near."""
        inner = self.inner
        assert inner is not None
        for axis in (a for a in self.axes if a not in (turned, inner)):
            scope = self._loop(scope, axis)
        for axis in (turned, inner):
            scope = scope.opened(None, f"for (long {axis}t = 0; {axis}t < {axis.size}; {axis}t += {TILE})")
            self._shared(scope, -(-axis.size // TILE))
        for axis in (turned, inner):
            end = (
                f"{axis}t + {TILE}"
                if axis.size % TILE == 0
                else f"({axis}t + {TILE} < {axis.size} ? {axis}t + {TILE} : {axis.size})"
            )
            scope = scope.opened(axis, f"for (long {axis} = {axis}t; {axis} < {end}; {axis}++)")
        return scope

    def _store(self, scope: Scope) -> None:
        place = self._line(scope) if self.columns else scope
        for e in self.kernel.reductions:  # the loops that fill rows come before those that read them
            if self.columns and self.inner in e.axes:
                self._accumulated(e, scope)
            elif e.axes <= place.bound:
                self.value(e, place)
        for store in self.kernel.stores:
            if store.parts:
                raise Unfusable("a result at a place that depends on data")
            value, guards = self.value(store.value, place), [f"({self.value(g, place)})" for g in store.guards]
            here = self._place_of(store, place)
            line = f"{store.buffer}[{self._at(store.at)}] = {_stored(value, self.kernel.buffers[store.buffer].dtype)};"
            here.items.append(f"if ({' & '.join(guards)}) {line}" if guards else line)
        self._vector(place)
        if self.columns:
            place.close()

    @staticmethod
    def _place_of(store: Store, scope: Scope) -> Scope:
        """Where a result is stored: where its place and its value are known, and once."""
        needed = store.at.axes.union(store.value.axes, *(g.axes for g in store.guards))
        while scope.parent is not None and needed <= scope.parent.bound:
            scope = scope.parent
        if not scope.bound <= needed:
            raise Unfusable("a result that is the same along an outer axis")
        return scope

    @staticmethod
    def _vector(scope: Scope, reductions: str = "") -> None:
        """Ask for vector code where there is no loop inside."""
        if scope.axis is None or not scope.innermost:
            return
        for i, line in enumerate(scope.head):
            if line.startswith("#pragma omp parallel for"):
                scope.head[i] = "#pragma omp parallel for simd schedule(static)" + reductions
                return
        scope.head.insert(0, "#pragma omp simd" + reductions)

    # ------------------------------------------------------------ values
    def _at(self, at: Index) -> str:
        return position(at, str)

    def _named(self, scope: Scope, kind: str, text: str) -> str:
        name = self._fresh("v")
        scope.items.append(f"const {self._type(kind)} {name} = {text};")
        return name

    def _fresh(self, letter: str) -> str:
        self.count += 1
        return f"{letter}{self.count - 1}"

    def _type(self, kind: str) -> str:
        return {"float": self.real, "int": "int64_t", "bool": "int"}[kind]

    def value(self, e: Expr, scope: Scope) -> str:
        """The value's name or text, valid in a scope; its statements are added to the outermost scope that they can be in."""
        if e.op == "const":
            return self.spelling.number(e.value) if e.kind == "float" else str(int(e.value))
        if e in self.lines:
            return f"{self.lines[e]}[{self.inner} - first]"
        place = self._place(e, scope)
        found = place.known.get(e)
        if found is None:
            kept = self._from_row(e, place)
            found = place.known[e] = kept if kept is not None else self._made(e, place, hoisted=place is not scope)
        return found

    def _place(self, e: Expr, scope: Scope) -> Scope:
        """The outermost scope that binds a value's axes: never beyond a loop over one of them, since a loop within another
        one may bind the same axis again."""
        while scope.parent is not None and scope.axis not in e.axes and e.axes <= scope.parent.bound:
            scope = scope.parent
        return scope

    def _from_row(self, e: Expr, place: Scope) -> str | None:
        row, kept = self.rows.get(self._alike(e), ("", None))
        return f"{row}[{place.axis}]" if kept is not None and kept is place.parent else None

    def _made(self, e: Expr, place: Scope, hoisted: bool) -> str:
        if e.op == "reduce":
            return self._reduced(e, place)
        text = self._text(e, place)
        key = self._alike(e)
        if key in self.kept and place.axis is not None and place.axis in (self.kept[key], *self._joined):
            name = self._named(place, e.kind, text)
            row = self._fresh("row")
            assert place.parent is not None
            self.rows[key] = row, place.parent
            place.parent.items.append(f"{self.real} {row}[{place.axis.size}];")
            place.items.append(f"{row}[{place.axis}] = {name};")
            return name
        once = self.uses.get(e, 0) <= 1 and not hoisted and e.op != "load"
        if e.op == "index" or (once and len(text) < 60):
            return f"({text})"
        return self._named(place, e.kind, text)

    def _text(self, e: Expr, scope: Scope) -> str:
        if e.op == "index":
            low, high = e.value.range
            return f"({'int32_t' if low >= -(1 << 31) and high < 1 << 31 else 'int64_t'})({self._at(e.value)})"
        if e.op == "load":
            return self._load(e, scope)
        if e.op == "cast":
            return self._cast(e, scope)
        if (shifted := below_maximum(e)) is not None:
            a, m = (self.value(x, scope) for x in shifted)
            hidden = f"({m} == -INFINITY ? {self.spelling.number(0.0)} : {m})"
            return self.spelling.operation(e.op, "float", [f"{a} - {hidden}"])
        args = [self.value(a, scope) for a in e.args]
        return self.spelling.operation(e.op, e.args[-1].kind, args)

    def _cast(self, e: Expr, scope: Scope) -> str:
        x, source, dtype = self.value(e.args[0], scope), e.args[0].kind, e.value
        if e.kind == "float":
            return f"({self.real}){x}"
        if e.kind == "bool":
            return f"{x} != 0"
        return f"({TYPES[dtype]}){'(int64_t)' if source == 'float' else ''}{x}"

    def _load(self, e: Expr, scope: Scope) -> str:
        operand, at, steps, dtype = e.value
        args = [self.value(a, scope) for a in e.args]
        place = self._at(at)
        for text, step in zip(args, steps):
            last = self._last(operand, step)
            place += f" + ({text} < 0 ? 0 : {text} > {last} ? {last} : {text}) * {step}"
        read = {"bfloat16": "widened({})", "float16": "(float){}", "bool": "{} != 0", "float32": "{}", "float64": "{}"}
        pattern = read.get(dtype, "(int64_t){}")
        found = pattern.format(f"{operand}[{place}]")
        guards = args[len(steps) :]
        zero = self.spelling.number(0.0) if e.kind == "float" else "0"
        return f"{' & '.join(f'({g})' for g in guards)} ? {found} : {zero}" if guards else found

    def _last(self, operand: str, step: int) -> int:
        """The last index of the axis that data-dependent indices run over."""
        buffer = self.kernel.buffers[operand]
        sizes = [d for d, s in zip(buffer.shape, buffer.strides) if s == step and d > 1]
        if len(sizes) > 1 or not step:
            raise Unfusable("an index into one of several axes that lie alike")
        return sizes[0] - 1 if sizes else 0

    # ------------------------------------------------------------ reductions
    def _neutral(self, e: Expr) -> str:
        monoid = e.value[0]
        if e.kind == "float" or monoid in ("sum", "prod"):
            return self.spelling.number(NEUTRAL[monoid]) if e.kind == "float" else str(int(NEUTRAL[monoid]))
        return "INT64_MIN" if monoid == "max" else "INT64_MAX"

    def _reduced(self, e: Expr, place: Scope) -> str:
        """A reduction along memory: a loop with one accumulator; of maxima, another one for whether there is a NaN."""
        monoid, axis = e.value
        name, body = self._fresh("v"), e.args[0]
        place.items.append(f"{self._type(e.kind)} {name} = {self._neutral(e)};")
        watch = self._fresh("nan") if monoid in ("max", "min") and e.kind == "float" else ""
        if watch:
            place.items.append(f"int {watch} = 0;")
        loop = place.opened(axis, f"for (long {axis} = 0; {axis} < {axis.size}; {axis}++)")
        operands = _product(body) if monoid == "sum" and not self.wide else None
        if operands is not None:
            x, y = (self.value(o, loop) for o in operands)
            loop.items.append(f"{name} = FMA({x}, {y}, {name});")
        else:
            x = self.value(body, loop)
            if watch and not x.isidentifier():
                x = self._named(loop, e.kind, x)
            loop.items += _step(monoid, name, x, watch)
        symbol = {"sum": "+", "prod": "*"}.get(monoid, monoid)
        self._vector(loop, f" reduction({symbol}:{name})" + (f" reduction(|:{watch})" if watch else ""))
        loop.close()
        if watch:
            place.items.append(f"if ({watch}) {name} = NAN;")
        return name

    def _unrolled(self, axis: Axis, body: Expr) -> tuple[Axis, list[Expr]]:
        """Several steps of a loop at once, so that accumulators are read and written less often."""
        steps = next((n for n in (8, 5, 4, 3, 2) if axis.size % n == 0), 1)
        if steps == 1:
            return axis, [body]
        outer = Axis(f"{axis.name}q", axis.size // steps)
        places = [{axis: index(outer) * steps + k} for k in range(steps)]
        return outer, [_moved(self.kernel.builder, body, place, {}) for place in places]

    def _accumulated(self, e: Expr, scope: Scope) -> None:
        """A reduction across memory: for each element of its axis one pass over a line of accumulators."""
        if not e.axes - {self.inner} <= scope.bound:
            raise Unfusable("a reduction inside another one, across memory")
        monoid, axis = e.value
        name, body = self._fresh("line"), e.args[0]
        scope.items.append(f"{self._type(e.kind)} {name}[{self.block}];")
        start = self._line(scope)
        start.items.append(f"{name}[{self.inner} - first] = {self._neutral(e)};")
        self._vector(start)
        start.close()
        axis, bodies = self._unrolled(axis, body)
        loop = scope.opened(axis, f"for (long {axis} = 0; {axis} < {axis.size}; {axis}++)")
        line = self._line(loop)
        place = total = f"{name}[{self.inner} - first]"
        if len(bodies) > 1:  # a few steps in a register of their own: fewer stores, and less rounding
            total = self._fresh("v")
            line.items.append(f"{self._type(e.kind)} {total} = {self._neutral(e)};")
        watch = "" if e.kind != "float" or monoid in ("sum", "prod") else "here"
        for part in bodies:
            operands = _product(part) if monoid == "sum" and not self.wide else None
            if operands is not None:
                x, y = (self.value(o, line) for o in operands)
                line.items.append(f"{total} = FMA({x}, {y}, {total});")
            else:
                x = self.value(part, line)
                x = x if x.isidentifier() else self._named(line, e.kind, x)
                line.items += _step(monoid, total, x, watch)
        if len(bodies) > 1:
            line.items += _step(monoid, place, total, watch)
        self._vector(line)
        line.close()
        loop.close()
        self.lines[e] = name


def _moved(b: Builder, e: Expr, change: Mapping[Axis, Index], done: dict[Expr, Expr]) -> Expr:
    """The expression with indices in place of its free axes. A reduction within keeps its own axis, even one of those."""
    if e.axes.isdisjoint(change):
        return e
    if e not in done:
        own = {a: i for a, i in change.items() if e.op != "reduce" or a != e.axis}
        inner = done if len(own) == len(change) else {}
        args = [_moved(b, a, own, inner) for a in e.args]
        if e.op == "load":
            operand, at, steps, dtype = e.value
            done[e] = b.make("load", args, (operand, at.replaced(change), steps, dtype), e.kind)
        else:
            done[e] = b.index(e.value.replaced(change)) if e.op == "index" else b.make(e.op, args, e.value, e.kind)
    return done[e]


def _step(monoid: str, total: str, x: str, watch: str) -> list[str]:
    """One step of a reduction. `watch`: "" (no NaN), "here" (a NaN stays in the total), or a flag's name."""
    if monoid in ("sum", "prod"):
        return [f"{total} {'+' if monoid == 'sum' else '*'}= {x};"]
    beats = ">" if monoid == "max" else "<"
    if watch == "here":
        return [f"{total} = ({x} {beats} {total} | {x} != {x}) ? {x} : {total};"]
    return [f"{total} = {x} {beats} {total} ? {x} : {total};", *([f"{watch} |= {x} != {x};"] if watch else [])]


def _product(e: Expr) -> tuple[Expr, Expr] | None:
    """The two sides of a product of floats."""
    return (e.args[0], e.args[1]) if e.op == "mul" and e.kind == "float" else None


def _extreme(e: Expr) -> bool:
    return e.op == "reduce" and e.value[0] in ("max", "min")


def _inside(body: Expr, axis: Axis) -> Iterator[Expr]:
    """What a loop over an axis computes: its body without the reductions in it."""
    stack, seen = [body], set()
    while stack:
        e = stack.pop()
        if e in seen or axis not in e.axes or e.op == "reduce":
            continue
        seen.add(e)
        yield e
        stack += e.args


def _stored(value: str, dtype: str) -> str:
    if dtype == "bfloat16":
        return f"narrowed({value})"
    return f"({TYPES[dtype]})({value})" if dtype not in ("float32", "float64") else value


def _brace_on_its_own(lines: Iterator[str]) -> Iterator[str]:
    """C functions open their brace on the next line."""
    first = next(lines)
    yield first.removesuffix(" {")
    yield "{"
    yield from lines


__all__ = ["PARALLEL", "TYPES", "emit", "work"]
