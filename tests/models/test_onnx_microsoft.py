"""Operators of ONNX Runtime: compared with it over random nodes (tests/fuzz/onnx_microsoft.py), refused variants, 4-bit
initializers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

onnx = pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")

from onnx import helper, numpy_helper  # noqa: E402

import tensor_graphs as tg  # noqa: E402
from tensor_graphs.egraph.builders import builders as t  # noqa: E402
from tensor_graphs.egraph.evaluate.interpret import evaluate  # noqa: E402
from tensor_graphs.errors import BadModelError, UnsupportedError  # noqa: E402
from tensor_graphs.models.common.quantization import dequantized  # noqa: E402
from tensor_graphs.models.onnx.load import load_onnx  # noqa: E402
from tensor_graphs.models.onnx.ops import OPERATORS  # noqa: E402

from ..fuzz.onnx_microsoft import NODES, tried  # noqa: E402
from .genai_decoder import VOCABULARY, no_past, save  # noqa: E402

#: Operators without a kernel for CPUs in ONNX Runtime, and those that are another operator's function.
NOT_COMPARED = {"BiasAdd", "DequantizeLinear", "QuantizeLinear", "SimplifiedLayerNormalization", "Trilu"}
SEEDS = 6


@pytest.mark.parametrize("op", NODES)
def test_operators_agree_with_onnx_runtime(op: str, tmp_path: Path) -> None:
    message = [tried(seed, op, tmp_path) for seed in range(SEEDS)]
    assert not [s for s in message if s and not s.startswith("-")]
    assert message.count("") >= SEEDS // 3  # the others are variants that one of the two does not have


def test_every_operator_is_compared() -> None:
    added = {name.removeprefix("com.microsoft.") for name in OPERATORS if name.startswith("com.microsoft.")}
    assert added - NODES.keys() == NOT_COMPARED - NODES.keys()


def saved(folder: Path, op: str, operands: list[Any], domain: str = "com.microsoft", outputs: int = 1, known: tuple[int, ...] = (), **attrs: Any) -> Path:  # fmt: skip
    """A model of one node, whose operands at `known` are initializers; None: omitted."""
    names = ["" if x is None else f"i{k}" for k, x in enumerate(operands)]
    node = helper.make_node(op, names, [f"o{k}" for k in range(outputs)], domain=domain, **attrs)
    inputs, initial = [], []
    for k, x in enumerate(operands):
        if k in known:
            initial.append(x if isinstance(x, onnx.TensorProto) else numpy_helper.from_array(x, names[k]))
        elif x is not None:
            inputs.append(helper.make_tensor_value_info(names[k], helper.np_dtype_to_tensor_dtype(x.dtype), x.shape))
    graph = helper.make_graph([node], "g", inputs, [onnx.ValueInfoProto(name=f"o{k}") for k in range(outputs)], initial)
    for o in graph.output:
        o.type.tensor_type.elem_type = 1
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid("com.microsoft", 1)]
    file = folder / "m.onnx"
    file.write_bytes(helper.make_model(graph, opset_imports=opsets, ir_version=10).SerializeToString())
    return file


def floats(*shape: int) -> np.ndarray[Any, Any]:
    return np.random.default_rng(0).standard_normal(shape).astype(np.float32)


def codes(*shape: int) -> np.ndarray[Any, Any]:
    return np.random.default_rng(0).integers(0, 256, shape).astype(np.uint8)


X, HEADS = floats(2, 3, 32), floats(2, 2, 3, 16)
ONES = np.ones(2, np.int32)
NBITS = {"K": 32, "N": 4, "block_size": 32}
GROUPS = {"num_heads": 2, "kv_num_heads": 2}
REFUSED: dict[str, tuple[str, list[Any], dict[str, Any], tuple[int, ...]]] = {
    "bits=3": ("MatMulNBits", [X, codes(4, 1, 12), floats(4, 1)], {**NBITS, "bits": 3}, (1, 2)),
    "g_idx": ("MatMulNBits", [X, codes(4, 1, 16), floats(4, 1), None, np.zeros(32, np.int32)], NBITS, (1, 2)),
    "is no initializer": ("MatMulNBits", [X, codes(4, 1, 16), floats(4, 1)], NBITS, (2,)),
    "weight_prepacked": ("MatMulNBits", [X, codes(4, 1, 16), floats(4, 1)], {**NBITS, "weight_prepacked": 1}, (1, 2)),
    "causal=0": ("GroupQueryAttention", [X, X, X, None, None, ONES, ONES], {**GROUPS, "causal": 0}, ()),
    "k_quant_type": ("GroupQueryAttention", [X, X, X, None, None, ONES, ONES], {**GROUPS, "k_quant_type": "PER_TENSOR"}, ()),
    "sliding_window_cache": ("GroupQueryAttention", [X, X, X, None, None, ONES, ONES], {**GROUPS, "sliding_window_cache": 1}, ()),
    "query_seqlens": ("GroupQueryAttention", [X, X, X, None, None, ONES, ONES, *[None] * 9, ONES], GROUPS, ()),
    "cache_indirection": ("MultiHeadAttention", [X, X, X, *[None] * 6, ONES], {"num_heads": 2}, ()),
    "mask of shape": ("MultiHeadAttention", [X, X, X, None, np.ones(8, np.int32)], {"num_heads": 2}, ()),
    "do_rotary": ("Attention", [X, floats(32, 96)], {"num_heads": 2, "do_rotary": 1}, ()),
    "is_packed_batching": ("RotaryEmbedding", [HEADS, np.zeros(1, np.int64), floats(9, 8), floats(9, 8)], {"is_packed_batching": 1}, ()),
    "activation Gelu": ("FusedConv", [floats(1, 2, 4, 4), floats(2, 2, 3, 3)], {"activation": "Gelu"}, ()),
    "output mean": ("SkipLayerNormalization", [X, X, floats(32)], {"outputs": 2}, ()),
    "local_window_size": ("GroupQueryAttention", [X, X, X, None, None, ONES, ONES], {**GROUPS, "local_window_size": 0}, ()),
    "operand 2 of rank 2": ("DynamicQuantizeMatMul", [X, codes(32, 4), floats(1, 4)], {}, ()),
    "unidirectional with keys": ("MultiHeadAttention", [X, floats(2, 5, 32), floats(2, 5, 32)], {"num_heads": 2, "unidirectional": 1}, ()),
    "FastGelu2": ("FastGelu2", [X], {}, ()),
}  # fmt: skip


@pytest.mark.parametrize("variant", REFUSED)
def test_other_variants_are_refused_by_name(variant: str, tmp_path: Path) -> None:
    op, operands, attrs, known = REFUSED[variant]
    with pytest.raises(UnsupportedError) as refused:
        load_onnx(saved(tmp_path, op, operands, known=known, **attrs))
    (message,) = refused.value.missing
    assert message.startswith(f"com.microsoft.{op}") and variant in message


def test_operators_of_other_domains_are_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedError) as refused:
        load_onnx(saved(tmp_path, "Normalizer", [X], domain="ai.onnx.ml"))
    assert "ai.onnx.ml.Normalizer" in refused.value.missing


def test_layouts_of_one_processor_are_refused_with_a_remedy(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedError, match="save it with level extended"):
        load_onnx(saved(tmp_path, "ReorderInput", [X], domain="com.microsoft.nchwc"))


def test_a_flag_is_0_or_1(tmp_path: Path) -> None:
    with pytest.raises(BadModelError, match="unidirectional is 3, not 0 or 1"):
        load_onnx(saved(tmp_path, "MultiHeadAttention", [X, X, X], num_heads=2, unidirectional=3))


def test_zero_points_have_the_dtype_of_the_numbers(tmp_path: Path) -> None:
    import ml_dtypes

    four = np.zeros((4, 4), ml_dtypes.uint4)
    with pytest.raises(BadModelError, match="zero points of uint8 for numbers of uint4"):
        load_onnx(saved(tmp_path, "DequantizeLinear", [four, floats(4), codes(4)], domain="", known=(0, 1, 2)))


def test_a_weight_of_another_size_is_a_bad_model(tmp_path: Path) -> None:
    with pytest.raises(BadModelError, match="4 rows and 32 inputs of 4 bits"):
        load_onnx(saved(tmp_path, "MatMulNBits", [X, codes(4, 1, 8), floats(4, 1)], known=(1, 2), **NBITS))


def test_biases_are_added(tmp_path: Path) -> None:
    """ONNX Runtime has no kernel for CPUs."""
    given = [X, floats(32), X * 2]
    (found,) = evaluate(load_onnx(saved(tmp_path, "BiasAdd", given)), {f"i{k}": v for k, v in enumerate(given)})
    np.testing.assert_allclose(found, given[0] + given[1] + given[2], rtol=1e-5)


def test_packed_queries_keys_and_values_are_those_apart(tmp_path: Path) -> None:
    """ONNX Runtime has no kernel of packed operands for CPUs."""
    parts = [floats(2, 3, 2, 16) + i for i in range(3)]
    flat = [p.reshape(2, 3, 32) for p in parts]
    given = ([np.stack(parts, 3)], [flat[0], np.stack(parts[1:], 3)], flat)
    found = [
        evaluate(load_onnx(saved(tmp_path, "MultiHeadAttention", list(x), num_heads=2)), {f"i{k}": v for k, v in enumerate(x)})[0]
        for x in given
    ]  # fmt: skip
    np.testing.assert_allclose(found[0], found[2], rtol=1e-5)
    np.testing.assert_allclose(found[1], found[2], rtol=1e-5)


def test_more_results_than_an_operator_has_are_a_bad_model(tmp_path: Path) -> None:
    """The ONNX checker knows nothing of these operators."""
    with pytest.raises(BadModelError, match="does not give its result 'o1'"):
        load_onnx(saved(tmp_path, "Gelu", [X], outputs=2))


def test_weights_keep_their_bits_and_are_shared(tmp_path: Path) -> None:
    """A table of an embedding, reshaped, is the matrix of the last product, as onnxruntime-genai writes them."""
    nodes = [
        helper.make_node("Reshape", ["q", "shape"], ["table"]),
        helper.make_node("GatherBlockQuantized", ["table", "ids", "scale"], ["x"], domain="com.microsoft", bits=4, block_size=32),
        helper.make_node("MatMulNBits", ["x", "q", "scale"], ["y"], domain="com.microsoft", K=64, N=600, block_size=32),
    ]  # fmt: skip
    initial = [numpy_helper.from_array(a, n) for n, a in (("q", codes(600, 2, 16)), ("scale", floats(600, 2)), ("shape", np.array([600, 32])))]  # fmt: skip
    info = [helper.make_tensor_value_info("ids", 7, ["n"])], [helper.make_tensor_value_info("y", 1, ["n", 600])]
    graph = helper.make_graph(nodes, "g", *info, initial)
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid("com.microsoft", 1)]
    (tmp_path / "m.onnx").write_bytes(helper.make_model(graph, opset_imports=opsets, ir_version=10).SerializeToString())
    found = load_onnx(tmp_path / "m.onnx")
    assert {name: (data.shape, str(data.dtype)) for name, data in found.params.items()} == {
        "q.q": ((600, 32), "uint8"), "q.scale": ((600, 2), "float32"),
    }  # fmt: skip


def test_four_bit_integers_that_are_not_dequantized_are_refused(tmp_path: Path) -> None:
    import ml_dtypes

    four = np.arange(-8, 8).astype(ml_dtypes.int4).reshape(4, 4)
    with pytest.raises(UnsupportedError) as refused:
        load_onnx(saved(tmp_path, "Cast", [four], domain="", known=(0,), to=1))
    assert list(refused.value.missing) == ["Cast (operand 0 of int4)"]
    with pytest.raises(UnsupportedError) as refused:
        load_onnx(saved(tmp_path, "Identity", [four], domain="", known=(0,)))
    assert "int4" in str(refused.value.missing)


def test_four_bit_integers_of_too_few_bytes_are_a_bad_model(tmp_path: Path) -> None:
    four = onnx.TensorProto(name="i0", data_type=onnx.TensorProto.INT4, dims=[4, 4], raw_data=bytes(7))
    with pytest.raises(BadModelError, match="needs 8 bytes, there are 7"):
        load_onnx(saved(tmp_path, "DequantizeLinear", [four, np.float32([1])], domain="", known=(0, 1)))


class TestDecoder:
    """A decoder as onnxruntime-genai exports it, stepped through its own caches, against ONNX Runtime."""

    @staticmethod
    def steps(file: Path, run: Any, batch: int, count: int, layers: int = 1) -> None:
        """Compare `run` (input values -> outputs) with ONNX Runtime: `count` steps of a token after a prompt of 3; the
        caches of each step are its own results. Rows of the batch have different lengths."""
        import onnxruntime as ort

        session = ort.InferenceSession(str(file), providers=["CPUExecutionProvider"])
        names = [o.name for o in session.get_outputs()]
        rng = np.random.default_rng(1)
        mask = np.ones((batch, 3), np.int64)
        mask[1:, 2:] = 0  # padded on the right
        prompt = {
            "input_ids": rng.integers(0, VOCABULARY, (batch, 3)),
            "attention_mask": mask,
            **no_past(batch, layers),
        }
        wanted = session.run(None, prompt)
        found = wanted
        for _ in range(count):
            mask = np.concatenate([mask, np.ones((batch, 1), np.int64)], 1)
            given = {"input_ids": rng.integers(0, VOCABULARY, (batch, 1)), "attention_mask": mask}
            past = [{f"past_key_values.{n[8:]}": v for n, v in zip(names, x) if n != "logits"} for x in (found, wanted)]
            found, wanted = run({**given, **past[0]}), session.run(None, {**given, **past[1]})
            np.testing.assert_allclose(found[0], wanted[0], rtol=1e-4, atol=1e-4)
            for mine, other in zip(found[1:], wanted[1:], strict=True):
                for row, length in enumerate(mask.sum(1)):  # further positions are not defined
                    np.testing.assert_allclose(mine[row, :, :length], other[row, :, :length], rtol=1e-4, atol=1e-4)

    def test_steps_of_rows_of_different_lengths(self, tmp_path: Path) -> None:
        file = save(tmp_path / "m.onnx")
        graph = load_onnx(file)
        assert set(graph.free_dims) == {"batch_size", "sequence_length", "past_sequence_length"}

        def run(given: dict[str, Any]) -> list[Any]:
            past = given["past_key_values.0.key"].shape[2]
            sizes = {"batch_size": 2, "sequence_length": 1, "past_sequence_length": past}
            return evaluate(graph.bind(sizes), given)

        self.steps(file, run, 2, 10, layers=2)

    def test_steps_of_a_program_of_any_past_length(self, tmp_path: Path) -> None:
        file = save(tmp_path / "m.onnx", layers=1)
        graph = load_onnx(file, dims={"batch_size": 1, "sequence_length": 1})
        program = tg.optimize(graph, backend="numpy", budget=1, measure=False, costdb=tmp_path / "costs")
        self.steps(file, lambda given: list(program(given).values()), 1, 10)


def test_products_are_those_of_quantized_checkpoints(tmp_path: Path) -> None:
    """The kernels of packed weights match the expression that loaders of checkpoints write."""
    graph = load_onnx(saved(tmp_path, "MatMulNBits", [X, codes(4, 1, 16), floats(4, 1)], known=(1, 2), **NBITS))
    packed, scale = t.param("i1.q", (4, 16), "uint8"), t.param("i1.scale", (4, 1), "float32")
    expected = t.matmul(t.input("i0", X.shape, "float32"), t.transpose(dequantized("int4", packed, scale)))
    assert graph.roots[0] is expected
