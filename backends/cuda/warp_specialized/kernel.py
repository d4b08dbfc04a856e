"""Emits warp-specialized persistent GEMM in CUDA C++ for Hopper: one TMA producer warp group, two wgmma consumer warp
groups.

The producer loads tiles of both operands with TMA (tensor maps: ir/tensor_maps.py) into a ring in shared memory guarded
by mbarriers; the consumers multiply them with wgmma. In a cluster of two blocks each block loads half of the shared
operand and multicasts it. Blocks are persistent: each iterates over tiles. The consumers either share the rows of a
tile (cooperative) or alternate between tiles (ping-pong), so that the epilogue of one overlaps the mainloop of the
other. The epilogue (epilogue.py) is emitted in the thread layout of the wgmma accumulators, 64 columns at a time: each
thread holds two neighbouring elements of two rows in every 8 columns.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import prod

from ....egraph.types.dtypes import HALVES
from ...ir.expr import Expr
from ...ir.kernel import Kernel
from ...ir.source_text import words
from ...ir.tensor_maps import Box
from ...ir.tiling import Shape
from ...ir.unfusable import Unfusable, if_fusable
from ...machine import target
from ..emit.frame import CudaPart
from ..emit.spelling import CTYPES, CudaLaunch
from .device_library import COLUMNS, GROUP, GROUPS, PIECE, ROLE_LIBRARY, product_text
from .epilogue import GemmEpilogue
from .frame import GemmFrame
from .parameters import DEPTH, GemmSchedule
from .tensor_maps import TensorMaps

REGISTERS = 24, 240  # per thread of the producer and of the consumers (setmaxnreg)
THREADS = 128 * (1 + GROUPS)


@dataclass(frozen=True)
class GemmOperand:
    """Operand of a warp-specialized GEMM: name of its tensor map (TMA descriptor), its TMA box (the tile that one copy
    loads), and whether it is contiguous along K (`along`)."""

    name: str
    box: Box
    along: bool


def emit_gemm(kernel: Kernel, shape: Shape, schedule: GemmSchedule, name: str) -> CudaLaunch:
    """Emit the CUDA source of a warp-specialized GEMM in a schedule; returns its launch. `name`: of the emitted
    function; `shape`: roles of the kernel's axes (row, column, batch, reduction).

    Raises Unfusable unless its operands are plain 16-bit matrices that TMA can load.
    """
    return Gemm(GemmFrame(kernel, shape, schedule, name), schedule).launch()


def readable(frame: GemmFrame, schedule: GemmSchedule) -> bool:
    """Whether TMA can load the operands of the matrix product of the kernel of `frame`, in which nothing has been
    emitted yet, in tiles of the size that `schedule` says."""
    return if_fusable(Gemm, frame.with_tiles(schedule), schedule) is not None


class Gemm(CudaPart):
    """Emitter of a warp-specialized GEMM: its producer, its consumers' mainloop, and the function around these and the
    epilogue (epilogue.py).

    The constructor raises Unfusable for kernels and schedules that it cannot write (`emit_gemm`).
    """

    frame: GemmFrame

    def __init__(self, frame: GemmFrame, roles: GemmSchedule) -> None:
        super().__init__(frame)
        self.r, shape, kernel = roles, frame.shape, frame.kernel
        self.maps = TensorMaps(frame)
        self.dots = list(shape.dots)
        axes = {e.axis for e in self.dots}
        if shape.kind != "contraction" or len(axes) != 1 or {*kernel.reductions} != {*self.dots}:
            raise Unfusable("not a GEMM over one K axis without other reductions")
        (self.axis,) = axes
        lefts = {shape.dots[e].left for e in self.dots}
        if len(lefts) != 1 or not shape.rows or not shape.cols:
            raise Unfusable("products with different left operands, or without rows or columns")
        self.rights = list(dict.fromkeys(shape.dots[e].right for e in self.dots))
        if roles.n not in COLUMNS or roles.height % GROUP or not roles.store_buffers(len(self.rights)):
            raise Unfusable("tiles that consumer warp groups cannot divide, or that leave no shared memory for stores")
        if frame.tiles[0] % roles.down or frame.tiles[1] % roles.across:
            raise Unfusable("a number of tiles that the cluster's shape does not divide")
        if roles.parts > 1 and (
            roles.turns * roles.down * roles.across > 1 or -(-self.axis.size // DEPTH) < roles.parts
        ):
            raise Unfusable(
                "split-K with clusters that multicast operands or with ping-pong, or with more parts than K chunks"
            )
        if roles.joining(len(self.rights)) > roles.stages * roles.stage(len(self.rights)):
            raise Unfusable("partial results that exceed the shared memory of the stages")
        if any({*s.at.axes}.isdisjoint(side) for s in kernel.stores for side in (shape.rows, shape.cols)):
            raise Unfusable("an output that does not vary along both rows and columns")  # every tile of a row writes it
        (left,) = lefts
        self.dtype = self._read(left).value[3]
        self.left = self._side(left, "m", roles.across)
        self.right = [self._side(r, "n", roles.down) for r in self.rights]
        if roles.beside and (roles.n % (2 * GROUPS * 8) or (roles.wide % PIECE and not self.right[0].along)):
            raise Unfusable("columns that two consumer warp groups cannot divide")
        if len({s.along for s in self.right}) > 1 or any(self._read(r).value[3] != self.dtype for r in self.rights):
            raise Unfusable("right operands with different layouts or dtypes")

    def _read(self, side: Sequence[Expr]) -> Expr:
        """The load that is an operand of a product. Raises Unfusable if the operand is no plain 16-bit matrix."""
        if len(side) != 1 or side[0].op != "load" or side[0].args or side[0].value[3] not in HALVES:
            raise Unfusable("a GEMM operand that is not a 16-bit load")
        return side[0]

    def _side(self, side: Sequence[Expr], dim: str, shared: int) -> GemmOperand:
        """An operand of a product as a TMA box, with its tensor map.

        Each of the `shared` blocks of a cluster that share the operand loads a part of the box.
        """
        frame = self.frame
        e, inner = self._read(side), self.axis.name
        found = self.maps.box(e.value[1], e.value[3], {dim: f"at.{dim}", inner: "k"})
        if found is None:
            raise Unfusable("a GEMM operand that TMA cannot load")
        whole, fast = found
        along = fast == inner
        size = frame.tile[dim] // shared if shared > 1 else min(frame.tile[dim], frame.extent[dim])
        block = (size, DEPTH) if along else (DEPTH // shared, PIECE)
        return GemmOperand(self.maps.parameter(e.value[0], replace(whole, block=block)), whole, along)

    def _brought(self) -> int:
        """Bytes that TMA transfers per stage (the mbarrier's expected bytes).

        TMA clips the rows of an operand contiguous along K.
        """
        frame = self.frame
        sides = [(self.left, "m", self.r.across), *((s, "n", self.r.down) for s in self.right)]
        rows = (
            (min(frame.tile[d], frame.extent[d]) if shared == 1 else frame.tile[d]) if s.along
            else -(-frame.tile[d] // PIECE) * PIECE for s, d, shared in sides
        )  # fmt: skip
        return 2 * DEPTH * sum(rows)

    def launch(self) -> CudaLaunch:
        """Emit the whole CUDA function; returns its launch, with its tensor maps (TMA descriptors) and its grid."""
        frame, r = self.frame, self.r
        count = prod(frame.tiles) // (r.down * r.across) * prod(a.size for a in self.shape.batch)
        clusters = min(count, target().multiprocessors // r.blocks) if r.parts == 1 else count
        products = {e: self.rights.index(self.shape.dots[e].right) for e in self.dots}
        epilogue = GemmEpilogue(frame, r, products, self.axis, self.maps)
        self.early = epilogue.prefetch()
        lines = epilogue.results()
        walk = [
            f"for (int tile = roles.first(); tile < {count}; tile += {clusters}) {{",
            f"    const Spot at = roles.spot<{frame.tiles[0]}, {frame.tiles[1]}, {r.group}, {frame.last['m']}, {frame.last['n']}>(tile);",
            *("    " + line for line in self._batch()),
        ]
        body = ["    " + line for line in self._body(self._copying(walk), self._multiplying(walk, lines))]
        written = {x.buffer for x in self.kernel.stores}
        mentioned = words("\n".join(body), members=False)
        used = [n for n in self.kernel.buffers if frame.param[n] in mentioned]
        parameters = [frame.parameter(n, self.kernel.buffers[n], n in written) for n in used]
        parameters += [f"DESCRIBED {name}" for name in self.maps.names.values()]
        together = f" __cluster_dims__({r.blocks}, 1, 1)" if r.blocks > 1 else ""
        head = f'extern "C" __global__ void __launch_bounds__({THREADS}, 1){together}'
        function = [head, f"{frame.name}({', '.join(parameters)}) {{", *body, "}", ""]
        boxes = tuple((operand, b.shape, b.block, b.strides[0] if b.strides else 0) for operand, b in self.maps.names)
        rights = len(self.rights)
        shared_bytes = 1024 + r.stages * r.stage(rights) + 16 * r.stages + 8 * GROUPS
        shared_bytes += r.store_buffers(rights) * GROUPS * r.height * 2 * PIECE
        beside = {
            "CUDA_ROLES": ROLE_LIBRARY,
            f"CUDA_ROLES_{r.instruction_columns(rights)}": product_text(r.instruction_columns(rights)),
        }
        return CudaLaunch(
            frame.name,
            "\n".join(function),
            clusters * r.blocks,
            THREADS,
            tuple(used),
            r.early,
            shared_bytes,
            boxes,
            beside,
        )

    @property
    def _depths(self) -> int:
        """Pipeline stages over all of K."""
        return -(-self.axis.size // DEPTH)

    def _copying(self, walk: Sequence[str]) -> list[str]:
        """Code of the producer: the TMA loads of all tiles, in the loop header `walk`."""
        r, first, last = self.r, "0", str(self.axis.size)
        if r.parts > 1:
            first, last = f"{DEPTH} * roles.part({self._depths})", f"{DEPTH} * roles.part({self._depths}, 1)"
        rights = [
            f"roles.right<{i}>({side.name}, {side.box.origin[1]}, {side.box.origin[0]});"
            for i, side in enumerate(self.right)
        ]
        return [
            *walk,
            f"    for (int k = {first}; k < {last}; k += {DEPTH}, roles.next()) {{",
            f"        roles.begin_stage({self._brought()});",
            f"        roles.left({self.left.name}, {self.left.box.origin[1]}, {self.left.box.origin[0]});",
            *("        " + line for line in rights),
            "    }",
            "}",
            *(["roles.end_stages();"] if r.down * r.across > 1 else []),
        ]

    def _multiplying(self, walk: Sequence[str], results: Sequence[str]) -> list[str]:
        """Code of the consumers: products in the loop header `walk`, then the epilogue `results`."""
        own, stages = str(self._depths), self._depths
        if self.r.parts > 1:
            own = f"roles.part({stages}, 1) - roles.part({stages})"
        turns = [f"    if (!roles.mine({stages})) continue;"] if self.r.turns > 1 else []
        return [*walk, *turns, *self.early, f"    roles.multiply(sums, {own});", *results, "}"]

    def _body(self, copying: Sequence[str], multiplying: Sequence[str]) -> list[str]:
        """The function's body around its producer and consumer code."""
        r, rights = self.r, len(self.rights)
        few, many = REGISTERS
        numbers = (
            CTYPES[self.dtype], r.m, r.n, rights, _truth(r.turns > 1), r.down, r.across, r.parts, r.stages,
            _truth(self.left.along), _truth(self.right[0].along), r.store_buffers(rights),
        )  # fmt: skip
        return [
            "ROOM(float, room);",
            f"Roles<{', '.join(map(str, numbers))}> roles(room);",
            *(["begin_next();", "await_previous();"] if r.early else []),
            "if (roles.group == 0) {",
            f"    fewer_registers<{few}>();",
            "    if (threadIdx.x == 0) {",
            *("        " + line for line in copying),
            "    }",
            *(["    roles.all_multiplied();"] if r.parts > 1 else []),
            "} else {",
            f"    more_registers<{many}>();",
            f"    float sums[{r.height // GROUP}][{rights * -(-r.wide // PIECE)}][32];",
            *("    " + line for line in multiplying),
            "    roles.end_results();",
            "}",
            "roles.leave();",
        ]

    def _batch(self) -> list[str]:
        """Code that derives the values of batch axes."""
        found, step = [], 1
        for a in reversed(self.shape.batch):
            text = f"at.batch / {step}" if step > 1 else "at.batch"
            found.append(f"const int {a.name} = {text}{'' if a is self.shape.batch[0] else f' % {a.size}'};")
            step *= a.size
        return found


def _truth(value: bool) -> str:
    return str(value).lower()
