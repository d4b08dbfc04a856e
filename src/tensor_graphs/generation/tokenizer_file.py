"""Reads tokenizer.json with the checks that the package `tokenizers` lacks.

That package applies whatever the file says: a chain of replacements can turn one character into terabytes, a template
can repeat a text without bound, a size in a precompiled table is allocated before it is compared with the table, and a
token of a million characters ends the process.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Iterable
from math import prod
from pathlib import Path
from typing import Any

from ..errors import BadModelError
from ..plain import Malformed, read_bytes

MAX_FILE_BYTES = 1 << 28
MAX_GROWTH = 1024  # characters that one character may become
MAX_TOKEN = 1024  # characters of a token, and of a word that is split into tokens
MAX_DEPTH = 32  # of steps in steps
_BYTES = 4  # characters for a character that is replaced by its bytes


def tokenizer_text(path: Path) -> str:
    """Content of a tokenizer.json. Raises BadModelError if it cannot be read, is no JSON object, or lets texts grow
    beyond MAX_GROWTH."""
    try:
        text = read_bytes(path, MAX_FILE_BYTES).decode("utf-8")
        found = json.loads(text)
        if not isinstance(found, dict):
            raise Malformed(f"it holds a JSON {type(found).__name__}, not an object")
        growth = prod(_growth(found.get(part), MAX_DEPTH) for part in ("normalizer", "pre_tokenizer", "decoder"))
        if growth * _repeats(found.get("post_processor"), MAX_DEPTH) > MAX_GROWTH:
            raise Malformed(f"a character may become more than {MAX_GROWTH}")
        _check_model(found.get("model"))
    except (OSError, ValueError, RecursionError) as error:
        raise BadModelError(f"{path.name} cannot be read: {str(error)[:200]}", where=str(path)) from None
    return text


def _growth(step: Any, depth: int) -> float:
    """Characters that one character becomes at most in a step: a normalizer, pre-tokenizer, decoder or a list of them.

    Raises Malformed for a precompiled table whose sizes are not its own, and for steps nested too deeply.
    """
    if not depth:
        raise Malformed("steps are nested too deeply")
    if isinstance(step, list):
        return _product(_growth(one, depth - 1) for one in step)
    if not isinstance(step, dict):
        return 1.0
    if step.get("type") == "Precompiled":
        _check_table(step.get("precompiled_charsmap"))
    if step.get("type") == "ByteLevel":
        return float(_BYTES)
    if step.get("type") == "Replace":
        pattern, content = step.get("pattern"), str(step.get("content", ""))
        matched = str(pattern.get("String", "")) if isinstance(pattern, dict) else ""
        return max(1.0, len(content) / len(matched) if matched else len(content) + 1.0)
    if step.get("type") == "Prepend":
        return len(str(step.get("prepend"))) + 1.0
    return _product(_growth(inner, depth - 1) for inner in step.values() if isinstance(inner, list | dict))


def _product(factors: Iterable[float]) -> float:
    """The product of factors; beyond MAX_GROWTH, no more than its square."""
    found = 1.0
    for factor in factors:
        found = min(found * factor, float(MAX_GROWTH**2))
    return found


def _repeats(step: Any, depth: int) -> float:
    """Copies of a text, and further tokens, that a post-processor makes at most. Raises Malformed for steps nested too
    deeply."""
    if not depth:
        raise Malformed("steps are nested too deeply")
    if isinstance(step, list):
        return _product(_repeats(one, depth - 1) for one in step)
    if not isinstance(step, dict):
        return 1.0
    if step.get("type") != "TemplateProcessing":
        return _product(_repeats(inner, depth - 1) for inner in step.values())
    single, special = step.get("single"), step.get("special_tokens")
    tokens = special.values() if isinstance(special, dict) else ()
    longest = max((len(t["ids"]) for t in tokens if isinstance(t, dict) and isinstance(t.get("ids"), list)), default=1)
    return max(1.0, float(len(single) * longest)) if isinstance(single, list) else 1.0


def _check_model(model: Any) -> None:
    """Raise Malformed for tokens, or words to be split, of more than MAX_TOKEN characters: splitting takes time that
    grows with their square or cube, and the package follows tokens recursively."""
    if not isinstance(model, dict):
        return
    vocabulary = model.get("vocab")
    listed = vocabulary if isinstance(vocabulary, dict | list) else ()
    named = (one[0] if isinstance(one, list) and one else one for one in listed)
    if any(isinstance(token, str) and len(token) > MAX_TOKEN for token in named):
        raise Malformed(f"a token has more than {MAX_TOKEN} characters")
    longest = model.get("max_input_chars_per_word")
    if isinstance(longest, int | float) and longest > MAX_TOKEN:
        raise Malformed(f"words of more than {MAX_TOKEN} characters would be split")


def _check_table(coded: Any) -> None:
    """Raise Malformed unless a table of characters, in base64, begins with the size of a part of it in bytes."""
    table = base64.b64decode(coded, validate=True) if isinstance(coded, str) else b""
    size = int.from_bytes(table[:4], "little")
    if len(table) < 4 or size % 4 or size > len(table) - 4:
        raise Malformed("precompiled_charsmap is no table of characters")


__all__ = ["tokenizer_text"]
