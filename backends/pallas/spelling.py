"""JAX spelling of scalar operations, shared by generated kernels and library kernels, and of dtypes."""

from __future__ import annotations

import math

from ...egraph.ir import dtypes

#: Elementwise op -> format string over its operands.
POINTWISE = {
    "neg": "-{0}", "add": "{0} + {1}", "sub": "{0} - {1}", "mul": "{0} * {1}", "div": "{0} / {1}", "recip": "1 / {0}",
    "maximum": "jnp.maximum({0}, {1})", "minimum": "jnp.minimum({0}, {1})", "where": "jnp.where({0}, {1}, {2})",
    "eq": "{0} == {1}", "lt": "{0} < {1}", "le": "{0} <= {1}", "not": "jnp.logical_not({0})",
    "and": "{0} & {1}", "or": "{0} | {1}", "xor": "{0} ^ {1}", "is_nan": "jnp.isnan({0})", "is_inf": "jnp.isinf({0})",
    "rsqrt": "1 / jnp.sqrt({0})", "round": "jnp.round({0})", "pow": "jnp.power({0}, {1})", "atan": "jnp.arctan({0})",
    "erf": "jax.lax.erf({0})", "floordiv": "jnp.floor_divide({0}, {1})", "mod": "jnp.mod({0}, {1})",
    **{f: f"jnp.{f}({{0}})" for f in ("abs", "sign", "exp", "exp2", "log", "log1p", "expm1", "sqrt", "tanh", "sin", "cos",
                                      "floor", "ceil")},
}  # fmt: skip
#: Monoid of a reduction -> function.
REDUCTIONS = {"sum": "jnp.sum", "max": "jnp.max", "min": "jnp.min", "prod": "jnp.prod"}


def dtype_text(dtype: str) -> str:
    """A dtype as source text."""
    return f"jnp.{'bool_' if dtype == 'bool' else dtypes.check(dtype)}"


def number(value: float | int | bool, dtype: str) -> str:
    """A constant of a dtype as source text."""
    if isinstance(value, float) and not math.isfinite(value):
        text = "jnp.nan" if math.isnan(value) else "jnp.inf" if value > 0 else "-jnp.inf"
    else:
        text = repr(value)
    return f"{dtype_text(dtype)}({text})"
