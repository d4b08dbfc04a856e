"""Collects the helper functions of emitted NumPy programs.

Their source is copied into emitted programs: each may use only `np`, `inf` and other helpers of the modules collected
here.
"""

from __future__ import annotations

from ...egraph.ops import atomic_numpy, recurrence
from ...egraph.ops import special_functions as special
from ..ir.definitions import source_of, sources_of
from . import numpy_index_helpers, numpy_norm_helpers, numpy_pointwise_helpers, numpy_window_helpers

MODULES = (numpy_pointwise_helpers, numpy_norm_helpers, numpy_index_helpers, numpy_window_helpers)


def _error_function() -> str:
    """Source of the interpreter's own erf with its tables, renamed to `defined_erf`."""
    tables = [f"{name} = {value!r}" for name, value in vars(special).items() if name[:1] == "_" and name[1:].isupper()]
    parts = [source_of(f) for f in (special._ratio, special._range, special.erf)]
    return "\n\n\n".join(["\n".join(tables), *parts]).replace("def erf(", "def defined_erf(")


#: helper name -> source
HELPERS: dict[str, str] = {
    name: source for module in MODULES for name, source in sources_of(module.__name__).items()
} | {
    "defined_erf": _error_function(),
    **{f: source_of(getattr(recurrence, f)) for f in ("scan", "recurrent")},
    "integer_product": source_of(atomic_numpy.integer_product),
}
