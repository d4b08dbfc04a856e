"""Emits loads of mma fragments in CUDA C++: vectors of 8 elements along K, from global memory straight into
registers."""

from __future__ import annotations

from collections.abc import Sequence

from ....egraph.types.dtypes import HALVES
from ...ir.expr import Expr, walk
from ...ir.unfusable import Unfusable
from .fragment_frame import FragmentFrame
from .frame import CudaPart, Local
from .loads import ThreadLoads
from .nest import ThreadNest
from .spelling import CTYPES, all_of, enclosed, span
from .thread_layout import is_uniform, stride_in_runs

FRAGMENT_DTYPES = (*HALVES, "uint8", "int8")  # of loads; bytes become 16-bit floats in registers


class FragmentLoads(CudaPart):
    """Emitter part for loads of mma fragments. `held`: load -> register variable with its vectors. `single`: loads of
    single elements."""

    frame: FragmentFrame

    def __init__(self, frame: FragmentFrame) -> None:
        super().__init__(frame)
        self.single = ThreadLoads(frame)
        self.held: dict[Expr, Local] = {}

    def read_whole(self, e: Expr) -> bool:
        """Whether the expression `e` can be loaded as vectors of 8 elements along K, each by a single load.

        A select between loads counts, if its condition is the same for all elements of a vector.
        """
        frame = self.frame
        if e.op == "where":
            c, *branches = e.args
            apart = all(x.op not in ("load", "reduce") for x in walk([c])) and is_uniform(
                c, frame.groups[frame.dim][0], 8
            )
            return apart and all(map(self.read_whole, branches)) and len({self.dtype(w) for w in branches}) == 1
        if e.op != "load" or e.value[2]:
            return False
        return self.repeated(e) or self.single.vectorized(e.value[1], frame.dim, e.value[3], e.args, ())

    def repeated(self, e: Expr) -> bool:
        """Whether the load `e`, which varies over columns, is constant along each vector of 8 elements of K, as the
        scale of a group of weights is."""
        axis, dims = self.frame.groups[self.frame.dim][0], self.frame.spans(e)
        among = self.frame.dim in dims and len(dims) > 1 and "m" not in dims
        return e.op == "load" and not e.args and among and stride_in_runs(e.value[1], axis, 8) == 0

    def dtype(self, e: Expr) -> str:
        """Storage dtype of `e`, a vector load or a select between vector loads."""
        return str(e.value[3]) if e.op == "load" else self.dtype(e.args[1])

    def sources(self, e: Expr) -> list[Expr]:
        """The vector loads from which the expression `e` is computed.

        Raises Unfusable if the expression contains other loads or reductions.
        """
        if self.read_whole(e):
            return [e]
        if e.op in ("load", "reduce"):
            raise Unfusable(f"a {e.op} that cannot be loaded as a fragment")
        return [x for a in e.args for x in self.sources(a)]

    def hold(self, dims: tuple[str, ...], dtype: str) -> Local:
        """Emit the declaration of registers for a load's vectors of 8 elements along K; returns the register variable.

        `dims`, `dtype`: dimensions that the load varies along, and the dtype that it reads. Raises Unfusable if K is
        not among the dimensions, for dtypes that fragments cannot have, or if too many registers are needed.
        """
        frame = self.frame
        if frame.dim not in dims or dtype not in FRAGMENT_DTYPES:
            raise Unfusable("a load without the K axis, or of a dtype that fragments do not have")
        local = Local(self.fresh("v"), dims, dtype, frame.dim)
        count = frame.count(dims, frame.dim)
        self.single.check_held(16 * count)
        self.line(f"Pack<{CTYPES[dtype]}, 8> {local.name}{f'[{count}]' if count > 1 else ''};")
        return local

    def hold_all(self, loads: Sequence[Expr]) -> None:
        """Emit the declarations of registers for all `loads`; from then on they are in `held`. Raises as `hold`."""
        self.held |= {x: self.hold(self.frame.spans(x), self.dtype(x)) for x in loads}

    def spot(self, local: Local, at: str) -> str:
        """CUDA expression of one vector of the register variable `local`; `at` is the expression of its index among the
        thread's vectors."""
        return f"{local.name}[{at}]" if self.frame.count(local.dims, local.lanes) > 1 else local.name

    def fill(self, nest: ThreadNest, e: Expr, condition: str = "") -> None:
        """Emit, inside the loop nest `nest`, the load of a vector of `e` into its register variable; `condition`: CUDA
        expression on which the load depends, "" for none.

        Loads of columns bypass L1, so that L1 keeps the rows. Out-of-bounds vectors are loaded from a valid address and
        zeroed by a select, because a branch would serialize the loads.
        """
        local = self.held[e]
        where, anywhere, conditions = self.source(nest, e)
        conditions = [*nest.masks(local.dims), *conditions]
        read = "read_once" if "n" in local.dims else "read"
        if self.repeated(e):
            text = f"repeat<8>({f'{all_of(conditions)} ? ' if conditions else ''}*({where}){f' : {CTYPES[local.dtype]}{{}}' if conditions else ''})"
            nest.line(f"{f'if ({condition}) ' if condition else ''}{self.spot(local, nest.slot(local))} = {text};")
            return
        text = f"{read}_if<8>({all_of(conditions)}, {where}, {anywhere})" if conditions else f"{read}<8>({where})"
        nest.line(f"{f'if ({condition}) ' if condition else ''}{self.spot(local, nest.slot(local))} = {text};")

    def source(self, nest: ThreadNest, e: Expr, known: frozenset[Expr] = frozenset()) -> tuple[str, str, list[str]]:
        """(address of a vector, an address that is always valid, bounds conditions of the vector).

        `known` conditions are left out.
        """
        frame = self.frame
        if e.op == "where":
            c, yes, no = e.args
            other = self.kernel.builder.make("not", (c,), None, "bool")
            branches = [self.source(nest, w, known | {k}) for w, k in ((yes, c), (no, other))]
            if any(conditions for *_, conditions in branches):
                raise Unfusable("a select between vectors that are loaded under conditions")
            chosen = enclosed(nest.scalar(c, nest.depth(frame.spans(c))))
            return f"{chosen} ? {branches[0][0]} : {branches[1][0]}", branches[0][1], []
        operand, at, _, _ = e.value
        where = f"{frame.param[operand]} + {nest.position(at, (), span(at, ()))}"
        conditions = [nest.scalar(g, nest.depth(frame.spans(g))) for g in e.args if g not in known]
        return where, frame.param[operand], conditions

    def read(self, loads: Sequence[Expr], condition: str = "") -> None:
        """Emit loop nests that load all vectors of `loads` into their register variables; `condition`: CUDA expression
        on which the loads depend, "" for none."""
        for dims in dict.fromkeys(self.held[x].dims for x in loads):
            nest = ThreadNest(self.frame, dims, self.frame.dim)
            for x in loads:
                if self.held[x].dims == dims:
                    self.fill(nest, x, condition)
            nest.close()
