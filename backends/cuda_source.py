"""The CUDA C++ emitter: a kernel of the IR and a layout of threads as the text of one `__global__` function.

A layout says for each dimension (rows `m`, columns `n`, each reduction axis) how many threads lie along it, how many
neighbouring elements each of them holds, and how often that repeats. All values of a kernel share it: a value lies in registers
along the dimensions that it has and is the same in all threads along the others. Whatever is contiguous in memory along a
dimension of neighbours moves as one vector. A reduction is each thread's own, then an exchange between the threads that lie
along its axis; where a block does not cover the axis, a loop walks it. So rows, columns, vectors times matrices, gathers and
transpositions are one emitter in different layouts.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property

from .index import WIDE, Axis, Division, Index, index
from .kir import Buffer, Expr, Kernel, Store, Unfusable, below_maximum, factors, walk
from .kir_loops import power_of, rolled
from .kir_split import COUNTERS
from .scopes import Block
from .tiling import Shape

SHARED = 48 << 10  # bytes of shared memory that a block has without asking
HELD = 512  # bytes of one value in a thread's registers
CTYPES = {
    "float32": "float", "float64": "double", "float16": "f16", "bfloat16": "bf16", "bool": "bool", "int8": "signed char",
    "uint8": "unsigned char", "int16": "short", "uint16": "unsigned short", "int32": "int", "uint32": "unsigned",
    "int64": "long long", "uint64": "unsigned long long",
}  # fmt: skip
#: pointwise op -> text over operands
_CALLS = {
    "neg": "-{0}", "abs": "op::abs({0})", "exp": "op::exp({0})", "exp2": "op::exp2({0})", "log": "op::log({0})",
    "sqrt": "op::sqrt({0})", "rsqrt": "op::rsqrt({0})", "recip": "op::recip({0})", "erf": "op::erf({0})",
    "sin": "op::sin({0})", "cos": "op::cos({0})", "floor": "op::floor({0})", "ceil": "op::ceil({0})",
    "tanh": "op::tanh({0})", "log1p": "op::log1p({0})", "expm1": "op::expm1({0})", "sign": "op::sign({0})",
    "add": "{0} + {1}", "sub": "{0} - {1}", "mul": "{0} * {1}", "div": "op::div({0}, {1})",
    "maximum": "op::max({0}, {1})", "minimum": "op::min({0}, {1})", "pow": "op::pow({0}, {1})",
    "eq": "{0} == {1}", "lt": "{0} < {1}", "le": "{0} <= {1}", "is_nan": "{0} != {0}", "is_inf": "op::is_inf({0})",
    "where": "{0} ? {1} : {2}",
}  # fmt: skip
_LOGIC = {"and": ("{0} && {1}", "{0} & {1}"), "or": ("{0} || {1}", "{0} | {1}"), "xor": ("{0} != {1}", "{0} ^ {1}"),
          "not": ("!{0}", "{0} == 0")}  # fmt: skip
_COMBINE = {"sum": "Sum", "max": "Max", "min": "Min", "prod": "Prod"}
_COSTLY = frozenset(("exp", "exp2", "log", "erf", "tanh", "sin", "cos", "pow", "log1p", "expm1"))


# ---------------------------------------------------------------- layouts
@dataclass(frozen=True)
class Along:
    """How a dimension is laid over a block: `threads` side by side, each with `vector` neighbours, `repeat` times."""

    threads: int = 1
    vector: int = 1
    repeat: int = 1

    @property
    def block(self) -> int:
        """Elements that a block covers."""
        return self.threads * self.vector * self.repeat

    @property
    def held(self) -> int:
        """Elements that a thread holds."""
        return self.vector * self.repeat


@dataclass(frozen=True)
class Layout:
    """The dimensions of a block, the one along which neighbouring threads lie first; whether the kernel may be started before
    the one before it has ended; and how many rounds of a loop are fetched ahead, by way of shared memory."""

    dims: Mapping[str, Along]
    early: bool = False
    ahead: int = 0

    @cached_property
    def threads(self) -> int:
        """Threads of a block: whole warps."""
        return max(32, math.prod(a.threads for a in self.dims.values()))

    def stride(self, dim: str) -> int:
        """How far apart in a block threads are that neighbour each other along a dimension."""
        step = 1
        for name, along in self.dims.items():
            if name == dim:
                return step
            step *= along.threads
        return step


@dataclass(frozen=True)
class CudaLaunch:
    """One kernel call: name, CUDA text, blocks, threads of each, argument names, whether it may start early."""

    name: str
    text: str
    grid: int
    block: int
    args: tuple[str, ...]
    early: bool = False

    @property
    def source(self) -> str:
        """The definition in Python."""
        early = ", early=True" if self.early else ""
        return f'{self.name} = CudaKernel("{self.name}", {self.grid}, {self.block}{early}, text=r"""\n{self.text}""")\n'

    def call(self, names: Mapping[str, str]) -> str:
        """The statement that launches it."""
        return f"{self.name}({', '.join(names[a] for a in self.args)})"


def emit(kernel: Kernel, layout: Layout, name: str, shape: Shape) -> CudaLaunch:
    """The launch of a kernel in a layout. Unfusable where it has something that this emitter does not write."""
    return _Emitter(kernel, layout, name, shape).launch()


def emit_joined(
    first: Kernel, second: Kernel, layouts: tuple[Layout, Layout], name: str, shapes: tuple[Shape, Shape]
) -> CudaLaunch:
    """One launch of a split kernel: the block that is last to store the states of a tile joins them. Both halves cover the
    same tile with as many threads. Blocks count themselves in the buffer `counters`, which is zero before and after."""
    return _Emitter(first, layouts[0], name, shapes[0]).launch(_Emitter(second, layouts[1], name, shapes[1]))


# ---------------------------------------------------------------- what lies side by side
def slope(at: Index, axis: Axis, width: int) -> int | None:
    """How far an index moves with an axis inside each aligned run of `width` elements; None where that is not one number."""
    total = 0
    for atom, c in at.terms:
        if isinstance(atom, Axis):
            total += c * (atom == axis)
        elif axis in atom.index.axes:
            inner = slope(atom.index, axis, width)
            if inner is None or (inner and (inner != 1 or atom.by % width or divisor(atom.index, axis, width) % width)):
                return None
            total += c * inner * atom.rest
    return total


def divisor(at: Index, axis: Axis, width: int) -> int:
    """A number by which an index is divisible at the beginning of each aligned run of an axis."""
    found = at.const
    for atom, c in at.terms:
        factor = width if atom == axis else 1
        if isinstance(atom, Division) and atom.rest:
            factor = math.gcd(atom.by, divisor(atom.index, axis, width))
        found = math.gcd(found, c * factor)
    return abs(found) or 1 << 30


def together(at: Index, axis: Axis, width: int, itemsize: int) -> bool:
    """Whether `width` elements along an axis are neighbours in memory that a vector can move."""
    run = min(width, 16 // itemsize)
    return width > 1 and axis.size % width == 0 and slope(at, axis, width) == 1 and divisor(at, axis, width) % run == 0


def steady(e: Expr, axis: Axis, width: int) -> bool:
    """Whether a condition is the same for each aligned run of `width` elements along an axis: its bounds lie between runs."""
    if axis not in e.axes:
        return True
    if e.op in ("and", "or", "not"):
        return all(steady(a, axis, width) for a in e.args)
    if e.op != "lt" or any(a.op not in ("index", "const") or a.kind != "int" for a in e.args):
        return False
    low, high = (a.value if a.op == "index" else index(a.value) for a in e.args)
    rising, falling = slope(low - high, axis, width), slope(high - low, axis, width)
    if rising == 1:  # low < high where low - high < 0
        return divisor(low - high, axis, width) % width == 0
    return falling == 1 and divisor(high - low - 1, axis, width) % width == 0  # high - low - 1 >= 0


# ---------------------------------------------------------------- text
@dataclass(frozen=True)
class Local:
    """A value in registers: an array over the loops of its dimensions, those of `lanes` (one dimension) inside vectors."""

    name: str
    dims: tuple[str, ...]
    dtype: str
    lanes: str = ""


@dataclass
class Scope(Block[Local]):
    """A block with what is known of maxima in it."""

    safe: set[Expr] = field(default_factory=set)  # maxima that are never -inf


class _Emitter:
    def __init__(self, kernel: Kernel, layout: Layout, name: str, shape: Shape) -> None:
        self.kernel, self.layout, self.name, self.shape = kernel, layout, name, shape
        self.wide = "float64" if any(b.dtype == "float64" for b in kernel.buffers.values()) else "float32"
        self.narrow = all(kernel.buffers[s.buffer].dtype in ("float16", "bfloat16") for s in kernel.stores)
        own = [a for a in shape.inner if a not in shape.joined]
        self.order = ["m", *(a.name for a in own), "n"]
        self.groups: dict[str, tuple[Axis, ...]] = {"m": shape.rows, "n": shape.cols, **{a.name: (a,) for a in own}}
        self.extent = {d: math.prod(a.size for a in g) for d, g in self.groups.items()}
        self.along = {d: layout.dims.get(d, Along()) for d in self.order}
        self.walked = {a.name for a in own if self.along[a.name].block < a.size}
        if shape.joined and self.along["n"].block < shape.n:
            self.walked.add("n")
        self.dim_of = {a: d for d, g in self.groups.items() for a in g} | dict.fromkeys(shape.joined, "n")
        bound = {a for d, g in self.groups.items() for a in g if d not in self.walked} | {*shape.batch}
        self.scope = self.top = Scope(1, bound)
        self.counter = self.shared = 0
        self.fresh_loads = False  # whether states are read that other blocks have just written
        self.columns = {r: index(c) for r, c in shape.joined.items()}
        self.stages = self._stages()
        self.counts: dict[str, int] = {}  # elements of accumulators
        self.rings: list[str] = []  # declarations of what is fetched ahead
        self.ring_bytes = 0
        self.param = {b: b if re.fullmatch(r"(x|out|part)\d*", b) else f"{b}_" for b in kernel.buffers}

    def line(self, text: str, scope: Scope | None = None) -> None:
        scope = scope or self.scope
        scope.lines.append("    " * scope.indent + text)

    def fresh(self, stem: str) -> str:
        self.counter += 1
        return f"{stem}{self.counter}"

    @contextmanager
    def inside(self, scope: Scope) -> Iterator[None]:
        before, self.scope = self.scope, scope
        yield
        self.scope = before

    # ------------------------------------------------------------ dimensions
    def dims(self, axes: Iterable[Axis]) -> tuple[str, ...]:
        found = {self.dim_of.get(a, "") for a in axes if a not in self.shape.batch}
        if "" in found:
            raise Unfusable("an axis without a place in the layout")
        return tuple(d for d in self.order if d in found)

    def spans(self, e: Expr) -> tuple[str, ...]:
        """The dimensions that an expression varies along."""
        return self.dims(e.axes)

    def loops(self, dims: Iterable[str], lanes: str = "") -> list[tuple[str, str, int]]:
        """(variable, dimension, count) of the loops over what a thread holds along dimensions, without those of a vector."""
        there = [d for d in self.order if d in set(dims)]
        found = [(f"{d}_i", d, self.along[d].repeat) for d in there]
        found += [(f"{d}_v", d, self.along[d].vector) for d in there if d != lanes]
        return [x for x in found if x[2] > 1]

    def count(self, dims: Iterable[str], lanes: str = "") -> int:
        """Elements that a thread holds along dimensions."""
        return math.prod(n for *_, n in self.loops(dims, lanes))

    def ragged(self, dim: str) -> bool:
        """Whether the last block along a dimension is not full."""
        return self.extent[dim] % self.along[dim].block != 0

    def in_column(self, e: Expr) -> Expr:
        """The expression with columns in place of the reduction axes that run over them."""
        if not e.axes & self.columns.keys():
            return e
        args = tuple(self.in_column(a) for a in e.args)
        b = self.kernel.builder
        if e.op == "index":
            return b.index(e.value.replaced(self.columns))
        if e.op == "load":
            operand, at, steps, dtype = e.value
            return b.make("load", args, (operand, at.replaced(self.columns), steps, dtype), e.kind)
        return b.make(e.op, args, e.value, e.kind)

    def _stages(self) -> dict[Expr, int]:
        """In how many loop nests each value is needed: bodies of reductions, and results."""
        found: dict[Expr, int] = {}
        roots = [self.in_column(e.args[0]) for e in self.kernel.reductions]
        roots += [e for s in self.kernel.stores for e in (s.value, *s.guards)]
        for root in dict.fromkeys(roots):
            for e in _nest(root):
                found[e] = found.get(e, 0) + 1
        return found

    # ------------------------------------------------------------ scopes
    def home(self, e: Expr) -> Scope:
        """The outermost scope in which the expression can be computed."""
        scope = self.scope
        while scope.outside is not None and e.axes <= scope.outside.bound and not self._needs_inner(e, scope):
            scope = scope.outside
        return scope

    def _needs_inner(self, e: Expr, scope: Scope) -> bool:
        return any(x in scope.known and x.op == "reduce" for x in walk([e]))

    def is_safe(self, e: Expr) -> bool:
        """Whether a maximum is known not to be -inf."""
        return any(e in scope.safe for scope in self.scope.outward())

    # ------------------------------------------------------------ values in registers
    def need(self, e: Expr) -> None:
        """Have everything in registers that the loop nest of an expression reads."""
        if self.scope.find(e) is not None or e.op in ("const", "index"):
            return
        if e.op == "reduce":
            self.reduction(e)
            return
        for a in e.args:
            self.need(a)
        home = self.home(e)
        if e.op == "load":
            with self.inside(home):
                home.known[e] = self.load(e)
        elif e.op in _COSTLY and home is self.top and self.stages.get(e, 0) > 1 and self.count(self.spans(e)) > 1:
            with self.inside(home):
                home.known[e] = self.kept(e)

    def load(self, e: Expr) -> Local:
        """Read what a load needs in this thread, as vectors where neighbours lie side by side."""
        operand, at, steps, dtype = e.value
        dims = self.spans(e)
        lanes = next((d for d in dims if self._vector(at, d, dtype, e.args, steps)), "")
        width = self.along[lanes].vector if lanes else 1
        ctype = CTYPES[dtype]
        whole = f"Pack<{ctype}, {width}>" if lanes else ctype
        count = self.count(dims, lanes)
        self._check_held(
            count * width * (8 if dtype in ("float64", "int64") else 4 if dtype in ("float32", "int32") else 2)
        )
        name = self.fresh("v")
        nest = Nest(self, dims, lanes)
        place = nest.position(at, [*zip(e.args, steps)], _span(at, steps))
        recent = self.fresh_loads and operand.startswith("part")
        read = f"read{'_recent' if recent else ''}<{width}>({self.param[operand]} + {place})" if lanes else (
            f"recent({self.param[operand]} + {place})" if recent else f"{self.param[operand]}[{place}]")  # fmt: skip
        conditions = [*nest.masks(dims), *(nest.scalar(g, nest.depth(self.spans(g))) for g in e.args[len(steps) :])]
        if conditions:
            nothing = f"{whole}{{}}" if lanes or ctype in ("bf16", "f16") else "0"
            read = f"{_all(conditions)} ? {read} : {nothing}"
        local = Local(name, dims, dtype, lanes)
        nest.line(f"{nest.at(local, whole_vector=True)} = {read};")
        self.line(f"{whole} {name}{f'[{count}]' if count > 1 else ''};")
        nest.close()
        return local

    def _vector(self, at: Index, dim: str, dtype: str, args: Sequence[Expr], steps: Sequence[int]) -> bool:
        """Whether a load's neighbours along a dimension move together."""
        width, group = self.along[dim].vector, self.groups[dim]
        picks, guards = args[: len(steps)], args[len(steps) :]
        if width == 1 or not group or any(dim in self.spans(a) for a in picks):
            return False
        if any(dim in self.spans(g) and not steady(g, group[-1], width) for g in guards):
            return False
        return together(at, group[-1], width, _itemsize(dtype)) and all(s % width == 0 for s in steps)

    def kept(self, e: Expr) -> Local:
        """An expression's values in registers, for several loop nests."""
        dims = self.spans(e)
        count = self.count(dims)
        self._check_held(4 * count)
        local = Local(self.fresh("t"), dims, self.wide if e.kind == "float" else "")
        if e.kind != "float":
            raise Unfusable("integers kept in registers")
        nest = Nest(self, dims)
        nest.line(f"{nest.at(local)} = {nest.scalar(e, nest.deepest)};")
        self.line(f"{CTYPES[self.wide]} {local.name}[{count}];")
        nest.close()
        return local

    def _check_held(self, nbytes: int) -> None:
        if nbytes > HELD:
            raise Unfusable(f"{nbytes} bytes of one value in a thread")

    # ------------------------------------------------------------ reductions
    def reduction(self, e: Expr) -> None:
        dim = self.dim_of[e.axis]
        if dim in self.walked:
            if set(self.groups[dim]) & self.scope.bound:
                raise Unfusable("a reduction inside the loop over its own axis")
            self.loop(e)
            return
        found: dict[str, list[str]] = {}
        for x in self._ready(e, dim, rolls=False):
            body = self.in_column(x.args[0])
            self.need(body)
            name, kept = self.fresh("acc"), self._kept_dims(x, body, dim)
            self._begin(name, kept, x.value[0])
            self._accumulate(x, body, dim, Local(name, kept, self.wide))
            self.scope.known[x] = Local(name, kept, self.wide)
            found.setdefault(x.value[0], []).append(name)
        for monoid, names in found.items():
            self._exchange(names, monoid, dim)

    def _kept_dims(self, e: Expr, body: Expr, dim: str) -> tuple[str, ...]:
        if e.kind != "float" or e.value[0] not in _COMBINE:
            raise Unfusable(f"a reduction by {e.value[0]} of {e.kind}")
        return tuple(d for d in self.spans(body) if d != dim)

    def _begin(self, name: str, kept: Sequence[str], monoid: str, scope: Scope | None = None) -> None:
        """Declare an accumulator that holds the neutral element."""
        count = self.count(kept)
        self._check_held(4 * count)
        self.counts[name] = count
        start = self.number({"sum": 0.0, "max": -math.inf, "min": math.inf, "prod": 1.0}[monoid])
        self.line(f"{CTYPES[self.wide]} {name}[{count}]{' = {}' if monoid == 'sum' else ''};", scope)
        if monoid != "sum":
            self.line(f"fill({name}, {start});", scope)

    def _accumulate(self, e: Expr, body: Expr, dim: str, acc: Local) -> None:
        """The loop nest that adds what this thread holds to its accumulator."""
        if dim not in self.spans(body):
            raise Unfusable("a reduction along an axis that its body does not have")
        nest = Nest(self, self.spans(body))
        term = nest.scalar(body, nest.deepest)
        if self.ragged(dim) and not (e.value[0] == "sum" and _vanishes(body)):
            neutral = self.number({"sum": 0.0, "max": -math.inf, "min": math.inf, "prod": 1.0}[e.value[0]])
            term = f"{nest.mask(dim)} ? {_atom(term)} : {neutral}"
        at = nest.at(acc)
        if e.value[0] == "sum":
            nest.line(f"{at} += {term};")
        elif e.value[0] == "prod":
            nest.line(f"{at} *= {term};")
        else:
            nest.line(f"{at} = op::{e.value[0]}({at}, {term});")
        nest.close()

    def _exchange(self, names: Sequence[str], monoid: str, dim: str) -> None:
        """Combine accumulators over the threads along a dimension."""
        threads, stride = self.along[dim].threads, self.layout.stride(dim)
        if threads == 1 or not names:
            return
        lanes = min(threads, 32 // stride) if stride < 32 else 1
        if threads == lanes:
            for name in names:
                self.line(f"across_warp<{_COMBINE[monoid]}, {stride}, {threads}>({name});")
            return
        if self.scope is not self.top:
            self.line("__syncthreads();")
        place = f"shared + {self.shared}" if self.shared else "shared"
        self.shared += self.layout.threads // lanes * sum(self.counts[n] for n in names)
        kind = f"{_COMBINE[monoid]}, {stride}, {threads}, {self.layout.threads}"
        self.line(f"across<{kind}>({place}, {', '.join(names)});")

    # ------------------------------------------------------------ loops
    def loop(self, wanted: Expr) -> None:
        """The loop that computes a reduction, and with it all others along its dimension that are ready."""
        dim = self.dim_of[wanted.axis]
        ready = self._ready(wanted, dim)
        bodies = {e: self.in_column(e.args[0]) for e in ready}
        outer = self.scope
        for body in bodies.values():  # what does not move with the loop comes before it
            for x in _nest(body):
                if x.op == "reduce" and x not in ready and x.axes <= outer.bound and self.scope.find(x) is None:
                    self.need(x)
        if outer is self.top:
            self._early_loads()
        names = {e: self.fresh("max" if e.value[0] == "max" else "acc") for e in ready}
        for e in ready:
            self._begin(names[e], self._kept_dims(e, bodies[e], dim), e.value[0])
        inner = Scope(outer.indent + 1, outer.bound | {e.axis for e in ready} | {*self.groups[dim]}, outside=outer)
        scales: dict[Expr, Local] = {}
        fetched = Scope(outer.indent + 1, set(inner.bound), outside=outer)
        if self.layout.ahead and outer is self.top:
            for x in dict.fromkeys(x for body in bodies.values() for x in _nest(body)):
                if x.op == "load" and not x.args and {"n", dim} <= {*self.spans(x)}:
                    self._fetch(x, inner, fetched)
        with self.inside(inner):
            for e in ready:
                for x in _nest(bodies[e]):
                    if x.op == "load":
                        self.need(x)
            for e in ready:
                if e.value[0] == "max" and any(_rolled(x) is e for x in ready):
                    self.need(bodies[e])
                    scales[e] = self._running(e, bodies[e], dim, names[e])
            for e in ready:
                if e in scales:
                    continue
                self.need(bodies[e])
                acc = Local(names[e], self._kept_dims(e, bodies[e], dim), self.wide)
                if (maximum := _rolled(e)) in scales:
                    self._rescale(acc, scales[maximum])
                self._accumulate(e, bodies[e], dim, acc)
        self._walk(dim, inner, outer, fetched if fetched.lines else None)
        alone = [e for e in ready if e not in scales and _rolled(e) not in scales]
        for monoid in dict.fromkeys(e.value[0] for e in alone):
            self._exchange([names[e] for e in alone if e.value[0] == monoid], monoid, dim)
        for e in scales:
            self._joint(e, names, [x for x in ready if _rolled(x) is e], dim, bodies)
        for e in ready:
            outer.known[e] = Local(names[e], self._kept_dims(e, bodies[e], dim), self.wide)

    def _walk(self, dim: str, inner: Scope, outer: Scope, fetched: Scope | None = None) -> None:
        """Close a loop over a dimension: its head, its first coordinate, its lines. What is `fetched` ahead is under way
        some rounds before."""
        size, at, step, ahead = self.extent[dim], f"{dim}_block", self.along[dim].block, self.layout.ahead
        first = f"const int {dim}_0 = {at}{_plus(self._thread(dim))};"
        if fetched is not None:
            self.line(f"auto fetch_round = [&](int {at}, int round) {{", outer)
            self.line(f"    if ({at} >= {size}) return;", outer)
            self.line(f"    {first}", outer)
            outer.lines += fetched.lines
            self.line("};", outer)
            self.line(
                f"for (int round = 0; round < {ahead}; ++round) fetch_round(round * {step}, round), end_round();", outer
            )
        more = ", round = 0" if fetched is not None else ""
        turn = f", round = (round + 1) % {ahead + 1}" if fetched is not None else ""
        self.line(f"for (int {at} = 0{more}; {at} < {size}; {at} += {step}{turn}) {{", outer)
        self.line(f"    {first}", outer)
        if fetched is not None:
            self.line(f"    fetch_round({at} + {ahead * step}, (round + {ahead}) % {ahead + 1});", outer)
            self.line("    end_round();", outer)
            self.line(f"    await_round<{ahead}>();", outer)
        outer.lines += inner.lines
        self.line("}", outer)

    def _fetch(self, e: Expr, inner: Scope, fetched: Scope) -> None:
        """Have a load's vectors of 16 bytes fetched rounds ahead, each thread's own; others are left as they are."""
        operand, at, _, dtype = e.value
        dims = self.spans(e)
        lanes = next((d for d in dims if self._vector(at, d, dtype, (), ())), "")
        if not lanes or self.along[lanes].vector * _itemsize(dtype) != 16:
            return
        count, threads = self.count(dims, lanes), self.layout.threads
        name, whole = self.fresh("v"), f"Pack<{CTYPES[dtype]}, {self.along[lanes].vector}>"
        ring, local = f"ring{name[1:]}", Local(name, dims, dtype, lanes)
        self.ring_bytes += 16 * (self.layout.ahead + 1) * count * threads
        self.rings.append(f"    __shared__ {whole} {ring}[{(self.layout.ahead + 1) * count * threads}];")
        for scope in (fetched, inner):
            with self.inside(scope):
                nest = Nest(self, dims, lanes)
                own = f"{ring}[(round * {count} + {nest.slot(local)}) * {threads} + thread]"
                masks = _all(nest.masks(dims)) if nest.masks(dims) else ""
                if scope is fetched:
                    place = nest.position(at, (), _span(at, ()))
                    nest.line(f"{f'if ({masks}) ' if masks else ''}fetch({own}, {self.param[operand]} + {place});")
                else:
                    self.line(f"{whole} {name}{f'[{count}]' if count > 1 else ''};")
                    nest.line(
                        f"{nest.at(local, whole_vector=True)} = {f'{masks} ? {own} : {whole}{{}}' if masks else own};"
                    )
                nest.close()
        inner.known[e] = local

    def _thread(self, dim: str) -> str:
        """The first element of a thread in a block, along a dimension."""
        along, stride = self.along[dim], self.layout.stride(dim)
        if along.threads == 1:
            return ""
        above = self.layout.threads > stride * along.threads
        text = f"thread / {stride}" if stride > 1 else "thread"
        text = f"{text} % {along.threads}" if above else text
        return f"{text} * {along.vector}" if along.vector > 1 and not above else (
            f"({text}) * {along.vector}" if along.vector > 1 else text)  # fmt: skip

    def _ready(self, wanted: Expr, dim: str, rolls: bool = True) -> list[Expr]:
        """Reductions along a dimension, ready in this scope, that can be computed together: inner ones first. With `rolls`,
        also sums relative to a maximum that is one of them."""
        same = [
            e for e in self.kernel.reductions
            if self.dim_of.get(e.axis) == dim and e.axes <= self.scope.bound and self.scope.find(e) is None
        ]  # fmt: skip
        chosen: list[Expr] = []
        for e in same:
            blocking = [x for x in walk(e.args) if x in same and x is not e]
            rolled_on = _rolled(e) if rolls else None
            if not blocking or (rolled_on in chosen and set(blocking) <= {rolled_on}):
                chosen.append(e)
        if wanted in chosen:
            return chosen
        first = next((x for x in walk(wanted.args) if x in same), None)  # its own operands first
        if first is None:
            raise Unfusable("a reduction whose axes are not all there")
        self.reduction(first)
        return self._ready(wanted, dim, rolls)

    def _running(self, e: Expr, body: Expr, dim: str, name: str) -> Local:
        """A maximum that moves with the loop: its new value, and by what sums relative to the old one must be scaled."""
        kept, ctype = self._kept_dims(e, body, dim), CTYPES[self.wide]
        new, safe, scale = (Local(self.fresh(s), kept, self.wide) for s in ("new", "safe", "scale"))
        old = Local(name, kept, self.wide)
        count = self.count(kept)
        self.line(f"{ctype} {new.name}[{count}], {safe.name}[{count}], {scale.name}[{count}];")
        nest = Nest(self, kept)
        nest.line(f"{nest.at(new)} = {nest.at(old)};")
        nest.close()
        self._accumulate(e, body, dim, new)
        nest = Nest(self, kept)
        nest.line(f"{nest.at(safe)} = op::finite({nest.at(new)});")
        nest.line(f"{nest.at(scale)} = op::{power_of(self.kernel, e)}({nest.at(old)} - {nest.at(safe)});")
        nest.line(f"{nest.at(old)} = {nest.at(new)};")
        nest.close()
        self.scope.known[e] = safe
        self.scope.safe.add(e)
        return scale

    def _rescale(self, acc: Local, scale: Local) -> None:
        nest = Nest(self, acc.dims)
        nest.line(f"{nest.at(acc)} *= {nest.at(scale)};")
        nest.close()

    def _joint(
        self, e: Expr, names: Mapping[Expr, str], sums: Sequence[Expr], dim: str, bodies: Mapping[Expr, Expr]
    ) -> None:
        """The joint state of a maximum and the sums relative to it, over the threads along a dimension."""
        if self.along[dim].threads == 1:
            return
        kept = self._kept_dims(e, bodies[e], dim)
        own = Local(names[e], kept, self.wide)
        before = Local(self.fresh("own"), kept, self.wide)
        self.line(f"{CTYPES[self.wide]} {before.name}[{self.count(kept)}];")
        nest = Nest(self, kept)
        nest.line(f"{nest.at(before)} = {nest.at(own)};")
        nest.close()
        self._exchange([names[e]], "max", dim)
        for x in sums:
            acc = Local(names[x], self._kept_dims(x, bodies[x], dim), self.wide)
            nest = Nest(self, acc.dims)
            nest.line(
                f"{nest.at(acc)} *= op::{power_of(self.kernel, e)}({nest.at(before)} - op::finite({nest.at(own)}));"
            )
            nest.close()
        self._exchange([names[x] for x in sums], "sum", dim)

    def _early_loads(self) -> None:
        """Loads of results that wait for nothing are under way before a loop begins, where they hold few registers."""
        for store in self.kernel.stores:
            for e in _nest(store.value):
                small = e.op == "load" and e.axes <= self.top.bound and self.count(self.spans(e)) <= 8
                if small and all(a.op in ("const", "index") for a in e.args):
                    self.need(e)

    # ------------------------------------------------------------ results
    def store_all(self) -> None:
        """Every result, computed and written."""
        stores = self.kernel.stores
        if "n" in self.walked:
            late = [s for s in stores if {*s.value.axes, *s.at.axes} & set(self.shape.cols)]
            for s in late:  # all reductions first: the loop over columns only reads them
                for e in _nest(s.value):
                    if e.op == "reduce":
                        self.need(e)
            for s in stores:
                if s not in late:
                    self.write(s)
            if late:
                inner = Scope(2, self.top.bound | set(self.shape.cols), outside=self.top)
                with self.inside(inner):
                    for s in late:
                        self.write(s)
                self._walk("n", inner, self.top)
            return
        for s in stores:
            self.write(s)

    def write(self, store: Store) -> None:
        """One result."""
        value, buffer = store.value, self.kernel.buffers[store.buffer]
        for e in (value, *store.guards):
            self.need(e)
        axes = frozenset(store.at.axes).union(*(g.axes for g in store.guards))
        dims = self.dims(axes)
        if not set(self.spans(value)) <= set(dims):
            raise Unfusable("a result with more axes than its place")
        guarded = {d for g in store.guards for d in self.spans(g)}
        lanes = next((d for d in dims if d not in guarded and self.groups[d] and together(
            store.at, self.groups[d][-1], self.along[d].vector, _itemsize(buffer.dtype))), "")  # fmt: skip
        nest = Nest(self, dims, lanes, inner=lanes)
        ctype, target = CTYPES[buffer.dtype], self.param[store.buffer]
        place = nest.position(store.at, (), store.at.range[1], True)
        masks = [*nest.masks(dims), *(nest.scalar(g, nest.depth(self.spans(g))) for g in store.guards)]
        masks += [
            f"{_atom(self._lane(d))} == 0"
            for d in self.layout.dims
            if d not in dims and self.layout.dims[d].threads > 1
        ]
        if self.layout.threads > math.prod(a.threads for a in self.layout.dims.values()):
            masks.append(f"thread < {math.prod(a.threads for a in self.layout.dims.values())}")
        condition = f"if ({_all(masks)}) " if masks else ""
        text = nest.scalar(value, nest.deepest, dtype=buffer.dtype)
        if lanes:
            name = self.fresh("y")
            nest.before(f"Pack<{ctype}, {self.along[lanes].vector}> {name};")
            nest.line(f"{name}.at[{lanes}_v] = {text};")
            nest.after(f"{condition}write({target} + {place}, {name});")
        else:
            nest.line(f"{condition}{target}[{place}] = {text};")
        nest.close()

    def _lane(self, dim: str) -> str:
        stride, threads = self.layout.stride(dim), self.layout.dims[dim].threads
        text = f"thread / {stride}" if stride > 1 else "thread"
        return f"{text} % {threads}" if self.layout.threads > stride * threads else text

    # ------------------------------------------------------------ the function
    def launch(self, last: _Emitter | None = None) -> CudaLaunch:
        """The function's text and its grid. `last` is what the last block of each tile does after its part."""
        s = self.shape
        tiles = {d: 1 if d in self.walked else -(-self.extent[d] // self.along[d].block) for d in ("m", "n")}
        batch = math.prod(a.size for a in s.batch)
        head = Scope(1, set())
        with self.inside(head):
            self._program(tiles["m"], tiles["n"])
        if not self.walked:  # all loads are under way before the first value is waited for
            for e in self.kernel.exprs:
                if e.op == "load" and all(a.op in ("const", "index") for a in e.args):
                    moved = self.in_column(e)
                    if moved.axes <= self.top.bound:
                        self.need(moved)
        self.store_all()
        body = [*head.lines, *self.top.lines]
        buffers: dict[str, Buffer] = dict(self.kernel.buffers)
        if last is not None:
            body += last.as_last(tiles["m"] * tiles["n"] * batch, s.batch[0].size, self.counter, self.shared)
            self.shared = last.shared
            buffers |= last.kernel.buffers
        used = [n for n in buffers if any(re.search(rf"\b{self.param[n]}\b", line) for line in body)]
        args = [*used, *(["counters"] if last is not None else [])]
        if self.shared * (8 if self.wide == "float64" else 4) + self.ring_bytes > SHARED:
            raise Unfusable(f"{self.shared} values in shared memory")
        if tiles["m"] * tiles["n"] * batch >= 1 << 31:
            raise Unfusable("more blocks than a grid has")
        written = {x.buffer for x in (*self.kernel.stores, *(last.kernel.stores if last else ()))}
        parameters = [self._parameter(n, buffers[n], n in written, last is not None) for n in used]
        parameters += ["int* counters"] if last is not None else []
        shared = [f"    __shared__ {CTYPES[self.wide]} shared[{self.shared}];"] if self.shared else []
        early = ["    begin_next();", "    await_previous();"] if self.layout.early else []
        text = "\n".join([
            f'extern "C" __global__ void __launch_bounds__({self.layout.threads})', f"{self.name}({', '.join(parameters)}) {{",
            *early, *shared, *self.rings, *body, "}", "",
        ])  # fmt: skip
        return CudaLaunch(
            self.name, text, tiles["m"] * tiles["n"] * batch, self.layout.threads, tuple(args), self.layout.early
        )

    def _parameter(self, name: str, buffer: Buffer, written: bool, joined: bool) -> str:
        """Read-only memory may be cached where nothing tells of changes: not in a kernel that starts before they end."""
        plain = self.layout.early or name.startswith("part")
        return (
            f"{'' if written else 'const '}{CTYPES[buffer.dtype]}* {'' if plain else '__restrict__ '}{self.param[name]}"
        )

    def as_last(self, programs: int, parts: int, counter: int, shared: int) -> list[str]:
        """The lines that join a tile's parts, in the block that finds all others done."""
        if programs // parts > COUNTERS:
            raise Unfusable(f"{programs // parts} tiles to be joined")
        self.counter, self.shared, self.fresh_loads = counter, shared, True
        self.store_all()
        tile = f" + program % {programs // parts}" if programs > parts else ""
        own = [d for d in self.order if d not in ("m", "n", *self.walked) and self.along[d].threads > 1]
        return [
            f"    if (!is_last(counters{tile}, {parts})) return;",
            *(f"    const int {d}_0 = {self._thread(d)};" for d in own), *self.top.lines,
        ]  # fmt: skip

    def _program(self, tiles_m: int, tiles_n: int) -> None:
        s = self.shape
        batch = math.prod(a.size for a in s.batch)
        self.line("const int thread = threadIdx.x;")
        if tiles_m * tiles_n * batch > 1:
            self.line("const int program = blockIdx.x;")
        tile = "program"
        if batch > 1:
            first = "program"
            if tiles_m * tiles_n > 1:
                self.line(f"const int batch = program / {tiles_m * tiles_n}, tile = program % {tiles_m * tiles_n};")
                first, tile = "batch", "tile"
            step = 1
            for a in reversed(s.batch):
                text = f"{first} / {step}" if step > 1 else first
                self.line(f"const int {a.name} = {text}{'' if a is s.batch[0] else f' % {a.size}'};")
                step *= a.size
        place = {"m": "", "n": ""}
        if tiles_m > 1:
            place["m"] = f"{tile} / {tiles_n}" if tiles_n > 1 else tile
        if tiles_n > 1:
            place["n"] = f"{tile} % {tiles_n}" if tiles_m > 1 else tile
        for dim in self.order:
            if dim in self.walked or not self.groups[dim]:
                continue
            base = f"({place[dim]}) * {self.along[dim].block}" if place.get(dim, "") else ""
            base = re.sub(r"^\((\w+)\)", r"\1", base)
            own = self._thread(dim)
            text = " + ".join(x for x in (base, own) if x)
            if text:
                self.line(f"const int {dim}_0 = {text};")

    def number(self, value: float) -> str:
        """A float's text."""
        if not math.isfinite(value):
            infinite = "infinity()" if self.wide == "float32" else "double(infinity())"
            return f"{'-' if value < 0 else ''}{infinite}" if math.isinf(value) else f"({infinite} - {infinite})"
        return f"{float(value)!r}{'f' if self.wide == 'float32' else ''}"


class Nest:
    """A loop nest over what a thread holds along dimensions. Values that do not vary along the inner loops are computed
    outside them. `lanes` is the dimension whose vector is one value here; with `inner`, its lanes are the innermost loop."""

    def __init__(self, emitter: _Emitter, dims: Iterable[str], lanes: str = "", inner: str = "") -> None:
        self.emitter, self.lanes = emitter, lanes
        self.dims = tuple(dims)
        self.loops = emitter.loops(self.dims, lanes)
        self.inner = inner
        if inner:
            self.loops.append((f"{inner}_v", inner, emitter.along[inner].vector))
        self.deepest = len(self.loops)
        self.lines: list[list[str]] = [[] for _ in range(self.deepest + 1)]
        self.ends: list[str] = []
        self.known: dict[Expr, str] = {}
        self.places: dict[tuple[str, bool], str] = {}
        self.uses: dict[Expr, int] = {}

    # ------------------------------------------------------------ lines
    def depth(self, dims: Iterable[str]) -> int:
        """How many loops are around what varies along dimensions."""
        there = set(dims)
        return max((i + 1 for i, (_, d, _) in enumerate(self.loops) if d in there), default=0)

    def line(self, text: str) -> None:
        """A statement of the innermost loop."""
        self.lines[self.deepest].append(text)

    def before(self, text: str) -> None:
        """A statement ahead of the innermost loop."""
        self.lines[self.deepest - 1].append(text)

    def after(self, text: str) -> None:
        """A statement behind the innermost loop."""
        self.ends.append(text)

    def close(self) -> None:
        """Write the nest into the emitter's scope."""
        line = self.emitter.line
        for depth in range(self.deepest + 1):
            if depth:
                name, _, count = self.loops[depth - 1]
                line("    " * (depth - 1) + "#pragma unroll")
                line("    " * (depth - 1) + f"for (int {name} = 0; {name} < {count}; ++{name}) {{")
            for text in self.lines[depth]:
                line("    " * depth + text)
        for depth in range(self.deepest, 0, -1):
            line("    " * (depth - 1) + "}")
            if depth == self.deepest:
                for text in self.ends:
                    line("    " * (depth - 1) + text)

    # ------------------------------------------------------------ places
    def coordinate(self, dim: str, start: bool = False) -> str:
        """The element of a dimension at this point of the nest; with `start`, the first one of its vector."""
        e, along = self.emitter, self.emitter.along[dim]
        terms = [f"{dim}_0"] if along.threads > 1 or dim in e.walked or self._tiled(dim) else []
        if along.repeat > 1:
            step = along.threads * along.vector
            terms.append(f"{dim}_i * {step}" if step > 1 else f"{dim}_i")
        deep = along.vector > 1 and not start and not (dim == self.lanes and not self.inner)
        if deep:
            terms.append(f"{dim}_v")
        if len(terms) < 2:
            return "".join(terms) or "0"
        if (dim, deep) not in self.places:
            loops = (f"{dim}_i", f"{dim}_v") if deep else (f"{dim}_i",)
            level = max((i + 1 for i, (name, *_) in enumerate(self.loops) if name in loops), default=0)
            name = dim if deep or along.vector == 1 else f"{dim}_1"
            self.lines[level].append(f"const int {name} = {' + '.join(terms)};")
            self.places[dim, deep] = name
        return self.places[dim, deep]

    def _tiled(self, dim: str) -> bool:
        e = self.emitter
        return dim in ("m", "n") and dim not in e.walked and e.extent[dim] > e.along[dim].block

    def axis(self, axis: Axis, start: bool = False) -> str:
        """The text of an axis' value."""
        e = self.emitter
        if axis in e.shape.batch:
            return axis.name
        if axis in e.columns:
            (axis,) = e.columns[axis].axes
        dim = e.dim_of[axis]
        group = e.groups[dim]
        text = self.coordinate(dim, start and dim == self.lanes)
        if len(group) == 1:
            return text
        step = math.prod(a.size for a in group[group.index(axis) + 1 :])
        text = f"{text} / {step}" if step > 1 else text
        return f"({text})" if axis is group[0] else f"({text} % {axis.size})"

    def position(self, at: Index, picks: Sequence[tuple[Expr, int]], span: int, start: bool = False) -> str:
        """An index' text, with data-dependent parts; with `start`, at the first element of the vector."""
        terms = []
        for atom, c in at.terms:
            inner = self.axis(atom, start) if isinstance(atom, Axis) else (
                f"({self.position(atom.index, (), atom.index.range[1], start)}) {'%' if atom.rest else '/'} {atom.by}")  # fmt: skip
            inner = _atom(inner)
            factor = f"{c}LL" if span >= WIDE else str(c)
            terms.append(inner if c == 1 and span < WIDE else f"{inner} * {factor}")
        for e, step in picks:
            terms.append(f"(long long){_atom(self.scalar(e, self.depth(self.emitter.spans(e))))} * {step}")
        if at.const or not terms:
            terms.append(str(at.const))
        return " + ".join(terms).replace("+ -", "- ")

    def mask(self, dim: str) -> str:
        """The condition that this element of a dimension is there; with it, all neighbours in one thread are."""
        e = self.emitter
        whole = e.groups[dim][-1].size % e.along[dim].vector == 0 if e.groups[dim] else True
        return f"{self.coordinate(dim, whole)} < {e.extent[dim]}"

    def masks(self, dims: Iterable[str]) -> list[str]:
        """The conditions that the element is there, along ragged dimensions."""
        return [self.mask(d) for d in dims if self.emitter.ragged(d)]

    # ------------------------------------------------------------ values
    def at(self, local: Local, whole_vector: bool = False) -> str:
        """The element of a value in registers at this point of the nest."""
        e = self.emitter
        text = local.name
        if e.count(local.dims, local.lanes) > 1 or not (local.lanes or whole_vector or local.name.startswith("v")):
            text = f"{text}[{self.slot(local)}]"
        if local.lanes and not whole_vector:
            text = f"{text}.at[{local.lanes}_v]"
        return text

    def slot(self, local: Local) -> str:
        """The position of an element, or a vector, among those that a thread holds."""
        loops = self.emitter.loops(local.dims, local.lanes)
        step, terms = math.prod(n for *_, n in loops), []
        for name, _, n in loops:
            step //= n
            terms.append(f"{name} * {step}" if step > 1 else name)
        return " + ".join(terms) or "0"

    def scalar(self, e: Expr, at: int, dtype: str = "") -> str:
        """The text of an expression used inside `at` loops; for a result of a dtype, converted to it."""
        if not self.uses:
            self._count(e)
        if dtype:
            return self._stored(e, at, dtype)
        if e in self.known:
            return self.known[e]
        own = self.emitter
        local = own.scope.find(e)
        if local is not None:
            text = self.at(local)
            if local.dtype in ("float16", "bfloat16"):
                text = f"wide({text})"
            if own.wide == "float64" and local.dtype in ("float16", "bfloat16", "float32"):
                text = f"double({text})"
            return self._named(e, text, at)
        if e.op == "const":
            return own.number(e.value) if e.kind == "float" else _integer(e.value)
        if e.op == "index":
            return self.position(e.value, (), e.value.range[1])
        if e.op in ("load", "reduce"):
            raise Unfusable(f"a {e.op} in another's loop")
        depth = self.depth(own.spans(e))
        return self._named(e, self._operation(e, depth), at)

    def _count(self, root: Expr) -> None:
        for x in _nest(root):
            for a in x.args:
                self.uses[a] = self.uses.get(a, 0) + 1

    def _stored(self, e: Expr, at: int, dtype: str) -> str:
        local = self.emitter.scope.find(e)
        if local is not None and local.dtype == dtype:
            return self.at(local)
        text = self.scalar(e, at)
        if e.kind == "float" and self.emitter.wide == "float64" and dtype in ("float16", "bfloat16"):
            text = f"float({text})"
        if e.kind != "float" and dtype in ("float16", "bfloat16"):
            text = f"float({text})"
        floats = e.kind == "float" or dtype in ("float16", "bfloat16")
        return f"stored<{CTYPES[dtype]}>({text})" if floats else f"{_spelled(CTYPES[dtype])}({text})"

    def _named(self, e: Expr, text: str, at: int) -> str:
        """The text itself where it is short and used once, in these loops; else a name for it, as far outside as it can be."""
        depth = self.depth(self.emitter.spans(e))
        plain = re.fullmatch(r"\w+(\[[\w *+]*\])?(\.at\[\w+\])?|-?[\d.e-]+f?", text) is not None
        if plain or (self.uses.get(e, 0) <= 1 and depth == at and len(text) < 60):
            self.known[e] = text
            return text
        name = self.emitter.fresh("t")
        self.lines[depth].append(f"const auto {name} = {text};")
        self.known[e] = name
        return name

    def _operation(self, e: Expr, depth: int) -> str:
        if (shifted := below_maximum(e)) is not None:
            a, m = shifted
            top = self.scalar(m, self.depth(self.emitter.spans(m)))
            if not self.emitter.is_safe(m):
                top = self._safe(m, top)
            return f"op::{e.op}({_atom(self.scalar(a, depth))} - {_atom(top)})"
        args = [self.scalar(a, depth) for a in e.args]
        if e.op == "erf" and self.emitter.narrow:
            return f"op::short_erf({args[0]})"
        if e.op == "cast":
            if e.value == "bool":
                return f"{_atom(args[0])} != 0"
            target = self.emitter.wide if e.kind == "float" else e.value
            return f"{_spelled(CTYPES[target])}({args[0]})"
        if e.op in _LOGIC:
            return _LOGIC[e.op][e.args[0].kind != "bool"].format(*map(_atom, args))
        text = _CALLS.get(e.op)
        if text is None or (e.kind != "float" and e.op in ("div", "pow", "recip", "sqrt", "rsqrt", "floor", "ceil")):
            raise Unfusable(f"{e.op} has no text")
        return text.format(*(args if text.startswith("op::") else map(_atom, args)))

    def _safe(self, m: Expr, top: str) -> str:
        level = self.depth(self.emitter.spans(m))
        key = f"op::finite({top})"
        for line in self.lines[level]:
            if line.endswith(f" = {key};"):
                return line.split()[2]
        name = self.emitter.fresh("safe")
        self.lines[level].append(f"const auto {name} = {key};")
        return name


# ---------------------------------------------------------------- small texts


def _nest(root: Expr) -> list[Expr]:
    """All expressions of one loop nest: reductions and loads are in it, what they read is not."""
    order: dict[Expr, None] = {}
    stack = [root]
    while stack:
        e = stack.pop()
        if e not in order:
            order[e] = None
            if e.op not in ("reduce", "load"):
                stack += reversed(e.args)
    return list(order)


def _rolled(e: Expr) -> Expr | None:
    return rolled(e, e.axis)


def _vanishes(body: Expr) -> bool:
    """Whether a body is 0 where loads beyond the end give 0: a product of loads and numbers."""
    over, under = factors(body)
    return not under and any(f.op == "load" for f in over) and all(f.op in ("load", "const") for f in over)


def _span(at: Index, steps: Sequence[int]) -> int:
    return max(abs(at.range[0]), at.range[1]) + sum(abs(s) for s in steps) * WIDE * bool(steps)


def _itemsize(dtype: str) -> int:
    from ..egraph import dtypes

    return dtypes.itemsize(dtype)


def _integer(value: int | bool) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return f"{value}LL" if abs(value) >= WIDE else str(value)


def _all(conditions: Sequence[str]) -> str:
    found = list(dict.fromkeys(conditions))
    return found[0] if len(found) == 1 else " && ".join(_atom(c) if "||" in c or "?" in c else c for c in found)


def _plus(text: str) -> str:
    return f" + {text}" if text else ""


def _spelled(ctype: str) -> str:
    return f"({ctype})" if " " in ctype else ctype


def _atom(text: str) -> str:
    """The text, in parentheses unless it is one word, element, number or call."""
    if re.fullmatch(r"[\d.]+e[-+]\d+f?|[\w.]+(\[[^\[\]]*\])?(\.at\[\w+\])?", text):
        return text
    head = re.match(r"[\w:<>]+\(", text)
    if head and text.endswith(")"):
        depth = 0
        for i, c in enumerate(text):
            depth += (c == "(") - (c == ")")
            if depth == 0 and i >= head.end() - 1:
                return text if i == len(text) - 1 else f"({text})"
    if text.startswith("("):
        depth = 0
        for i, c in enumerate(text):
            depth += (c == "(") - (c == ")")
            if depth == 0:
                return text if i == len(text) - 1 else f"({text})"
    return f"({text})"
