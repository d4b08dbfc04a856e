"""Small configurations of architectures of the package transformers, with random weights."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from .torch_architectures import Make

#: Sizes under the names that configurations use; each configuration takes those that it knows.
SIZES: dict[str, Any] = {
    "vocab_size": 64, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
    "intermediate_size": 64, "max_position_embeddings": 64, "head_dim": 8, "d_model": 32, "d_ff": 64, "num_layers": 2,
    "num_heads": 4, "d_kv": 8, "encoder_layers": 2, "decoder_layers": 2, "encoder_attention_heads": 4,
    "decoder_attention_heads": 4, "encoder_ffn_dim": 64, "decoder_ffn_dim": 64, "n_embd": 32, "n_layer": 2, "n_head": 4,
    "n_positions": 64, "n_ctx": 64, "n_inner": 64, "ffn_dim": 64, "word_embed_proj_dim": 32, "embedding_size": 32, "pad_token_id": 0,
    "bos_token_id": 1, "eos_token_id": 2, "rotary_dim": 4, "num_experts": 4, "num_local_experts": 4, "num_experts_per_tok": 2,
    "moe_intermediate_size": 32, "shared_expert_intermediate_size": 32, "state_size": 8, "time_step_rank": 4, "n_layers": 2,
    "n_heads": 4, "dim": 32, "hidden_dim": 64, "type_vocab_size": 2, "image_size": 32, "patch_size": 8, "num_channels": 3,
}  # fmt: skip

#: Text, image and audio models by their names in transformers.
TEXT = (
    "gpt2 llama mistral qwen2 qwen3 gemma gemma2 gemma3_text phi phi3 gpt_neox gptj gpt_neo opt bloom falcon mpt codegen gpt_bigcode "
    "starcoder2 stablelm olmo olmo2 cohere mixtral qwen2_moe granite nemotron persimmon biogpt xglm openai-gpt mamba glm smollm3 "
    "bert roberta albert distilbert electra deberta deberta-v2 mpnet xlnet squeezebert mobilebert convbert roformer layoutlm camembert "
    "ernie fnet nystromformer megatron-bert ibert t5 bart mbart pegasus marian blenderbot m2m_100"
)
IMAGES = (
    "vit deit beit swin swinv2 convnext convnextv2 resnet regnet mobilenet_v1 mobilenet_v2 mobilevit segformer poolformer dinov2 "
    "levit efficientnet focalnet vit_mae pvt yolos clip_vision_model siglip_vision_model dpt"
)
AUDIO = "wav2vec2 hubert audio-spectrogram-transformer whisper"

#: Settings of single architectures.
OWN: dict[str, dict[str, Any]] = {
    "gpt_neo": {"attention_types": [[["global", "local"], 1]], "window_size": 8},
    "gemma2": {"sliding_window": 8}, "gemma3_text": {"sliding_window": 8},
    "phi3": {"pad_token_id": 0}, "falcon": {"multi_query": True}, "mpt": {"max_seq_len": 64, "expansion_ratio": 2},
    "funnel": {"block_sizes": [1, 1]}, "mobilebert": {"true_hidden_size": 32, "intra_bottleneck_size": 32, "embedding_size": 32},
    "xlnet": {"d_inner": 64, "d_head": 8}, "squeezebert": {"q_groups": 1, "k_groups": 1, "v_groups": 1, "post_attention_groups": 1, "intermediate_groups": 1, "output_groups": 1},
    "nystromformer": {"num_landmarks": 12, "segment_means_seq_len": 12}, "megatron-bert": {}, "deberta": {"relative_attention": True, "pos_att_type": ["c2p", "p2c"]},
    "deberta-v2": {"relative_attention": True, "pos_att_type": ["c2p", "p2c"], "position_buckets": 8},
    "swin": {"embed_dim": 16, "depths": [1, 1], "num_heads": [2, 4], "window_size": 4, "patch_size": 4},
    "swinv2": {"embed_dim": 16, "depths": [1, 1], "num_heads": [2, 4], "window_size": 4, "patch_size": 4},
    "convnext": {"hidden_sizes": [8, 16, 16, 16], "depths": [1, 1, 1, 1]}, "convnextv2": {"hidden_sizes": [8, 16, 16, 16], "depths": [1, 1, 1, 1]},
    "resnet": {"embedding_size": 8, "hidden_sizes": [8, 16, 16, 16], "depths": [1, 1, 1, 1]},
    "regnet": {"embedding_size": 8, "hidden_sizes": [8, 16, 16, 16], "depths": [1, 1, 1, 1], "groups_width": 4},
    "mobilevit": {"hidden_sizes": [16, 16, 32], "neck_hidden_sizes": [8, 8, 16, 16, 16, 16, 32], "patch_size": 2},
    "segformer": {"hidden_sizes": [8, 16, 16, 32], "depths": [1, 1, 1, 1], "num_attention_heads": [1, 2, 2, 4], "num_encoder_blocks": 4, "patch_sizes": [7, 3, 3, 3]},
    "poolformer": {"hidden_sizes": [8, 16, 16, 32], "depths": [1, 1, 1, 1], "patch_size": 7}, "levit": {"hidden_sizes": [16, 32, 32], "num_attention_heads": [2, 4, 4], "depths": [1, 1, 1], "key_dim": [8, 8, 8], "patch_size": 16, "image_size": 64},
    "efficientnet": {"width_coefficient": 0.25, "depth_coefficient": 0.1, "image_size": 32, "hidden_dim": 320},
    "focalnet": {"embed_dim": 16, "depths": [1, 1], "hidden_sizes": [16, 32], "focal_levels": [2, 2], "focal_windows": [3, 3], "patch_size": 4},
    "pvt": {"hidden_sizes": [8, 16, 16, 32], "depths": [1, 1, 1, 1], "num_attention_heads": [1, 2, 2, 4], "patch_sizes": [4, 2, 2, 2]},
    "mobilenet_v1": {"depth_multiplier": 0.25}, "mobilenet_v2": {"depth_multiplier": 0.25}, "yolos": {"image_size": [32, 32]},
    "dpt": {"backbone_out_indices": [0, 0, 1, 1], "neck_hidden_sizes": [8, 8, 16, 16], "fusion_hidden_size": 16, "is_hybrid": False},
    "wav2vec2": {"conv_dim": [16, 16], "conv_kernel": [10, 3], "conv_stride": [5, 2], "num_conv_pos_embeddings": 8, "num_conv_pos_embedding_groups": 2},
    "hubert": {"conv_dim": [16, 16], "conv_kernel": [10, 3], "conv_stride": [5, 2], "num_conv_pos_embeddings": 8, "num_conv_pos_embedding_groups": 2},
    "audio-spectrogram-transformer": {"max_length": 64, "num_mel_bins": 16, "patch_size": 8, "frequency_stride": 8, "time_stride": 8},
    "whisper": {"num_mel_bins": 8, "max_source_positions": 16, "max_target_positions": 16},
}  # fmt: skip


def _model(name: str) -> Any:
    """The model of a kind with small sizes, in evaluation mode."""
    from transformers import AutoConfig, AutoModel

    known = AutoConfig.for_model(name)
    fields = set(known.to_dict()) | set(getattr(known, "attribute_map", {}))
    # sizes as lists belong to single architectures
    plain = {n: v for n, v in SIZES.items() if n in fields and not isinstance(getattr(known, n, None), list | tuple)}
    if name in ("phi3", "mamba", "codegen"):
        plain.pop("head_dim", None)
    config = AutoConfig.for_model(name, **{**plain, **OWN.get(name, {})})
    config.use_cache = False
    return AutoModel.from_config(config)


def _inputs(name: str) -> Callable[[], tuple[torch.Tensor, ...]]:
    def text() -> tuple[torch.Tensor, ...]:
        return (torch.randint(3, 64, (2, 12)),)

    if name in IMAGES.split():
        return lambda: (torch.randn(2, 3, 64 if name == "levit" else 32, 64 if name == "levit" else 32),)
    if name in AUDIO.split():
        shape = {"audio-spectrogram-transformer": (2, 64, 16), "whisper": (2, 8, 32)}.get(name, (2, 400))
        if name == "whisper":
            return lambda: (torch.randn(shape), torch.randint(3, 64, (2, 6)))
        return lambda: (torch.randn(shape),)
    return text


class Called(torch.nn.Module):
    """A model called with the keyword arguments that its kind needs."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self.kind, self.model = name, _model(name)

    def forward(self, *args: torch.Tensor) -> Any:
        """The model's results without those that are no tensors."""
        if self.kind == "whisper":
            return self.model(input_features=args[0], decoder_input_ids=args[1]).last_hidden_state
        if self.kind in ("t5", "bart", "mbart", "pegasus", "marian", "blenderbot", "m2m_100"):
            return self.model(input_ids=args[0], decoder_input_ids=args[0]).last_hidden_state
        more = {"noise": args[0][:, 0, :4, :4].flatten(1)} if self.kind == "vit_mae" else {}
        return self.model(args[0], **more)[0]


def transformers() -> dict[str, Make]:
    """Name -> (builder of the model, builder of its operands)."""
    return {f"hf {n}": ((lambda n=n: Called(n)), _inputs(n)) for n in f"{TEXT} {IMAGES} {AUDIO}".split()}


__all__ = ["transformers"]
