"""Generates text: prefill, decode and sampling programs of a decoder over shared key-value caches.

In: a model folder and prompts.
Out: tokens and text.
Imports: backends, backends.program, costdb.keys, egraph.builders, egraph.composites, egraph.ir, errors, models.common,
    models.files, models.huggingface, option_checks, options, pipeline, plain, processes, wording.
"""

from .generator import Generator
from .results import Generated, Piece

__all__ = ["Generated", "Generator", "Piece"]
