"""Defines the Triton backend: generated kernels (generate/template.py) as `@triton.jit` functions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

from ...egraph.ir.tensor import Tensor
from ..generate.call_code import CARRYING, COUNTING, launches
from ..generate.emitter import Launch, Lowered
from ..generate.generator import GpuGenerator
from ..generate.strategy import Request, Strategy, StrategyEmitter, alternating, ask_rest
from ..generate.template import GeneratedKernel, template_of
from ..ir.precision import IEEE, PRECISIONS, TF32, THREE, THREE_BRAINS, TWO_BRAINS, Precision
from ..ir.tiling import shape_of
from ..lowering.ieee_decisions import ROUNDED, may_round_once
from .emit.kernel import emit, emit_joined
from .emit.sizes import sized_launch, with_sizes
from .schedules.candidates import rounding_schedules, schedules
from .schedules.facts import FEW, facts_of
from .schedules.legality import legal
from .schedules.parameters import AttentionSchedule, ConvolutionSchedule, TileSchedule
from .warp_specialized.attention import emit_attention
from .warp_specialized.convolution import emit_convolution
from .warp_specialized.schedules import attention_fits, attention_schedules, convolution_fits, convolution_schedules

DESCRIBING = '''def described(x, shape, block, swizzle=0, strides=()):
    """Tensor descriptor (TMA) of a matrix that a kernel reads in blocks; with `strides`, of a tensor with other strides or more axes.
    `swizzle`: shared-memory swizzle of the blocks in bytes, for warp-specialized kernels."""
    if swizzle:
        from triton.experimental.gluon.language import NVMMASharedLayout
        from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

        layout = NVMMASharedLayout(swizzle_byte_width=swizzle, element_bitwidth=16, rank=len(block))
        return TensorDescriptor(x, list(shape), list(strides) or [shape[1], 1], list(block), layout)
    from triton.tools.tensor_descriptor import TensorDescriptor

    return TensorDescriptor(x, list(shape), list(strides) or [shape[1], 1], list(block))'''

LARGER, SMALLER = (
    f'''@triton.jit
def {name}(a, b):
    """The {name} of two numbers; NaN propagates."""
    return tl.{op}(a, b, tl.PropagateNan.ALL)'''
    for name, op in (("larger", "maximum"), ("smaller", "minimum"))
)

INTERPRETED = "INTERPRETED = tl.constexpr(triton.knobs.runtime.interpret)"

BEGINNING = '''@triton.jit
def begin_early():
    """Programmatic dependent launch: let the next kernel start, then wait for the end of the previous one. No-op in the interpreter."""
    if not INTERPRETED:
        tl.extra.cuda.gdc_launch_dependents()
        tl.extra.cuda.gdc_wait()'''

HELD = '''@triton.jit
def held(x):
    """A tensor-core product after its wait: uses of the result stay behind the wait."""
    if INTERPRETED:
        return x
    return tl.inline_asm_elementwise("", "=f,0", [x], dtype=tl.float32, is_pure=True, pack=1)'''


def _emit_tile(found: Lowered, s: TileSchedule, name: str) -> Sequence[Launch]:
    """The launches of a general kernel: one, or two for a split reduction whose partial results a second kernel
    combines."""
    if s.scratch_parts == 1:
        return [emit(found.kernel, s.tiling(found.shape), name, found.shape)]
    first, second = found.halves(s.scratch_parts)
    shape = shape_of(first)
    tiling = s.tiling(shape)
    if s.join:
        return [emit_joined(first, second, tiling, name, found.shape)]
    joining = shape_of(second, products=False)
    best = schedules(second, joining, 1)[0].but(early=s.early)
    return [
        emit(first, tiling, f"{name}_parts", shape),
        emit(second, best.tiling(joining), f"{name}_join", joining),
    ]


def _ranked_tiles(asked: Request, count: int) -> Sequence[TileSchedule]:
    """Candidate schedules of general kernels, by the ranking model of schedules/candidates.py."""
    if asked.precision is IEEE:
        return schedules(asked.kernel, asked.shape, count, splits=asked.splits)
    return rounding_schedules(asked.kernel, asked.shape, count, asked.splits, asked.precision)


TILE = Strategy(
    "tile",
    "General Triton kernels: each program computes a tile of rows and columns.",
    TileSchedule,
    applies=lambda kernel, shape: True,
    ranked=_ranked_tiles,
    legal=lambda kernel, shape, s, splits: legal(facts_of(kernel, shape, splits), s),
    emit=_emit_tile,
    precisions=tuple(p.name for p in PRECISIONS),
    wanted=ask_rest,
    merge=alternating,
    masked=lambda s: not s.boxes,
    adds=True,
)
ATTENTION = Strategy(
    "warp-specialized attention",
    "Gluon kernels of attention: one producer warp loads by TMA, consumer warp groups multiply.",
    AttentionSchedule,
    applies=lambda kernel, shape: shape.kind == "attention",
    ranked=lambda asked, count: list(islice(attention_schedules(asked.kernel, asked.shape), count)),
    legal=lambda kernel, shape, s, splits: attention_fits(kernel, shape, s),
    emit=lambda found, s, name: [emit_attention(found.kernel, s.tiling(found.shape), name, found.shape)],
    tested=True,
)
CONVOLUTION = Strategy(
    "warp-specialized convolution",
    "Gluon kernels of padded convolutions: TMA loads shifted boxes of the image.",
    ConvolutionSchedule,
    applies=lambda kernel, shape: shape.kind == "contraction",
    ranked=lambda asked, count: list(convolution_schedules(asked.kernel, asked.shape)),
    legal=lambda kernel, shape, s, splits: convolution_fits(kernel, shape, s),
    emit=lambda found, s, name: [emit_convolution(found.kernel, s, name, found.shape)],
)


@dataclass
class TritonEmitter(StrategyEmitter):
    """Emitter of Triton and Gluon source from kernel IR: one function per kernel.

    A split reduction (split-K) is two kernels, or one whose last program of each output tile combines the parts.
    """

    name: str = "triton"
    version: str = "9"
    contracts: bool = True
    setup: tuple[str, ...] = ("INTERPRETED", "begin_early", "counters", "described", "held", "larger", "smaller")
    needs: tuple[str, ...] = ("torch", "triton")
    precisions: tuple[Precision, ...] = (THREE, TWO_BRAINS, TF32)  # besides the dtype's own, the slower ones first
    #: Precision to use where the right side of a product is not contiguous along K. In TF32 such a side goes through
    #: registers, at half the speed or less: weights are therefore transposed at load time, other operands use this
    #: precision if it is as exact.
    across: Mapping[Precision, Precision] = field(default_factory=lambda: {THREE: THREE_BRAINS, TF32: TF32})
    strategies: tuple[Strategy[Any], ...] = field(default=(ATTENTION, CONVOLUTION, TILE), kw_only=True)

    def version_of(self, roots: Sequence[Tensor]) -> str:
        """Version of the text that this emitter writes for the kernel that computes the terms `roots`; part of the key
        of stored measurements. Kernels in which rounding decides have the suffix `ROUNDED`."""
        return self.version + (ROUNDED if may_round_once(tuple(roots)) else "")

    def sized_launch(self, launch: Any, statement: str, definitions: dict[str, str]) -> tuple[str, dict[str, str]]:
        """Insert the placeholder `SIZES_<kernel name>` after the arguments of the launch `statement`; `size_arguments`
        gives the text that replaces it. Returns (the new statement, `definitions` unchanged). `launch`: the launch that
        the statement runs; its `name` is the kernel's (`Emitter.sized_launch`)."""
        return sized_launch(launch, statement), definitions

    def with_sizes(self, text: Any, name: str, sizes: Sequence[str], prefix: str) -> tuple[str, list[str]] | None:
        """Add an integer parameter, called `prefix` + size, to the kernel function `name` for each of `sizes` that
        occurs in its text. Returns (kernel text, the sizes that occur).

        None if Triton needs one of them as a constant (`Emitter.with_sizes`).
        """
        return with_sizes(text, name, sizes, prefix)


def generated(root: Tensor | Sequence[Tensor], transposed: Sequence[str] = ()) -> GeneratedKernel:
    """Template (a kernel's meaning and code, with open schedule parameters) of the generated Triton kernel that
    computes `root`: a term over inputs, or several (multi-output fusion).

    `transposed`: names of weights that are transposed once, at load time.
    """
    return template_of(BACKEND.emitter, root, transposed)


class Triton(GpuGenerator):
    """Backend that generates Triton and Gluon kernels for NVIDIA GPUs; `TritonEmitter` writes their source."""


HELPERS = {
    "INTERPRETED": INTERPRETED,
    "begin_early": BEGINNING,
    "counters": COUNTING,
    "described": DESCRIBING,
    "larger": LARGER,
    "smaller": SMALLER,
    "held": HELD,
    "carried": CARRYING,
}
BACKEND = Triton(TritonEmitter(), HELPERS, several=True, vectors=FEW)

__all__ = ["BACKEND", "Triton", "TritonEmitter", "generated", "launches"]
