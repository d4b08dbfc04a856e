"""Normalised source text and its hash.

Texts that differ only in comments, blank lines or docstrings get equal hashes.
"""

from __future__ import annotations

import ast
import re
from hashlib import blake2b

from ...egraph.ir.memo import memo

_STRING = r"'(?:\\.|[^'\\\n])*'|\"(?:\\.|[^\"\\\n])*\""
_TRIPLE = r"'''(?:\\.|[^\\])*?'''|\"\"\"(?:\\.|[^\\])*?\"\"\""
_C_INLINE = r"/\*[^*]*\*+(?:[^/*][^*]*\*+)*/"

# Alternatives in this order: text to keep verbatim, inline comment (C), line end with surrounding comments and blanks.
_PATTERNS = {
    "python": re.compile(rf"(?P<keep>{_TRIPLE}|{_STRING})|(?:[ \t\r\f]*(?:#[^\n]*)?(?:\n|\Z))+", re.S),
    "c": re.compile(
        rf"(?P<keep>{_STRING})|(?:[ \t\r\f]*(?://[^\n]*|{_C_INLINE})?[ \t\r\f]*(?:\n|\Z))+[ \t]*"
        rf"|(?P<inline>{_C_INLINE})",
        re.S,
    ),
}


def normalise(source: str, language: str = "python") -> str:
    """Canonical form of a Python or C-like (`language="c"`: C, C++, CUDA, OpenCL) source.

    Valid Python is printed from its syntax tree without docstrings, so quoting and spacing do not matter either; other
    text only loses comments, blank lines and trailing blanks. Nothing is executed."""
    if language == "python":
        try:
            return ast.unparse(_without_docstrings(ast.parse(source)))
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            pass
    return _PATTERNS["python" if language == "python" else "c"].sub(_replacement, source).strip("\n")


def _replacement(found: re.Match[str]) -> str:
    groups = found.groupdict()
    return groups["keep"] or (" " if groups.get("inline") else "\n")


def _without_docstrings(tree: ast.Module) -> ast.Module:
    for node in ast.walk(tree):
        if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
            if ast.get_docstring(node, clean=False) is not None:
                node.body = node.body[1:] or [ast.Pass()]
    return tree


@memo(4096)
def source_hash(source: str, language: str = "python") -> str:
    """Digest (32 hex digits) of a kernel's source without comments, docstrings and blank lines (`normalise`): the field
    `source` of a `KernelKey`. `language`: "python", or "c" for C, C++ and CUDA."""
    text = normalise(source, language).encode("utf-8", "backslashreplace")
    return blake2b(text, digest_size=16).hexdigest()
