"""Defines the CUDA C++ backend: generated kernels (generate/template.py), compiled by NVRTC through cuda-core."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from ...egraph.ir.tensor import Tensor, topological
from ...extract.model.kernel import Call, Template
from ..generate.call_code import CARRYING, COUNTING
from ..generate.emitter import Launch, Lowered, split_axis
from ..generate.generator import GpuGenerator
from ..generate.strategy import Strategy, StrategyEmitter, ask_if_none, every_third
from ..generate.template import GeneratedKernel, template_of
from ..ir.kernel import PROBE, Kernel
from ..ir.precision import IEEE, THREE, Precision
from ..ir.tiling import Shape, shape_of
from ..ir.unfusable import Unfusable, if_fusable
from ..lowering.ieee_decisions import ROUNDED, may_round_once
from ..lowering.split_reduction import split
from ..program.helpers.cuda_helpers import HELPERS
from .clustered_attention.kernel import emit_clusters
from .clustered_attention.parameters import ClusteredAttentionSchedule
from .clustered_attention.schedules import applies as clusters_apply
from .clustered_attention.schedules import clustered_fits, clustered_schedules
from .emit.kernel import emit, emit_joined, emit_staged
from .emit.sizes import sized_launch, with_sizes
from .few_row_attention import FewRowAttentionSchedule, few_row_legal, few_row_schedules
from .few_row_attention import applies as few_rows_apply
from .scans.kernel import ScanSchedule, emit_scans
from .scans.schedules import scan_schedules, scans_fit
from .schedules import SimtSchedule, combining_layout, covers_sums, simt_applies, simt_legal, simt_schedules
from .shared_adds.kernel import SharedAddSchedule, emit_shared_adds
from .shared_adds.schedules import shared_add_schedules, shared_adds_fit
from .skinny_schedules import FEW, SkinnyGemmSchedule, merge_packed, skinny_applies, skinny_legal, skinny_schedules
from .tiled_fp32.kernel import TiledSchedule, emit_tiles
from .tiled_fp32.schedules import applies as tiles_apply
from .tiled_fp32.schedules import tile_schedules, tiles_fit
from .warp_specialized.kernel import emit_gemm
from .warp_specialized.parameters import GemmSchedule
from .warp_specialized.schedules import applies as gemm_applies
from .warp_specialized.schedules import gemm_fits, gemm_schedules
from .windows.kernel import WindowSchedule, emit_windows
from .windows.schedules import window_schedules, windows_fit

GROUPED = ".2"  # ending of the version of kernels that read bytes
ThreadSchedule = SimtSchedule | SkinnyGemmSchedule | FewRowAttentionSchedule  # schedules with a thread layout


def _emit_threads(found: Lowered, s: ThreadSchedule, name: str) -> Sequence[Launch]:
    """One launch of a kernel in a schedule's thread layout.

    With a split reduction, the last block of each tile combines its partial results.
    """
    layout = s.layout(found.kernel, found.shape)
    if isinstance(s, SimtSchedule) and s.staged:
        if s.scratch_parts > 1:
            raise Unfusable("a staged row of a split reduction")
        return [emit_staged(found.kernel, layout, name, found.shape, found.constant)]
    if s.scratch_parts == 1:
        return [emit(found.kernel, layout, name, found.shape, found.constant)]
    if found.shape.joined:
        raise Unfusable("a split reduction whose row results are read by the same kernel")
    first, second = split(found.kernel, split_axis(found.shape), s.scratch_parts)
    own, after = shape_of(first), shape_of(second, products=False)
    spread = replace(
        own, rows=found.shape.rows, cols=found.shape.cols, batch=(first.axes[0], *found.shape.batch), joined={}
    )
    inner = tuple(dict.fromkeys(e.axis for e in second.reductions))
    after = replace(found.shape, joined={}, inner=inner, outer=inner, dots={})
    if len(spread.inner) != len(found.shape.inner):
        raise Unfusable("a reduction that only the combining kernel computes")
    # same thread layout, with the axis names of the split kernel
    names = dict(zip((a.name for a in found.shape.inner), (a.name for a in spread.inner), strict=True))
    moved = replace(
        layout,
        dims={names.get(d, d): along for d, along in layout.dims.items()},
        shared={names.get(d, d): other for d, other in layout.shared.items()},
        seen=names.get(layout.seen, layout.seen),
    )
    layouts = moved, combining_layout(layout, after)
    return [emit_joined(first, second, layouts, name, (spread, after), found.constant)]


def _emitted(kernel: Kernel, shape: Shape, s: ThreadSchedule, splits: bool) -> bool:
    """Whether emission of a kernel with a schedule succeeds. Split reductions need `splits`."""
    if s.scratch_parts > 1 and not splits:
        return False
    return if_fusable(_emit_threads, Lowered(kernel, shape, ()), s, PROBE) is not None


def _emit_windows(found: Lowered, s: WindowSchedule, name: str) -> Sequence[Launch]:
    """The launch of a short-window kernel.

    Whether a kernel can be emitted does not depend on the box size, so a probe (`PROBE`) takes the smallest.
    """
    return [emit_windows(found.kernel, WindowSchedule(1) if name == PROBE else s, name)]


WINDOWS = Strategy(
    "short windows",
    "Pooling and depthwise convolution: threads compute boxes of results, fully unrolled.",
    WindowSchedule,
    applies=lambda kernel, shape: shape.kind == "windows",
    ranked=lambda asked, count: window_schedules(asked.kernel, count),
    legal=lambda kernel, shape, s, splits: shape.kind == "windows" and windows_fit(kernel, s),
    emit=_emit_windows,
    alone=True,
)
SCANS = Strategy(
    "running sums",
    "Running sums: threads along the positions, which exchange their sums; what is computed before and after in the same pass.",
    ScanSchedule,
    applies=lambda kernel, shape: True,
    ranked=lambda asked, count: scan_schedules(asked.kernel, count),
    legal=lambda kernel, shape, s, splits: scans_fit(kernel, s),
    emit=lambda found, s, name: [emit_scans(found.kernel, s, name)],
    alone=True,
    scans=True,
)
SHARED_ADDS = Strategy(
    "sums in shared memory",
    "Many values added to few elements (counts, segments): blocks add up theirs in shared memory.",
    SharedAddSchedule,
    applies=lambda kernel, shape: kernel.adds,
    ranked=lambda asked, count: shared_add_schedules(asked.kernel, count),
    legal=lambda kernel, shape, s, splits: shared_adds_fit(kernel, s),
    emit=lambda found, s, name: [emit_shared_adds(found.kernel, s, name)],
    alone=True,
    adds=True,
)
SKINNY = Strategy(
    "skinny GEMM",
    "GEMM with 2 to 32 rows on tensor cores: fragments are loaded straight into registers.",
    SkinnyGemmSchedule,
    applies=skinny_applies,
    ranked=lambda asked, count: skinny_schedules(asked.kernel, asked.shape, count, asked.splits),
    legal=lambda kernel, shape, s, splits: skinny_legal(shape, s) and _emitted(kernel, shape, s, splits),
    emit=_emit_threads,
    wanted=lambda count, found: count - count // 2 if found else count,
    merge=merge_packed,
    masked=lambda s: True,
)
SIMT = Strategy(
    "SIMT",
    "General CUDA C++ kernels: a layout of threads, vectors and repeats along each dimension.",
    SimtSchedule,
    applies=simt_applies,
    ranked=lambda asked, count: simt_schedules(asked.kernel, asked.shape, count, asked.splits),
    legal=lambda kernel, shape, s, splits: simt_legal(shape, s) and _emitted(kernel, shape, s, splits),
    emit=_emit_threads,
    masked=lambda s: True,
    sides=True,
)
CLUSTERS = Strategy(
    "clustered attention",
    "Decode steps on tensor cores: blocks of a cluster have slices of the positions, joined through distributed shared memory.",
    ClusteredAttentionSchedule,
    applies=clusters_apply,
    ranked=lambda asked, count: clustered_schedules(asked.kernel, asked.shape, count),
    legal=lambda kernel, shape, s, splits: clustered_fits(kernel, shape, s),
    emit=lambda found, s, name: [emit_clusters(found.kernel, found.shape, s, name, found.constant)],
    updates=True,
    tested=True,
)
ATTENTION = Strategy(
    "attention of few rows",
    "Decode steps: threads along the head size share their registers between scores and results; split-KV over blocks.",
    FewRowAttentionSchedule,
    applies=few_rows_apply,
    ranked=lambda asked, count: few_row_schedules(asked.kernel, asked.shape, count, asked.splits),
    legal=lambda kernel, shape, s, splits: (
        few_row_legal(kernel, shape, s, splits) and _emitted(kernel, shape, s, splits)
    ),
    emit=_emit_threads,
    wanted=ask_if_none,
    masked=lambda s: True,
)
GEMM = Strategy(
    "warp-specialized GEMM",
    "Persistent GEMM for Hopper: one TMA producer warp group, two wgmma consumer warp groups.",
    GemmSchedule,
    applies=gemm_applies,
    ranked=lambda asked, count: gemm_schedules(asked.kernel, asked.shape, count),
    legal=lambda kernel, shape, s, splits: gemm_fits(kernel, shape, s),
    emit=lambda found, s, name: [emit_gemm(found.kernel, found.shape, s, name)],
    merge=every_third,
)
TILED = Strategy(
    "tiled float32 GEMM",
    "GEMM in shared-memory tiles on CUDA cores, or in 3xTF32 on tensor cores.",
    TiledSchedule,
    applies=tiles_apply,
    ranked=lambda asked, count: tile_schedules(asked.kernel, asked.shape, count, asked.precision),
    legal=lambda kernel, shape, s, splits: tiles_fit(kernel, shape, s),
    emit=lambda found, s, name: [emit_tiles(found.kernel, found.shape, s, name)],
    precisions=(IEEE.name, THREE.name),
    wanted=ask_if_none,
)


@dataclass
class CudaEmitter(StrategyEmitter):
    """Emitter of CUDA C++ source from kernel IR: one `__global__` function per kernel.

    A reduction that is split over thread blocks (split-K) is one launch too: the last block of each output tile to
    finish combines the partial results.
    """

    name: str = "nvrtc"
    version: str = "6"
    contracts: bool = True
    setup: tuple[str, ...] = ("CudaKernel", "counters")
    needs: tuple[str, ...] = ("torch", "cuda.core")
    precisions: tuple[Precision, ...] = (THREE,)  # besides the dtype's own; for TF32 the library is faster
    strategies: tuple[Strategy[Any], ...] = field(
        default=(WINDOWS, SCANS, SHARED_ADDS, SIMT, SKINNY, CLUSTERS, ATTENTION, GEMM, TILED), kw_only=True
    )

    def version_of(self, roots: Sequence[Tensor]) -> str:
        """Version of the text that this emitter writes for the kernel that computes the terms `roots`; part of the key
        of stored measurements.

        Kernels that read uint8 or int8 operands have the suffix `GROUPED`, since their quantization scales are applied
        per group, to sums of products; those in which rounding decides the suffix `ROUNDED`.
        """
        bytes_ = any(t.op == "input" and t.dtype in ("uint8", "int8") for t in topological(roots))
        return self.version + (GROUPED if bytes_ else "") + (ROUNDED if may_round_once(tuple(roots)) else "")

    def sized_launch(self, launch: Any, statement: str, definitions: dict[str, str]) -> tuple[str, dict[str, str]]:
        """Change the launch `statement` and the kernel `definitions` (name -> source) of a kernel made for one choice
        of sizes so that they serve all sizes; returns both (`Emitter.sized_launch`).

        The grid becomes an argument of the statement; `SIZES_<kernel name>` in it is a placeholder for the size
        arguments.
        """
        return sized_launch(launch, statement, definitions)

    def size_arguments(self, names: Sequence[str]) -> str:
        """Python text of the launch arguments that pass the values of the sizes `names`, such as ", sizes=(T, B)"; ""
        without sizes (`Emitter.size_arguments`)."""
        return f", sizes=({''.join(f'{n}, ' for n in names).rstrip(' ' if len(names) == 1 else ', ')})" if names else ""

    def with_sizes(self, text: Any, name: str, sizes: Sequence[str], prefix: str) -> tuple[str, list[str]] | None:
        """Add an integer parameter, called `prefix` + size, to the kernel function `name` for each of `sizes` that
        occurs in its text. Returns (kernel text, the sizes that occur).

        None if the compiler needs one of them as a constant, such as an array length (`Emitter.with_sizes`).
        """
        return with_sizes(text, name, sizes, prefix)


def generated(root: Tensor | Sequence[Tensor], transposed: Sequence[str] = ()) -> GeneratedKernel:
    """Template (a kernel's meaning and code, with open schedule parameters) of the generated CUDA kernel that computes
    `root`: a term over inputs, or several (multi-output fusion).

    `transposed`: names of weights that are transposed once, at load time.
    """
    return template_of(BACKEND.emitter, root, transposed)


class Cuda(GpuGenerator):
    """Backend that generates CUDA C++ kernels for NVIDIA GPUs; `CudaEmitter` writes their source."""

    prefetches = True

    def reads_whole(self, template: Template, call: Call) -> bool:
        """Whether a kernel reads all of its weights before it waits, in the schedule of `call`
        (`Target.reads_whole`): False where a SIMT kernel has a loop over a sum."""
        schedule = SimtSchedule.parse(call.schedule)
        found = template.lower(call) if isinstance(template, GeneratedKernel) and schedule is not None else None
        return found is None or schedule is None or covers_sums(found.kernel, found.shape, schedule)


BACKEND = Cuda(CudaEmitter(), {**HELPERS, "counters": COUNTING, "carried": CARRYING}, several=True, vectors=FEW)

__all__ = ["BACKEND", "Cuda", "CudaEmitter", "generated"]
