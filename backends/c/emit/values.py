"""Writes the statements of a C function that compute values: loop-invariant code motion, and reduction loops."""

from __future__ import annotations

from ...ir.c_expressions import position
from ...ir.expr import NEUTRAL, Expr, below_maximum
from ...ir.index import Axis, Index, index
from ...ir.unfusable import Unfusable
from .blocked import LANES, BlockedSum, blocked
from .lane_loops import MATH, MathLanes, in_lanes, whole_lanes
from .nest import LoopNest, LoopScope, moved
from .spelling import TYPES

#: reduction -> statement that combines the vector {1} of partial results with the vector {0}; a NaN remains.
LANE_STEPS = {"sum": "+= {0}", "max": f"= {MATH['maximum']}", "min": f"= {MATH['minimum']}"}


class CValues(LoopNest):
    """Writer of the C statements that compute expressions inside the loops of a kernel's function."""

    def _at(self, at: Index) -> str:
        return position(at, str)

    def _named(self, scope: LoopScope, kind: str, text: str) -> str:
        name = self._fresh("v")
        scope.items.append(f"const {self._type(kind)} {name} = {text};")
        return name

    def _fresh(self, letter: str) -> str:
        self.count += 1
        return f"{letter}{self.count - 1}"

    def _type(self, kind: str) -> str:
        return {"float": self.real, "int": "int64_t", "bool": "int"}[kind]

    def value(self, e: Expr, scope: LoopScope) -> str:
        """C expression of the value of `e`, valid in the block `scope`. Statements that compute it are written when it
        is first needed, into the outermost block in which all its operands are known."""
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

    def _place(self, e: Expr, scope: LoopScope) -> LoopScope:
        """The outermost scope that binds a value's axes, but never one outside of a loop over such an axis, because
        nested loops may bind an axis again."""
        while scope.parent is not None and scope.axis not in e.axes and e.axes <= scope.parent.bound:
            scope = scope.parent
        return scope

    def _from_row(self, e: Expr, place: LoopScope) -> str | None:
        row, kept = self.rows.get(self._alike(e), ("", None))
        return f"{row}[{place.axis}]" if kept is not None and kept is place.parent else None

    def _made(self, e: Expr, place: LoopScope, hoisted: bool) -> str:
        if e.op == "reduce":
            return self._reduced(e, place)
        text = self._text(e, place)
        key = self._alike(e)
        if self._in_row(key, place):
            name = self._named(place, e.kind, text)
            row = self._row_of(key, place)
            self.rows[key] = self.declared[key]
            place.items.append(f"{row}[{place.axis}] = {name};")
            return name
        once = self.uses.get(e, 0) <= 1 and not hoisted and e.op != "load"
        if e.op == "index" or (once and len(text) < 60):
            return f"({text})"
        return self._named(place, e.kind, text)

    def _in_row(self, key: Expr, place: LoopScope) -> bool:
        """Whether the loop `place` writes a value, of which `key` is `_alike`, to a row buffer."""
        return key in self.kept and place.axis is not None and place.axis in (self.kept[key], *self._joined)

    def _row_of(self, key: Expr, place: LoopScope) -> str:
        """The row buffer of a value, declared before the loop `place` if no loop beside it has done so."""
        row, outer = self.declared.get(key, ("", None))
        assert place.parent is not None and place.axis is not None
        if outer is not place.parent:
            row = self._fresh("row")
            self.declared[key] = row, place.parent
            place.parent.items.append(f"{self.real} {row}[{place.axis.size}];")
        return row

    def _kept_at(self, e: Expr, place: LoopScope) -> str | None:
        """C text of the element of an array that has the value of `e` in the loop `place`; None if no array has it."""
        return f"{self.lines[e]}[{self.inner} - first]" if e in self.lines else self._from_row(e, place)

    def _lanes(self, axis: Axis, loop: LoopScope) -> MathLanes:
        """A writer of the body of a loop over vectors of consecutive elements of an axis."""
        return MathLanes(axis, lambda e: self.value(e, loop), self._fresh, kept=lambda e: self._kept_at(e, loop))

    def _text(self, e: Expr, scope: LoopScope) -> str:
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

    def _cast(self, e: Expr, scope: LoopScope) -> str:
        x, source, dtype = self.value(e.args[0], scope), e.args[0].kind, e.value
        if e.kind == "float":
            return f"({self.real}){x}"
        if e.kind == "bool":
            return f"{x} != 0"
        return f"({TYPES[dtype]}){'(int64_t)' if source == 'float' else ''}{x}"

    def _load(self, e: Expr, scope: LoopScope) -> str:
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
        """The last valid index of the axis (of stride `step`) that a data-dependent index addresses.

        Raises Unfusable if several axes have this stride.
        """
        buffer = self.kernel.buffers[operand]
        sizes = [d for d, s in zip(buffer.shape, buffer.strides) if s == step and d > 1]
        if len(sizes) > 1 or not step:
            raise Unfusable("a data-dependent index into one of several axes with equal strides")
        return sizes[0] - 1 if sizes else 0

    # ------------------------------------------------------------ reductions
    def _neutral(self, e: Expr) -> str:
        monoid = e.value[0]
        if e.kind == "float" or monoid in ("sum", "prod"):
            return self.spelling.number(NEUTRAL[monoid]) if e.kind == "float" else str(int(NEUTRAL[monoid]))
        return "INT64_MIN" if monoid == "max" else "INT64_MAX"

    def _reduced(self, e: Expr, place: LoopScope) -> str:
        """Write a row reduction, a loop with one accumulator and, for max and min, a NaN flag; returns the
        accumulator's variable."""
        if not self.wide and (parts := blocked(self.kernel.builder, e)) is not None:
            return self._blocked(e, parts, place)
        monoid, axis = e.value
        name, body = self._fresh("v"), e.args[0]
        place.items.append(f"{self._type(e.kind)} {name} = {self._neutral(e)};")
        watch = self._fresh("nan") if monoid in ("max", "min") and e.kind == "float" else ""
        if watch:
            place.items.append(f"int {watch} = 0;")
        begin = self._reduced_in_lanes(e, name, watch, place) if e.kind == "float" and monoid in LANE_STEPS else "0"
        loop = place.opened(axis, f"for (long {axis} = {begin}; {axis} < {axis.size}; {axis}++)")
        whole = self.wide or self._alike(body) in self.kept  # not its factors
        operands = product_of(body) if monoid == "sum" and not whole else None
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

    def _reduced_in_lanes(self, e: Expr, total: str, watch: str, place: LoopScope) -> str:
        """Write a loop over vectors that combines a reduction's elements with the variable `total`, if vectors are
        faster (emit/lane_loops.py); returns C text of the first element that it leaves. `watch`: NaN flag, "" if
        none."""
        axis, body, monoid = e.axis, e.args[0], e.value[0]
        whole = whole_lanes("0", str(axis.size))
        loop = place.opened(axis, f"for (long {axis} = 0; {axis} < {whole}; {axis} += {LANES})")
        if self.wide or not in_lanes([body], axis, lambda x: self._kept_at(x, loop) is not None):
            return "0"
        parts, lanes = self._fresh("sums" if monoid == "sum" else "best"), self._lanes(axis, loop)
        place.items.append(f"floats {parts} = lanes({self._neutral(e)});")
        lanes.lines.append(f"{parts} {LANE_STEPS[monoid].format(lanes.value(body), parts)};")
        for value, name in lanes.known.items():
            if self._in_row(key := self._alike(value), loop) and self._kept_at(value, loop) is None:
                lanes.lines.append(f"__builtin_memcpy(&{self._row_of(key, loop)}[{axis}], &{name}, {4 * LANES});")
        loop.items += lanes.lines
        loop.close()
        whole_part = f"lanes_{monoid}({parts})"
        place.items += _step(
            monoid, total, whole_part if monoid == "sum" else self._named(place, "float", whole_part), watch
        )
        return whole

    def _blocked(self, e: Expr, parts: BlockedSum, place: LoopScope) -> str:
        """Write a sum in blocks; returns C text of its value (emit/packed_sums.py)."""
        raise NotImplementedError

    def _unrolled(self, axis: Axis, body: Expr) -> tuple[Axis, list[Expr]]:
        """(axis of the unrolled loop, bodies of one iteration) of a loop unrolled by up to 8, so that accumulators are
        loaded and stored less often."""
        steps = next((n for n in (8, 5, 4, 3, 2) if axis.size % n == 0), 1)
        if steps == 1:
            return axis, [body]
        outer = Axis(f"{axis.name}q", axis.size // steps)
        places = [{axis: index(outer) * steps + k} for k in range(steps)]
        return outer, [moved(self.kernel.builder, body, place, {}) for place in places]

    def _accumulated(self, e: Expr, scope: LoopScope) -> None:
        """Write a column reduction, a loop over the reduction axis that updates an array of accumulators.

        Raises Unfusable inside another reduction.
        """
        if not e.axes - {self.inner} <= scope.bound:
            raise Unfusable("a column reduction nested in another reduction")
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
        if len(bodies) > 1:  # accumulate the unrolled steps in a register: fewer stores, less rounding
            total = self._fresh("v")
            line.items.append(f"{self._type(e.kind)} {total} = {self._neutral(e)};")
        watch = "" if e.kind != "float" or monoid in ("sum", "prod") else "here"
        for part in bodies:
            operands = product_of(part) if monoid == "sum" and not self.wide else None
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

    def _line(self, scope: LoopScope) -> LoopScope:
        """Open a loop over the elements of a block of the innermost axis."""
        axis = self.inner
        return scope.opened(axis, f"for (long {axis} = first; {axis} < past; {axis}++)")

    @staticmethod
    def _vector(scope: LoopScope, reductions: str = "") -> None:
        """Add `omp simd` to a loop without inner loops."""
        if scope.axis is None or not scope.innermost:
            return
        for i, line in enumerate(scope.head):
            if line.startswith("#pragma omp parallel for"):
                scope.head[i] = "#pragma omp parallel for simd schedule(static)" + reductions
                return
        scope.head.insert(0, "#pragma omp simd" + reductions)


def _step(monoid: str, total: str, x: str, watch: str) -> list[str]:
    """C statements that combine the accumulator `total` with a value `x`.

    `watch`: "" ignores NaN, "here" keeps a NaN in the accumulator, another text names a NaN flag to set.
    """
    if monoid in ("sum", "prod"):
        return [f"{total} {'+' if monoid == 'sum' else '*'}= {x};"]
    beats = ">" if monoid == "max" else "<"
    if watch == "here":
        return [f"{total} = ({x} {beats} {total} | {x} != {x}) ? {x} : {total};"]
    return [f"{total} = {x} {beats} {total} ? {x} : {total};", *([f"{watch} |= {x} != {x};"] if watch else [])]


def product_of(e: Expr) -> tuple[Expr, Expr] | None:
    """The two factors of a float product; None for other expressions."""
    return (e.args[0], e.args[1]) if e.op == "mul" and e.kind == "float" else None
