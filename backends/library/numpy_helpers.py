"""Collects the helper functions of emitted NumPy programs.

Their source is copied into emitted programs: each may use only `np`, `inf` and other helpers of the modules collected
here.
"""

from __future__ import annotations

import inspect

from ...egraph.ir import recurrence
from ...egraph.ir import special_functions as special
from ..definition_text import source_of
from . import numpy_index_helpers, numpy_norm_helpers, numpy_pointwise_helpers, numpy_window_helpers

MODULES = (numpy_pointwise_helpers, numpy_norm_helpers, numpy_index_helpers, numpy_window_helpers)


def _error_function() -> str:
    """Source of the interpreter's own erf with its tables, renamed to `defined_erf`."""
    tables = [f"{name} = {value!r}" for name, value in vars(special).items() if name[:1] == "_" and name[1:].isupper()]
    parts = [source_of(f) for f in (special._ratio, special._range, special.erf)]
    return "\n\n\n".join(["\n".join(tables), *parts]).replace("def erf(", "def defined_erf(")


#: helper name -> source
HELPERS: dict[str, str] = {
    name: source_of(value)
    for module in MODULES
    for name, value in vars(module).items()
    if inspect.isfunction(value) and value.__module__ == module.__name__ and name[0] != "_"
} | {
    "defined_erf": _error_function(),
    **{f: source_of(getattr(recurrence, f)) for f in ("scan", "recurrent")},
}
