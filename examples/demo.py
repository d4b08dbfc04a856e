"""The main job on three real model files that this script writes itself, with random weights.

A BERT-base-like encoder as ONNX (exported by PyTorch), GPT-2-like and Gemma-3-270M-like folders of config.json and
safetensors (reduced depth and vocabulary). Each is optimized, verified, saved and timed against the unoptimized graph.
"""

from __future__ import annotations

import argparse
import logging
import sys
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import tensor_graphs as tg
from tensor_graphs.cli.console import Console
from tensor_graphs.models import random_checkpoints


@contextmanager
def quiet(*names: str) -> Iterator[None]:
    """Libraries' loggers say errors only."""
    loggers = [logging.getLogger(n) for n in names]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        for logger, level in zip(loggers, levels):
            logger.setLevel(level)


def write_bert_onnx(path: Path, layers: int, tokens: int) -> Path:
    """BERT-base's encoder stack, exported by torch.onnx."""
    import torch

    layer = torch.nn.TransformerEncoderLayer(768, 12, 3072, activation="gelu", batch_first=True, dropout=0.0)
    model = torch.nn.TransformerEncoder(layer, layers, enable_nested_tensor=False).eval()
    torch.manual_seed(0)
    with warnings.catch_warnings(), quiet("torch.onnx", "onnxscript"):  # of the exporter, about itself
        warnings.simplefilter("ignore")
        program = torch.onnx.export(
            model, (torch.randn(1, tokens, 768),), dynamo=True, verbose=False, input_names=["hidden"]
        )
    assert program is not None
    program.save(path)
    return path


def models(folder: Path) -> list[tuple[str, Path, dict[str, int]]]:
    """(title, path, sizes of free dimensions) of each demo model, written if not there yet."""
    folder.mkdir(parents=True, exist_ok=True)
    bert, gpt2, gemma = folder / "bert-base-2-layers.onnx", folder / "gpt2-2-layers", folder / "gemma3-4-layers"
    if not bert.exists():
        write_bert_onnx(bert, layers=2, tokens=128)
    if not gpt2.exists():
        random_checkpoints.write_gpt2(gpt2, layers=2, vocab=8192)
    if not gemma.exists():
        random_checkpoints.write_gemma3(gemma, layers=4, vocab=8192)
    return [
        ("BERT-base encoder, 2 layers, ONNX", bert, {}),
        ("GPT-2, 2 layers, safetensors", gpt2, {"sequence": 128}),
        ("Gemma-3-270M, 4 layers, safetensors in bfloat16", gemma, {"sequence": 64}),
    ]


def main() -> None:
    """Optimize each model; print its report; exit 1 if one failed verification."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", type=Path, default=Path("demo-out"), help="where models and programs go")
    parser.add_argument("--budget", type=float, default=40.0, help="seconds for each model")
    options = parser.parse_args()
    start, failed = time.monotonic(), []
    console = Console(verbose=not sys.stderr.isatty())
    for title, path, sizes in models(options.folder):
        print(f"\n== {title}\n", flush=True)
        with console.live():
            program = tg.optimize(path, dims=sizes, budget=options.budget, progress=tg.Progress(console.say))
        saved = program.save(options.folder / f"{path.stem}-optimized")
        program.report.source = str(saved / "program.py")
        (saved / "report.html").write_text(program.report.html(), encoding="utf-8")
        print(program.report, flush=True)
        if not program.report.verification["passed"]:
            failed.append(title)
    print(f"\n{time.monotonic() - start:.0f} s in all; programs, sources and HTML reports are below {options.folder}/")
    if failed:
        sys.exit(f"verification failed: {failed}")


if __name__ == "__main__":
    main()
