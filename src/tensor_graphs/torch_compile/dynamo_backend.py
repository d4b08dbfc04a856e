"""Defines the compiler function that `torch.compile(backend=...)` takes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from .recurrent_modules import captures_layers


@captures_layers
def backend(module: Any, example_inputs: Sequence[Any], **given: Any) -> Any:
    """The compiler function for `torch.compile(model, backend=tensor_graphs.torch_compile.backend, options={...})`.

    Registered as "tensor_graphs" in the entry point group `torch_dynamo_backends`. `options`: see `CompileOptions`.
    Raises UsageError for unknown options and modes; Dynamo raises it as the cause of BackendCompilerFailed.
    """
    from .compiled_graph import compile_graph, options_of

    return compile_graph(module, example_inputs, options_of(given))


__all__ = ["backend"]
