"""Notices backward passes whose gradients are differentiated again (`create_graph=True`)."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any


def on_create_graph(results: Iterable[Any], noted: Callable[[], Callable[[], None] | None]) -> None:
    """When a backward pass with `create_graph=True` reaches one of the `results` of a call, call the function that the
    weak reference `noted` refers to. Values without gradients are ignored; the results themselves do not change.
    """
    import torch

    def reached(gradients: Any) -> None:
        if torch.is_grad_enabled() and (found := noted()) is not None:
            found()

    for node in {y.grad_fn for y in results if isinstance(y, torch.Tensor) and y.grad_fn is not None}:
        node.register_prehook(reached)


__all__ = ["on_create_graph"]
