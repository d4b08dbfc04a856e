"""Functions that build nodes, under the names of the Array API; they insert the casts, reshapes and broadcasts that
operands need.

Python numbers are weakly typed: they take the dtype of the tensor they are combined with. Between tensors
`dtypes.promote` decides (operand_alignment.py).
"""

from __future__ import annotations

from ..ir.tensor import constant
from ..types.dims import dim
from . import (
    contraction_builders,
    elementwise_builders,
    indexing_builders,
    layout_builders,
    leaf_builders,
    operand_alignment,
    reduction_builders,
)
from .contraction_builders import *  # noqa: F403
from .elementwise_builders import *  # noqa: F403
from .indexing_builders import *  # noqa: F403
from .layout_builders import *  # noqa: F403
from .leaf_builders import *  # noqa: F403
from .operand_alignment import *  # noqa: F403
from .reduction_builders import *  # noqa: F403

__all__ = ["constant", "dim"]
__all__ += contraction_builders.__all__
__all__ += elementwise_builders.__all__
__all__ += indexing_builders.__all__
__all__ += layout_builders.__all__
__all__ += leaf_builders.__all__
__all__ += operand_alignment.__all__
__all__ += reduction_builders.__all__
