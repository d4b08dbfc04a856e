"""Triton's interpreter without work that it repeats for every operation, call of a function, or launch."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest


@contextmanager
def quickened() -> Iterator[None]:
    """Context manager in which kernels are interpreted faster, with the same results; does nothing without Triton."""
    try:
        from triton.runtime import interpreter
    except ImportError:
        yield
        return
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(interpreter.ReduceOps, "generic_reduce", _reduced_at_once(interpreter.ReduceOps.generic_reduce))
        patched.setattr(interpreter, "_get_np_dtype", _known_dtypes(interpreter._get_np_dtype))
        patched.setattr(interpreter, "_patch_builtin", _known_builtins(interpreter))
        patched.setattr(interpreter.InterpretedFunction, "__call__", _patched_once(interpreter))
        options = interpreter.interpreter_builder.options
        if not options.debug:  # the conditions of overflow checks are computed, and dropped without `debug`
            patched.setattr(interpreter.interpreter_builder, "options", replace(options, sanitize_overflow=False))
        yield


def _reduced_at_once(slow: Callable[..., Any]) -> Callable[..., Any]:
    """`ReduceOps.generic_reduce` that combines whole arrays: the original calls a function of two numbers per
    element."""

    def fast(self: Any, given: Any) -> Any:
        if self.axis is None or len(given) != 1:
            return slow(self, given)
        data, dtype = given[0].handle.data, given[0].dtype
        parts = [self.to_tensor(np.take(data, i, self.axis), dtype) for i in range(data.shape[self.axis])]
        total = parts[0]
        for part in parts[1:]:
            total = self.combine_fn.fn(total, part)
        found = np.asarray(total.handle.data).reshape(np.delete(data.shape, self.axis))
        return [self.to_tensor(np.expand_dims(found, self.axis) if self.keep_dims else found, dtype)]

    return fast


def _known_dtypes(slow: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """`_get_np_dtype` with a cache of scalar types by name: the original makes its table at each call."""
    from triton.language import dtype

    known: dict[str, Any] = {}

    def fast(kind: Any) -> Any:
        if type(kind) is not dtype:
            return slow(kind)
        if kind.name not in known:
            known[kind.name] = slow(kind)
        return known[kind.name]

    return fast


def _known_builtins(interpreter: Any) -> Callable[..., None]:
    """`_patch_builtin` with a cache of each module's builtins: the original lists all members at each launch."""
    known: dict[Any, list[tuple[str, Any]]] = {}

    def fast(package: Any, builder: Any, scope: Any) -> None:
        if package not in known:
            members = inspect.getmembers(package)
            known[package] = [(name, member) for name, member in members if interpreter.tl.core.is_builtin(member)]
        for name, member in known[package]:
            interpreter._patch_attr(package, name, member, builder, scope)

    return fast


def _patched_once(interpreter: Any) -> Callable[..., Any]:
    """Call of a function within a kernel that replaces the functions of the language's modules only if a launch or a
    call before has not: the original does for each call, which is a fifth of the time."""
    language, modules = interpreter.tl, dict[Any, list[Any]]()

    def fast(self: Any, *args: Any, **named: Any) -> Any:
        if self.fn not in modules:
            seen = self.fn.__globals__.values()
            modules[self.fn] = [m for m in (language, language.core) if any(m is value for value in seen)]
        if not all(type(module.multiple_of) is partial for module in modules[self.fn]):
            interpreter._patch_lang(self.fn)
        try:
            return self.rewrite()(*args, **named)
        except Exception as error:
            raise interpreter.InterpreterError(repr(error)) from error

    return fast
