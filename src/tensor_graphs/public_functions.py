"""Makes public functions that take options as keyword arguments: their signature and docstring come from the
options."""

from __future__ import annotations

import inspect
import textwrap
from collections.abc import Callable
from dataclasses import fields
from typing import Any, ParamSpec, Protocol, TypeVar, cast

from .imported import other_packages_named
from .options import CommonOptions
from .processes.import_lock import free_import_lock
from .wording import near

P = ParamSpec("P")
O_contra = TypeVar("O_contra", contravariant=True)
R_co = TypeVar("R_co", covariant=True)


class PublicFunction(Protocol[P, R_co]):
    """Protocol of a function of a source, example inputs, and options as keyword arguments."""

    def __call__(self, source: Any, example_inputs: Any = None, *args: P.args, **kwargs: P.kwargs) -> R_co: ...


class TakesOptions(Protocol[O_contra, R_co]):
    """Protocol of a function that takes a model's source (a file, a folder, a module or a function), example inputs,
    and its options as one object."""

    def __call__(self, source: Any, example_inputs: Any, options: O_contra, /) -> R_co: ...


O = TypeVar("O", bound=CommonOptions)
R = TypeVar("R")


def takes_options(kind: Callable[P, O]) -> Callable[[TakesOptions[O, R]], PublicFunction[P, R]]:
    """Decorator for a function that takes its options as one object of the class `kind`: its callers give the fields of
    that class as keyword arguments, which its signature and docstring list.

    A call with another keyword raises TypeError.
    """
    declared = cast("type[CommonOptions]", kind)
    parameters = [
        inspect.Parameter("source", inspect.Parameter.POSITIONAL_OR_KEYWORD, annotation="Any"),
        inspect.Parameter("example_inputs", inspect.Parameter.POSITIONAL_OR_KEYWORD, default=None, annotation="Any"),
        *inspect.signature(declared).parameters.values(),
    ]

    def decorated(function: TakesOptions[O, R]) -> PublicFunction[P, R]:
        inner = cast(Any, function)
        signature = inspect.Signature(parameters, return_annotation=inner.__annotations__.get("return", Any))

        def call(source: Any, example_inputs: Any = None, **given: Any) -> R:
            if unknown := sorted(set(given) - set(signature.parameters)):
                raise TypeError(
                    f"{inner.__name__}() got an unexpected keyword argument {unknown[0]!r}{near(unknown[0], signature.parameters)}"
                )
            try:
                with other_packages_named():
                    return function(source, example_inputs, cast("O", declared(**given)))
            except KeyboardInterrupt:
                free_import_lock()
                raise

        for name in ("__module__", "__name__", "__qualname__"):
            setattr(call, name, getattr(inner, name))
        call.__signature__ = signature  # type: ignore[attr-defined]
        call.__doc__ = "\n\n".join(
            [inspect.cleandoc(inner.__doc__ or ""), "Keyword arguments:", documentation(declared)]
        )
        return cast("PublicFunction[P, R]", call)

    return decorated


def documentation(kind: type[CommonOptions]) -> str:
    """Name, default and description of the fields of `kind`, one paragraph each."""
    return "\n".join(
        textwrap.fill(f"`{f.name}`: {f.metadata['doc']}", 116, subsequent_indent="    ", break_on_hyphens=False)
        for f in fields(kind)
    )


__all__ = ["PublicFunction", "documentation", "takes_options"]
