"""The Triton backend: generated kernels (generate/template.py) as `@triton.jit` functions."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import zip_longest

from ...egraph.ir.graph import Tensor
from ..generate.generator import GpuGenerator
from ..generate.template import (
    CARRYING,
    COUNTING,
    EmitterBase,
    GeneratedKernel,
    Launch,
    Lowered,
    Schedule,
    launches,
    template_of,
)
from ..ir.kernel import Kernel
from ..ir.precision import TF32, THREE, THREE_BRAINS, TWO_BRAINS, Precision
from ..ir.tiling import Shape, shape_of
from .emit.kernel import emit, emit_joined
from .schedules.candidates import COUNT, schedules, tiling_of
from .schedules.legality import each, facts_of, legal
from .warp_specialized.attention import emit_roles
from .warp_specialized.convolution import emit_images
from .warp_specialized.schedules import role_schedules, roles_fit

DESCRIBING = '''def described(x, shape, block, swizzle=0, strides=()):
    """A matrix in memory, of which a kernel reads blocks, or with strides what lies further apart or has more axes; `swizzle`: how
    blocks lie in memory that roles share, in bytes."""
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
    """The {name} of two numbers; NaN is not lost."""
    return tl.{op}(a, b, tl.PropagateNan.ALL)'''
    for name, op in (("larger", "maximum"), ("smaller", "minimum"))
)

INTERPRETED = "INTERPRETED = tl.constexpr(triton.knobs.runtime.interpret)"

BEGINNING = '''@triton.jit
def begin_early():
    """The next kernel may start; this one waits for the end of the one before. The interpreter runs one at a time."""
    if not INTERPRETED:
        tl.extra.cuda.gdc_launch_dependents()
        tl.extra.cuda.gdc_wait()'''

HELD = '''@triton.jit
def held(x):
    """A product that the matrix unit has done with: what uses it waits."""
    if INTERPRETED:
        return x
    return tl.inline_asm_elementwise("", "=f,0", [x], dtype=tl.float32, is_pure=True, pack=1)'''


@dataclass
class TritonEmitter(EmitterBase):
    """Emitter of Triton: one function per kernel. A split reduction is two kernels, or one whose last programs combine
    the parts."""

    name: str = "triton"
    version: str = "9"
    setup: tuple[str, ...] = ("INTERPRETED", "begin_early", "counters", "described", "held", "larger", "smaller")
    needs: tuple[str, ...] = ("torch", "triton")
    searches: bool = True
    precisions: tuple[Precision, ...] = (THREE, TWO_BRAINS, TF32)  # besides the dtype's own, the slower ones first
    #: Precision to use where the right side of a product is not contiguous along K. In TF32 such a side goes through
    #: registers, at half the speed or less: weights are therefore transposed at load time, other operands use this
    #: precision if it is as exact.
    across: Mapping[Precision, Precision] = field(default_factory=lambda: {THREE: THREE_BRAINS, TF32: TF32})

    def space(self, kernel: Kernel, shape: Shape, splits: bool) -> Sequence[Schedule]:
        """Candidate schedules of warp_specialized/schedules.py and schedules/candidates.py, interleaved."""
        roles = list(role_schedules(kernel, shape))
        plain = schedules(kernel, shape, COUNT - len(roles), splits=splits)
        return [s for pair in zip_longest(roles, plain) for s in pair if s is not None]  # a short run sees both

    def rounding(self, kernel: Kernel, shape: Shape, splits: bool, precision: Precision) -> Sequence[Schedule]:
        """Candidate schedules in which float32 products round their operands.

        On an H200 the best schedules for many rows took one line of shared memory (32 floats of K) at a time, and split
        operands found no registers where a thread had more than 64 accumulators: 161 against 106 µs.
        """
        found = schedules(kernel, shape, 8 * COUNT, splits=splits)
        if shape.kind == "contraction" and shape.m > FEW:
            main = f"k{facts_of(kernel, shape, splits).main}"
            most = math.inf if precision is TF32 else SUMS
            found.sort(key=lambda s: (s[main] > LINE) + (each(s["m"] * s["n"], s) > most))
        return [s | {"precision": precision.number} for s in found[:COUNT]]

    def fits(self, kernel: Kernel, shape: Shape, schedule: Schedule, splits: bool) -> bool:
        """Whether a schedule is legal: see schedules/legality.py and warp_specialized/schedules.py."""
        if "roles" in schedule:
            return roles_fit(kernel, shape, schedule)
        return legal(facts_of(kernel, shape, splits), schedule)

    def launches(self, found: Lowered, schedule: Mapping[str, int], name: str) -> Sequence[Launch]:
        """The launches of a schedule: see emit/kernel.py, warp_specialized/attention.py and warp_specialized/convolution.py."""
        parts = schedule.get("split", 1)
        if schedule.get("roles"):
            if found.shape.kind == "contraction":
                return [emit_images(found.kernel, schedule, name, found.shape)]
            return [emit_roles(found.kernel, tiling_of(found.shape, schedule), name, found.shape)]
        if parts == 1:
            return [emit(found.kernel, tiling_of(found.shape, schedule), name, found.shape)]
        first, second = found.halves(parts)
        shape = shape_of(first)
        tiling = tiling_of(shape, schedule)
        if schedule.get("join"):
            return [emit_joined(first, second, tiling, name, found.shape)]
        joining = shape_of(second, products=False)
        best = schedules(second, joining, 1)[0] | {k: v for k, v in schedule.items() if k == "early"}
        return [
            emit(first, tiling, f"{name}_parts", shape),
            emit(second, tiling_of(joining, best), f"{name}_join", joining),
        ]


def generated(root: Tensor | Sequence[Tensor], transposed: Sequence[str] = ()) -> GeneratedKernel:
    """Triton's template of a term over inputs, or of several (multi-output fusion); weights named in `transposed` are
    transposed at load time."""
    return template_of(BACKEND.emitter, root, transposed)


class Triton(GpuGenerator):
    """The Triton backend."""


FEW = 32  # maximum rows of a skinny GEMM: 16 rows of 4096 ran 4 to 9 % faster along K
LINE = 32  # float32 elements in a line of shared memory
SUMS = 64  # accumulators per thread that leave registers for split operands

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
