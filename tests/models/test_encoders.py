"""RoBERTa, XLM-RoBERTa and DistilBERT against the outputs of transformers.

    PYTHONPATH=src:FOLDER_OF_TRANSFORMERS python -m tests.models.test_encoders

records tests/data/encoder_outputs.npz. The weights are drawn by `random_checkpoints.write_checkpoint`.
"""

from __future__ import annotations

import json
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pytest

from tensor_graphs.egraph.evaluate.interpret import evaluate
from tensor_graphs.errors import BadModelError
from tensor_graphs.models import random_checkpoints
from tensor_graphs.models.huggingface.load import load_folder

Array = np.ndarray[Any, Any]
RECORD = Path(__file__).parents[1] / "data" / "encoder_outputs.npz"
VOCAB, PADDING = 24, 1

_ROBERTA: dict[str, Any] = {
    "vocab_size": VOCAB, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4,
    "max_position_embeddings": 20, "type_vocab_size": 1, "layer_norm_eps": 1e-5, "pad_token_id": PADDING, "torch_dtype": "float32",
}  # fmt: skip
_DISTILBERT: dict[str, Any] = {
    "vocab_size": VOCAB, "dim": 32, "hidden_dim": 48, "n_layers": 2, "n_heads": 4, "max_position_embeddings": 20,
    "pad_token_id": PADDING, "torch_dtype": "float32",
}  # fmt: skip
KINDS = {"roberta": ("Roberta", _ROBERTA), "xlm-roberta": ("XLMRoberta", _ROBERTA), "distilbert": ("DistilBert", _DISTILBERT)}  # fmt: skip
TASKS = ("Model", "ForMaskedLM", "ForSequenceClassification", "ForTokenClassification", "ForQuestionAnswering")
CASES = [(kind, task) for kind in KINDS for task in TASKS if kind != "xlm-roberta" or task == "ForMaskedLM"]


def write(folder: Path, kind: str, task: str, **more: Any) -> Path:
    """A checkpoint of a model class."""
    name, sizes = KINDS[kind]
    config = {"model_type": kind, "architectures": [name + task], **sizes, **more}
    if task.endswith("Classification"):
        config["id2label"] = {str(i): f"L{i}" for i in range(3)}
    return random_checkpoints.write_checkpoint(folder, config, seed=4)


def inputs() -> dict[str, Array]:
    """Two rows of tokens, the second one padded at its end, and the masks."""
    ids = np.random.default_rng(4).integers(2, VOCAB, (2, 17))
    ids[1, 12:] = PADDING
    return {"input_ids": ids, "attention_mask": (ids != PADDING).astype(np.int64)}


def found(folder: Path) -> list[Array]:
    """Outputs of the graph of a folder, in float64."""
    return evaluate(load_folder(folder).bind({"batch": 2, "sequence": 17}), inputs(), float64=True)


def transformers_outputs(folder: Path) -> list[Array]:
    """Outputs as transformers computes them in float64."""
    import torch
    import transformers

    name = json.loads((folder / "config.json").read_text())["architectures"][0]
    model = getattr(transformers, name).from_pretrained(folder, attn_implementation="eager", dtype=torch.float32)
    with torch.no_grad():
        result = model.double().eval()(**{n: torch.from_numpy(x) for n, x in inputs().items()})
    return [np.asarray(value.numpy()) for value in result.to_tuple()]


@pytest.mark.parametrize(("kind", "task"), CASES)
def test_outputs_are_those_recorded(tmp_path: Path, kind: str, task: str) -> None:
    outputs = found(write(tmp_path, kind, task))
    with np.load(RECORD) as record:
        for i, output in enumerate(outputs):
            wanted = record[f"{kind}-{task}-{i}"]
            assert wanted.std() > 0.05
            np.testing.assert_allclose(output, wanted, rtol=1e-4, atol=1e-4)


def test_positions_that_padding_leaves_none(tmp_path: Path) -> None:
    folder = write(tmp_path, "roberta", "Model")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "max_position_embeddings": 2}))
    with pytest.raises(BadModelError, match="leaves no positions"):
        load_folder(folder)


def main() -> None:
    """Record the outputs of all cases."""
    arrays = {}
    for kind, task in CASES:
        with TemporaryDirectory() as folder:
            outputs = transformers_outputs(write(Path(folder), kind, task))
        arrays |= {f"{kind}-{task}-{i}": output.astype(np.float32) for i, output in enumerate(outputs)}
    np.savez_compressed(RECORD, **arrays)


if __name__ == "__main__":
    main()
