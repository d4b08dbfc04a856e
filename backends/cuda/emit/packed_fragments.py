"""Emits a skinny GEMM (few rows) with quantized weights in CUDA C++: 16 bytes of codes (stored numbers) per load,
converted two at a time in registers.

A thread holds 16 bytes of codes of one weight column (16 or 32 numbers, contiguous along K) and the elements of the
left operand's rows at the same K, as mma fragment vectors of 8. Conversions are functions of cuda_library.cuh
(code_forms.py says which). A scale or zero point that is the same for all numbers of such 16 bytes is applied to the
converted pairs. Scales and zero points of 4-bit codes that are the same for all numbers that four neighbouring threads
hold (a group of 128) are applied to the sums of products instead: an offset (constant of the encoding minus zero point)
times the sum of the row's elements is added, then the scale multiplied.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from ....egraph.types.dtypes import HALVES
from ...ir.expr import Expr, factors
from ...ir.index import Axis
from ...ir.unfusable import Unfusable
from .code_ring import CodeRing
from .code_tiles import CodeTiles
from .fragment_frame import CHUNK, HEIGHT, WIDTH
from .fragments import Fragments, PartialSums, refusal
from .frame import Local
from .nest import ThreadNest
from .packed_sides import PackedSide, bare_factors, packed_side
from .spelling import CTYPES, all_of, enclosed, span, sum_of


class PackedFragments(Fragments):
    """Emitter part for the main loop of skinny GEMM with quantized weights: products of rows and converted codes.

    `ring`: ring buffer in shared memory if operands are copied ahead (code_ring.py), else None; `ring_rows`: loads of
    rows that go through it. `loaded`: loads of codes, scales and zero points into registers. `chains`: number of
    accumulators of the sum over a group, because dependent mma instructions wait for each other. `alone`: reductions
    along K that do not depend on columns, which the whole block computes; `between` emits them, between the first loads
    and the loop.
    """

    between: Callable[[], None] = staticmethod(lambda: None)

    def _operands(self, axis: Axis) -> None:
        frame, dots = self.frame, self.shape.dots
        ready = [e for e in self.kernel.reductions if e.axis == axis]
        if (reason := refusal(self.kernel, axis)) or frame.wide != "float32":
            raise Unfusable(reason or "a product in float64")
        if (
            frame.extent["m"] > 2 * HEIGHT
            or frame.size % frame.span
            or (frame.warps.depth, frame.warps.tiles % 2) != (1, 0)
        ):
            raise Unfusable("too many rows for fragments, or a K or tile count that vectors of codes do not divide")
        self.dots = [e for e in ready if e in dots and self._sides(dots[e])]
        beside = [e for e in ready if e not in self.dots]
        self.alone = [e for e in beside if frame.spans(e.args[0]) == (frame.dim,)]
        self.sums = [e for e in beside if e not in self.alone]
        self.packed: dict[Expr, PackedSide] = {}
        for e in self.dots:
            side = packed_side(self.kernel, dots[e], axis)
            if side is None or set(frame.spans(side.form.load)) != {"n", frame.dim}:
                raise Unfusable("a product without a packed weight")
            self.packed[e] = side
        self.grouped = [e for e in self.dots if self.packed[e].grouped(axis)]
        b = self.kernel.builder
        self.left = {e: b.product([f for f in dots[e].left if f not in bare_factors(dots[e])], ()) for e in self.dots}
        self.right = {e: b.product(dots[e].right, ()) for e in self.dots}
        rows = (*self.left.values(), *(e.args[0] for e in self.sums))
        self.lefts = list(dict.fromkeys(x for body in rows for x in self.vectors.sources(body)))
        self.rights = []
        if not self.dots or any("n" in frame.spans(x) for x in self.lefts):
            raise Unfusable("a left operand that varies along columns")
        self.squares = {e: two for e in self.sums if (two := self._rows(e)) is not None}
        self.names = {}
        self.codes = {x: self.fresh("code") for x in dict.fromkeys(s.form.load for s in self.packed.values())}
        self.values = {
            x: self.fresh("factor") for x in dict.fromkeys(x for s in self.packed.values() for x in s.values)
        }
        self.tile = CodeTiles(frame)
        self.ring = self._ring() if frame.warps.ahead else None
        self.ring_rows = self.ring.rows if self.ring is not None else []
        in_ring = {*self.ring.codes, *self.ring.values} if self.ring is not None else set()
        self.loaded_codes = {x: name for x, name in self.codes.items() if x not in in_ring}
        self.loaded_values = {x: name for x, name in self.values.items() if x not in in_ring}
        self.loaded = {**self.loaded_codes, **self.loaded_values}
        apart = self.octets * len(self.grouped) * min(2, frame.warps.tiles // 2)
        self.chains = 2 if self.ring is not None and (apart < 4 or not frame.warps.joint) else 1

    def _ring(self) -> CodeRing:
        """The ring of codes, scales and rows. Raises Unfusable if the prefetch distance leaves no iteration, or if
        nothing can be copied."""
        frame, warps = self.frame, self.frame.warps
        if warps.ahead * frame.step >= frame.size:
            raise Unfusable("a prefetch distance beyond the end of K")
        near = self.grouped == self.dots and all(x.value[3] in HALVES for x in self.values)
        whole = all(x.op == "load" and not x.args and self.vectors.dtype(x) in HALVES for x in self.lefts)
        ring = CodeRing(
            frame,
            self.tile,
            {} if warps.direct else self.codes,
            self.values if near else {},
            self.lefts if whole else [],
        )
        if not ring.slots:
            raise Unfusable("nothing that a ring may hold")
        return ring

    def _coordinates(self) -> None:
        frame, warps = self.frame, self.frame.warps
        base = f"{enclosed(frame.place['n'])} * {frame.block} + " if frame.place["n"] else ""
        across = f"thread / 32 % {warps.across} * {warps.tiles * WIDTH} + " if warps.across > 1 else ""
        chunk = CHUNK // WIDTH * frame.span
        self.line("const int m_0 = thread / 4 % 8;")
        self.line(f"const int n_0 = {base}{across}thread / 4 % 8;")
        self.line(f"const int own = thread / {32 * warps.across} * {chunk} + thread % 4 * {frame.span};")
        if self.ring is not None:
            self.ring.coordinates()

    def stage(self) -> list[str]:
        """Emit coordinates, accumulators, the first loads and the loop over K. Returns the lines of the outermost
        scope.

        The first codes, scales and zero points are loaded before the wait for the previous kernel if they are weights.
        """
        frame = self.frame
        self._coordinates()
        for e in (*self.dots, *self.sums):
            self._accumulator(e)
        early = all(map(frame.before_wait, (*self.codes, *self.values)))
        with self.inside(frame.ahead if early else frame.top):
            for name in self.loaded_codes.values():
                self.line(f"Pack<unsigned char, 16> {name}[{frame.warps.tiles}];")
            for x, name in self.values.items():
                self.line(f"{CTYPES[x.value[3]]} {name}[{frame.warps.tiles}];")
                frame.top.known[x] = Local(name, ("n",), str(x.value[3]))
            if early:
                self._at_first(lambda: self._first(weights=True, rows=False), apart=True)
        self.vectors.hold_all(self.lefts)
        frame.top.known |= self.vectors.held
        self._at_first(lambda: self._first(weights=not early, rows=True))
        self.between()
        if self.ring is not None:
            self.line("int round = 0;")
        self._walk_sum()
        if self.ring is not None:
            self.line("__syncthreads();")  # partial sums lie in the ring
        return frame.top.lines

    def _first(self, *, weights: bool, rows: bool) -> None:
        """Emit the loads before the loop: of codes, scales and zero points (`weights`), and of rows."""
        if weights and self.loaded:
            self.tile.each(lambda: self._fetch(""))
        if rows and not self.ring_rows:
            self.vectors.read(self.lefts)
        if self.ring is not None:
            self.ring.first(weights=weights, rows=rows)

    def _fetch(self, condition: str) -> None:
        """Emit the loads of a tile's codes, scales and zero points, predicated by `condition` if there is one."""
        frame = self.frame
        nest = self.tile.single()
        conditions = nest.masks(("n", frame.dim))
        when = f"if ({condition}) " if condition else ""
        for x, name in self.loaded_codes.items():
            where, first = self.tile.address(nest, x)
            read = (
                f"read_once_if<16>({all_of(conditions)}, {where}, {first})" if conditions else f"read_once<16>({where})"
            )
            nest.line(f"{when}{name}[n_i] = {read};")
        for x, name in self.loaded_values.items():
            operand, at, _, dtype = x.value
            text = f"{frame.param[operand]}[{nest.position(at, (), span(at, ()))}]"
            ctype = CTYPES[dtype]
            text = f"{all_of(conditions)} ? {text} : {ctype}{{}}" if conditions else text
            nest.line(f"{when}{name}[n_i] = {text};")
        nest.close()

    def _iteration(self, whole: bool) -> None:
        """Emit one step of the loop over K, or all of K if `whole`: codes are converted and multiplied, and those of
        the next iteration loaded."""
        if self.ring is not None:
            self.ring.next_iteration()
            self._read_rows()
        sides = {self.left[e]: self._pack(self.left[e]) for e in self.dots}
        self._accumulate_sums()
        self.row_sums = {x: self._row_sums(sides[x]) for x in dict.fromkeys(self.left[e] for e in self.grouped)}
        if not whole:
            self._more()
        self.line("#pragma unroll")
        self.line(f"for (int pair = 0; pair < {self.frame.warps.tiles}; pair += 2) {{")
        self._pair(sides, whole)
        self.line("}")
        if not whole and not self.ring_rows:
            self.line("{")
            self._next_position()
            self.vectors.read(self.lefts, "more")
            self.line("}")
        if self.ring is not None:
            self.line(f"round = round == {self.ring.sections - 1} ? 0 : round + 1;")

    def _read_rows(self) -> None:
        """Emit the reads of rows from the ring."""
        assert self.ring is not None
        for x in self.ring_rows:
            local = self.vectors.held[x]
            nest = ThreadNest(self.frame, local.dims, self.frame.dim)
            self.ring.read_rows(x, local, self.vectors.spot(local, nest.slot(local)), nest)
            nest.close()

    def _pair(self, sides: dict[Expr, Local], whole: bool) -> None:
        """Emit the work on two tiles of columns: conversion, the loads of the next iteration, products.

        The product is transposed: mma's 16 rows are 16 columns of the weights and its 8 columns are 8 rows. No
        result is computed twice, and converted codes are already in the registers that mma reads.
        """
        frame = self.frame
        vectors = frame.span // WIDTH
        names: dict[Expr, str] = {}
        groups = {e: self.fresh("group") for e in self.grouped}
        for e in self.dots:
            left = sides[self.left[e]]
            if left.dims not in (("m", frame.dim), (frame.dim,)) or left.dtype not in HALVES:
                raise Unfusable("a left operand in a layout or dtype that tensor cores do not support")
            names[e] = self.fresh("w")
            self.line(f"Pack<{CTYPES[left.dtype]}, 8> {names[e]}[2][{vectors}];")
        joint = frame.warps.joint
        zeros = "" if joint and self.chains == 1 else " = {}"
        for group in groups.values():
            self.line(f"float {group}[{self.chains * self.octets}][4]{zeros}, {group}_offset[2], {group}_scale[2];")
        self.tile.each(lambda: self._convert(names, groups, sides, whole), "pair")
        for e, group in groups.items() if joint else ():
            for h in range(self.octets):
                self.line(f"begin_group({group}[{h}], {self.row_sums[self.left[e]]}[{h}], {group}_offset);")
        self.line("#pragma unroll")
        self.line(f"for (int {frame.dim}_i = 0; {frame.dim}_i < {vectors}; ++{frame.dim}_i) {{")
        for e, name in names.items():
            left = sides[self.left[e]]
            for h in range(self.octets):
                place = f"{groups[e]}[{self._chain(h)}]" if e in groups else self._sums_of(e, h)
                row = self._row(left, h)
                self.line(f"multiply({place}, {name}[0][{frame.dim}_i], {name}[1][{frame.dim}_i], {row});")
        self.line("}")
        for e, group in groups.items():
            rows = self.row_sums[self.left[e]]
            self._join_chains(group)
            for h in range(self.octets):
                to = self._sums_of(e, h)
                self.line(
                    f"end_group({to}, {group}[{h}], {group}_scale);" if joint
                    else f"add_group({to}, {group}[{h}], {rows}[{h}], {group}_offset, {group}_scale);"
                )  # fmt: skip

    def _sums_of(self, e: Expr, octet: int) -> str:
        """Text of the accumulator of a pair of column tiles and the 8 rows with index `octet`."""
        return f"{self.names[e].name}[{sum_of('pair / 2', octet * self.frame.warps.tiles // 2)}]"

    def _row(self, left: Local, octet: int) -> str:
        """Text of the vector of the 8 rows with index `octet`, inside the loop over a thread's vectors along K."""
        frame = self.frame
        return f"{left.name}[{sum_of(f'{frame.dim}_i', octet * frame.span // WIDTH if 'm' in left.dims else 0)}]"

    def _row_sums(self, left: Local) -> str:
        """Emit the sums of the rows over one group; returns the name of the array."""
        frame, name = self.frame, self.fresh("rows")
        joint, to = frame.warps.joint, self.fresh("sums") if frame.warps.joint else name
        self.line(f"float {to}[{self.chains * self.octets}][4] = {{}};")
        self.line("#pragma unroll")
        self.line(f"for (int {frame.dim}_i = 0; {frame.dim}_i < {frame.span // WIDTH}; ++{frame.dim}_i) {{")
        for h in range(self.octets):
            self.line(f"{'sum_octet' if joint else 'sum_rows'}({to}[{self._chain(h)}], {self._row(left, h)});")
        self.line("}")
        self._join_chains(to)
        if joint:
            self.line(f"float {name}[{self.octets}][4];")
            for h in range(self.octets):
                self.line(f"spread_sums({name}[{h}], {to}[{h}]);")
        return name

    def _chain(self, octet: int) -> str:
        """Text of the index of an accumulator of a group, inside the loop over a thread's vectors along K."""
        return sum_of(f"{self.frame.dim}_i % {self.chains} * {self.octets}", octet) if self.chains > 1 else str(octet)

    def _join_chains(self, name: str) -> None:
        """Emit the sum of the accumulators of a group, into the first one."""
        for h in range(self.octets if self.chains > 1 else 0):
            self.line(f"add_sums({name}[{h}], {name}[{h + self.octets}]);")

    @property
    def octets(self) -> int:
        """Number of groups of 8 rows that cover the rows of the product, at least 1."""
        return -(-max(1, self.frame.extent["m"]) // WIDTH)

    def _convert(
        self, names: Mapping[Expr, str], groups: Mapping[Expr, str], sides: Mapping[Expr, Local], whole: bool
    ) -> None:
        """Emit the conversion of a tile's codes, and the loads of the next iteration."""
        if self.ring is not None:
            self.ring.read_tile()
        for e, name in names.items():
            side, own = self.packed[e], f"{name}[n_i % 2]"
            if e in groups:
                self._convert_bare(side, own, groups[e], sides[self.left[e]].dtype)
                continue
            self.line(f"{side.form.name}({own}, {self._code(side.form.load)}, {side.form.offset}f);")
            self._apply("moved", own, side.zero, minus=True)
            self._apply("scaled", own, side.scale)
        if not whole and self.loaded:
            self.line("{")
            self._next_position()
            self._fetch("more")
            self.line("}")

    def _code(self, x: Expr) -> str:
        """Text of the register value with a tile's vector of codes."""
        return f"{self.codes[x]}[n_i]" if x in self.loaded_codes else self.codes[x]

    def _pack(self, e: Expr, other: str = "") -> Local:
        """Register value of an operand of a product as 16-bit vectors: as loaded, or computed from loaded vectors; a
        product of two vectors, such as a row times the gain of a norm, two elements at a time."""
        over, under = factors(e)
        held = [self.vectors.held[f] for f in over if f in self.vectors.held]
        if under or len(over) != 2 or len(held) != 2 or len({x.dtype for x in held} | {*HALVES}) > len(HALVES):
            return super()._pack(e, other)
        if held[0].dtype != held[1].dtype:
            return super()._pack(e, other)
        local = self.vectors.hold(self.frame.spans(e), held[0].dtype)
        nest = ThreadNest(self.frame, local.dims, self.frame.dim)
        to, *parts = (self.vectors.spot(x, nest.slot(x)) for x in (local, *held))
        nest.line(f"multiply_pairs({to}, {', '.join(parts)});")
        nest.close()
        return local

    def _convert_bare(self, side: PackedSide, vectors: str, group: str, dtype: str) -> None:
        """Emit the conversion of codes without offset and scale, and the variables with the offset and the scale of the
        tile's column."""
        nest = self.tile.single()
        zero = f" - {enclosed(nest.scalar(side.zero, 0))}" if side.zero is not None else ""
        scale = nest.scalar(side.scale, 0) if side.scale is not None else "1.0f"
        nest.line(f"bare_nibbles({vectors}, {self._code(side.form.load)});")
        nest.line(f"{group}_offset[n_i % 2] = {side.form.offset}f - bare_base<{CTYPES[dtype]}>{zero};")
        nest.line(f"{group}_scale[n_i % 2] = {scale};")
        nest.close()

    def _accumulator(self, e: Expr) -> None:
        if e not in self.dots:
            super()._accumulator(e)
            return
        self.names[e] = Local(self.fresh("acc"), ("m", "n"), "float32")
        self.line(f"float {self.names[e].name}[{self.octets * self.frame.warps.tiles // 2}][4] = {{}};")

    def put(self, e: Expr, first: int) -> PartialSums:
        """Emit the store of a warp's partial sums of the reduction `e` to shared memory, beginning at element `first`;
        returns where they are."""
        if e not in self.dots:
            return super().put(e, first)
        frame, warps = self.frame, self.frame.warps
        row, rows = warps.tiles * WIDTH * warps.across + 8, frame.heights * HEIGHT
        place = f"{sum_of('shared', first)} + thread / {32 * warps.across} * {rows * row}"
        place += f" + thread / 32 % {warps.across} * {warps.tiles * WIDTH}" if warps.across > 1 else ""
        self.line(f"put_columns<{row}, {warps.tiles // 2}>({place}, {self.names[e].name});")
        return PartialSums(first, row, rows * row)

    def _apply(self, function: str, vectors: str, e: Expr | None, minus: bool = False) -> None:
        """Emit a call of `function` (`moved` adds, `scaled` multiplies) that applies one value, negated with `minus`,
        to converted numbers."""
        if e is None:
            return
        nest = self.tile.single()
        value = nest.scalar(e, 0)
        nest.line(f"{function}({vectors}, {'-' if minus else ''}{enclosed(value)});")
        nest.close()

    def warmed(self) -> list[str]:
        """CUDA statements that prefetch the matrices into L2 (`Fragments.warmed`): none, since quantized codes are few
        bytes."""
        return []


__all__ = ["PackedFragments"]
