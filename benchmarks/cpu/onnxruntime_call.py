"""Calls of modules in ONNX Runtime, for benchmarks."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any


def onnxruntime_call(
    module: Any, inputs: tuple[Any, ...], threads: int = 1, *, spinning: bool = True
) -> Callable[[], list[Any]]:
    """A call of a module in ONNX Runtime on the CPU, on `inputs` as arrays; returns all outputs.

    `spinning`: whether its threads spin while they wait, as they do by default.
    """
    import onnxruntime
    import torch

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.inter_op_num_threads = threads, 1
    options.log_severity_level = 3
    if not spinning:
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    with tempfile.TemporaryDirectory() as folder, torch.no_grad():
        path = Path(folder) / "model.onnx"
        exported = torch.onnx.export(module, inputs, dynamo=True, verbose=False)
        assert exported is not None
        exported.save(path, external_data=True)
        session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    feed = {i.name: x.numpy() for i, x in zip(session.get_inputs(), inputs, strict=True)}
    return lambda: list(session.run(None, feed))
