"""Further architectures of the package transformers, with small sizes and random weights: state spaces, recurrent
models, experts, encoder-decoders, detection, segmentation, video, speech, audio codecs, time series, and models of
images with text.

Sizes are set in every configuration, also in those of parts (`text_config`, `vision_config`, `backbone_config`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import torch

from .torch_architectures import Make
from .torch_transformers import SIZES

#: Kind of inputs -> architectures by their names in transformers.
KINDS = {
    "text": "mamba2 rwkv falcon_mamba jamba recurrent_gemma deepseek_v2 gpt_oss qwen3_moe qwen3_next olmoe exaone4 cohere2 "
    "ministral modernbert esm big_bird longformer canine xlm flaubert rembert bitnet diffllama helium lfm2 "
    "xlstm nanochat doge glm4 granitemoe minimax llama4_text ctrl mra yoso luke markuplm jetmoe "
    "phimoe ernie4_5 vaultgemma olmo3 apertus xlm-roberta-xl kimi_linear nomic_bert",
    "pair": "longt5 umt5 switch_transformers led prophetnet fsmt pegasus_x bigbird_pegasus plbart blenderbot-small t5gemma nllb-moe",
    "image": "bit donut-swin glpn hgnet_v2 hiera ijepa maskformer-swin pvt_v2 swiftformer swin2sr textnet vit_msn "
    "vitdet dinov2_with_registers dinov3_vit dinov3_convnext data2vec-vision aimv2_vision_model sam_vision_model "
    "pixtral mlcd_vision_model imagegpt radio",
    "detect": "detr deformable_detr conditional_detr table-transformer",
    "video": "timesformer videomae vivit vjepa2",
    "wave": "wavlm sew sew-d unispeech unispeech-sat data2vec-audio wav2vec2-conformer encodec dac mimi moonshine",
    "frames": "wav2vec2-bert speech_to_text parakeet_encoder fastspeech2_conformer qwen2_audio_encoder voxtral_encoder",
    "series": "patchtst patchtsmixer",
    "image and text": "clip siglip blip git flava clipseg owlvit altclip chinese_clip groupvit visual_bert lxmert",
    "image in text": "llava smolvlm idefics3 internvl gemma3 aya_vision",
}

#: Further names of sizes, and lists that are equally long in all architectures that have them.
MORE: dict[str, Any] = {
    **SIZES, "num_attention_groups": 2, "expand": 2, "projection_dim": 16, "decoder_start_token_id": 1, "n_groups": 1, "num_encoder_layers": 2,
    "num_decoder_layers": 2, "q_lora_rank": 8, "kv_lora_rank": 8, "qk_nope_head_dim": 8, "qk_rope_head_dim": 4, "v_head_dim": 8,
    "n_routed_experts": 4, "n_group": 1, "topk_group": 1, "first_k_dense_replace": 1, "sliding_window": 8, "num_hidden_groups": 1,
    "max_source_positions": 64, "max_target_positions": 64, "num_mel_bins": 16, "mamba_d_state": 8, "mamba_d_head": 8, "mamba_expand": 2,
    "encoder_num_hidden_layers": 2, "decoder_num_hidden_layers": 2, "encoder_num_attention_heads": 4, "decoder_num_attention_heads": 4,
    "encoder_num_key_value_heads": 2, "decoder_num_key_value_heads": 2, "num_conv_pos_embeddings": 8, "num_conv_pos_embedding_groups": 2,
    "num_queries": 8, "num_filters": 4, "codebook_size": 16, "codebook_dim": 8, "num_frames": 4, "tubelet_size": 2, "mlp_dim": 64,
    "output_channels": 8, "fpn_hidden_size": 16, "vector_quantization_hidden_dimension": 8, "num_quantizers": 4, "vocab_size_per_layer_input": 64,
    "hidden_size_per_layer_input": 8, "encoder_hidden_size": 8, "out_hidden_size": 32, "depth": 2, "spatial_merge_size": 1,
    "shared_intermediate_size": 32, "ffn_hidden_size": 64, "encoder_hidden_dim": 32, "num_codebooks": 2, "attention_hidden_size": 32,
    "lru_width": 32, "attention_window_size": 8, "max_seq_len": 64, "n_embed": 32, "d_inner": 64, "d_head": 8, "num_blocks": 2, "expansion_factor": 2,
}  # fmt: skip

#: Settings of single architectures.
OWN: dict[str, dict[str, Any]] = {
    "bit": {"embedding_size": 8, "hidden_sizes": [8, 16, 16, 16], "depths": [1, 1, 1, 1], "num_groups": 4},
    "cvt": {"embed_dim": [16, 16, 32], "num_heads": [1, 2, 4], "depth": [1, 1, 2]},
    "donut-swin": {"embed_dim": 16, "depths": [1, 1], "num_heads": [2, 4], "window_size": 4, "patch_size": 4},
    "maskformer-swin": {"embed_dim": 16, "depths": [1, 1], "num_heads": [2, 4], "window_size": 4, "patch_size": 4},
    "glpn": {"hidden_sizes": [8, 16, 16, 32], "depths": [1, 1, 1, 1], "num_attention_heads": [1, 2, 2, 4]},
    "pvt_v2": {"hidden_sizes": [8, 16, 16, 32], "depths": [1, 1, 1, 1], "num_attention_heads": [1, 2, 2, 4]},
    "hgnet_v2": {"embedding_size": 8, "hidden_sizes": [8, 16, 16, 32], "depths": [1, 1, 1, 1], "stem_channels": [3, 8, 8], "stage_in_channels": [8, 16, 16, 16], "stage_mid_channels": [8, 8, 8, 8],
                 "stage_out_channels": [16, 16, 16, 32], "stage_num_blocks": [1, 1, 1, 1], "stage_numb_of_layers": [2, 2, 2, 2]},
    "hiera": {"embed_dim": 16, "image_size": [32, 32], "depths": [1, 1], "num_heads": [1, 2], "num_query_pool": 1, "masked_unit_size": [4, 4], "masked_unit_attention": [True, False]},
    "mobilevitv2": {"n_attn_blocks": [1, 1, 1], "base_attn_unit_dims": [16, 16, 16], "width_multiplier": 0.25},
    "swiftformer": {"depths": [1, 1, 1, 1], "embed_dims": [8, 16, 16, 32]}, "swin2sr": {"embed_dim": 16, "depths": [1, 1], "num_heads": [2, 2], "window_size": 4, "patch_size": 1},
    "textnet": {"stem_out_channels": 8, "hidden_sizes": [8, 8, 16, 16, 32]}, "vitdet": {"pretrain_image_size": 32, "window_size": 2, "window_block_indices": [0]},
    "dinov3_convnext": {"hidden_sizes": [8, 16, 16, 16], "depths": [1, 1, 1, 1]}, "sam_vision_model": {"window_size": 2, "global_attn_indexes": [1], "num_pos_feats": 4},
    "radio": {"max_img_size": 64}, "funnel": {"block_sizes": [1, 1]}, "xlm": {"emb_dim": 32}, "flaubert": {"emb_dim": 32}, "imagegpt": {"vocab_size": 64},
    "big_bird": {"attention_type": "original_full"}, "bigbird_pegasus": {"attention_type": "original_full"}, "longformer": {"attention_window": 4},
    "led": {"attention_window": 4, "max_encoder_position_embeddings": 64, "max_decoder_position_embeddings": 64}, "reformer": {"axial_pos_shape": [4, 16], "axial_pos_embds_dim": [8, 24], "attn_layers": ["local", "lsh"], "num_buckets": 4, "lsh_attn_chunk_length": 4, "local_attn_chunk_length": 4, "feed_forward_size": 64, "attention_head_size": 8},
    "canine": {"num_hash_functions": 4, "num_hash_buckets": 32, "local_transformer_stride": 8}, "wavlm": {}, "rembert": {"input_embedding_size": 16, "output_embedding_size": 16},
    "fastspeech2_conformer": {"vocab_size": 64, "encoder_linear_units": 64, "decoder_linear_units": 64, "speech_decoder_postnet_units": 16, "duration_predictor_channels": 16, "energy_predictor_channels": 16, "pitch_predictor_channels": 16},
    "wav2vec2-bert": {"feature_projection_input_dim": 16}, "speech_to_text": {"input_feat_per_channel": 16, "conv_channels": 32}, "parakeet_encoder": {"subsampling_conv_channels": 8},
    "encodec": {"hidden_size": 16, "codebook_dim": 16, "upsampling_ratios": [4, 2]}, "dac": {"downsampling_ratios": [2, 4], "upsampling_ratios": [4, 2], "decoder_hidden_size": 32, "n_codebooks": 2, "hidden_size": 32},
    "mimi": {"upsampling_ratios": [4, 2], "upsample_groups": 32, "num_semantic_quantizers": 1}, "univnet": {"model_in_channels": 8, "model_hidden_channels": 8, "num_mel_bins": 16},
    "patchtst": {"num_input_channels": 3}, "patchtsmixer": {"num_input_channels": 3}, "timesfm": {"patch_length": 8, "context_length": 32, "horizon_length": 16},
    "videomae": {"num_frames": 4}, "vjepa2": {"frames_per_clip": 4, "crop_size": 32, "pred_hidden_size": 32, "pred_num_attention_heads": 4, "pred_num_hidden_layers": 2, "pred_num_mask_tokens": 2},
    **{n: {"backbone_config": {"model_type": "resnet", "embedding_size": 8, "hidden_sizes": [8, 16, 16, 16], "depths": [1, 1, 1, 1], "out_features": ["stage2", "stage3", "stage4"][-k:]}} for n, k in (("detr", 1), ("conditional_detr", 1), ("table-transformer", 1), ("deformable_detr", 3))},
    "deepseek_v2": {"num_key_value_heads": 4}, "deepseek_v3": {"num_key_value_heads": 4}, "moonshine": {"encoder_num_key_value_heads": 4, "decoder_num_key_value_heads": 4},
    "llava": {"image_token_index": 60}, "smolvlm": {"image_token_id": 60, "scale_factor": 1}, "idefics3": {"image_token_id": 60, "scale_factor": 1}, "paligemma": {"image_token_index": 60}, "internvl": {"image_token_id": 60, "downsample_ratio": 1.0}, "gemma3": {"image_token_index": 60, "mm_tokens_per_image": 16},
    "aya_vision": {"image_token_index": 60}, "qwen2_5_vl": {"image_token_id": 60}, "qwen3_vl": {"image_token_id": 60}, "mamba2": {"num_heads": 8, "head_dim": 8}, "zamba2": {"mamba_ngroups": 1}, "jamba": {"attn_layer_period": 2, "attn_layer_offset": 1, "use_mamba_kernels": False}, "luke": {"entity_vocab_size": 16, "entity_emb_size": 16},
}  # fmt: skip

for _name in ["wavlm", "sew", "sew-d", "unispeech", "unispeech-sat", "data2vec-audio", "wav2vec2-conformer"]:
    OWN[_name] = {"conv_dim": [16, 16], "conv_kernel": [10, 3], "conv_stride": [5, 2], **OWN.get(_name, {})}


#: Names of the arguments of single architectures.
INPUTS: dict[str, list[str]] = {
    "imagegpt": ["input_ids"], "vjepa2": ["pixel_values_videos"], "univnet": ["input_features", "noise_sequence"], "moonshine": ["input_values", "decoder_input_ids"],
    "speech_to_text": ["input_features", "decoder_input_ids"], "fastspeech2_conformer": ["input_ids"], "visual_bert": ["visual_embeds", "input_ids"],
    "lxmert": ["visual_feats", "input_ids", "visual_pos"], "clvp": ["input_features", "input_ids"], 
}  # fmt: skip


def _ids(*shape: int) -> torch.Tensor:
    return torch.randint(3, 64, shape)


def _image() -> torch.Tensor:
    return torch.randn(2, 3, 32, 32)


def _with_image(tokens: int, at: int, images: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    """An image, and text in which the token `at` stands for each of its `tokens` patches."""
    text = torch.randint(10, 50, (2, tokens + 6))
    text[:, 2 : 2 + tokens] = at
    image = _image()
    return image[:, None].expand(-1, images, -1, -1, -1) if images else image, text


#: Operands by kind, and of single architectures.
SHAPES: dict[str, Callable[[], tuple[torch.Tensor, ...]]] = {
    "text": lambda: (_ids(2, 12),), "pair": lambda: (_ids(2, 12), _ids(2, 6)), "image": lambda: (_image(),), "detect": lambda: (torch.randn(1, 3, 64, 64),),
    "video": lambda: (torch.randn(1, 4, 3, 32, 32),), "wave": lambda: (torch.randn(2, 400),), "frames": lambda: (torch.randn(2, 32, 16),), "series": lambda: (torch.randn(2, 32, 3),),
    "image and text": lambda: (_image(), _ids(2, 12)), "image in text": lambda: _with_image(16, 60),
    "imagegpt": lambda: (_ids(2, 16),), "sam2_vision_model": lambda: (torch.randn(1, 3, 64, 64),), "encodec": lambda: (torch.randn(2, 1, 400),), "dac": lambda: (torch.randn(2, 1, 400),), "mimi": lambda: (torch.randn(2, 1, 400),),
    "univnet": lambda: (torch.randn(1, 16, 16), torch.randn(1, 16, 8)), "moonshine": lambda: (torch.randn(1, 4000), _ids(1, 6)), "speech_to_text": lambda: (torch.randn(2, 32, 16), _ids(2, 6)),
    "fastspeech2_conformer": lambda: (_ids(1, 12),), "visual_bert": lambda: (torch.randn(2, 5, 512), _ids(2, 12)), "lxmert": lambda: (torch.randn(2, 5, 2048), _ids(2, 12), torch.rand(2, 5, 4)),
    "qwen2_audio_encoder": lambda: (torch.randn(2, 16, 128),), "voxtral_encoder": lambda: (torch.randn(2, 16, 128),), "canine": lambda: (_ids(2, 32),), "reformer": lambda: (_ids(2, 16),), "led": lambda: (_ids(2, 16), _ids(2, 6)),
    "smolvlm": lambda: _with_image(16, 60, 1), "idefics3": lambda: _with_image(16, 60, 1), "internvl": lambda: _with_image(4, 60), "aya_vision": lambda: _with_image(4, 60), "mobilevitv2": lambda: (torch.randn(1, 3, 128, 128),), "deformable_detr": lambda: (torch.randn(1, 3, 128, 128),),
    "textnet": lambda: (torch.randn(1, 3, 64, 64),), "bit": lambda: (torch.randn(2, 3, 64, 64),),
}  # fmt: skip

UNCACHED = [
    "modernbert",
    "esm",
    "longformer",
    "canine",
    "xlm",
    "flaubert",
    "mra",
    "yoso",
    "luke",
    "lilt",
    "markuplm",
    "nomic_bert",
    "big_bird",
    "rembert",
    "xlm-roberta-xl",
]


def _small(config: Any, own: Mapping[str, Any]) -> dict[str, Any]:
    """Settings that make a configuration and those of its parts small."""
    fields = set(config.to_dict()) | set(getattr(config, "attribute_map", {}))
    lists = list | tuple | dict
    found = {n: v for n, v in MORE.items() if n in fields and not isinstance(getattr(config, n, None), lists)}
    if hasattr(type(config), "head_dim") and "head_dim" not in config.to_dict():
        found.pop("head_dim", None)
    for part in getattr(config, "sub_configs", {}):
        if (inner := getattr(config, part, None)) is not None and hasattr(inner, "to_dict"):
            kind = inner.model_type
            found[part] = {**_small(inner, OWN.get(kind, {})), **({"model_type": kind} if kind else {})}
    return {**found, **own}


def _model(name: str) -> Any:
    """The model of the architecture `name` (`model_type`) with small sizes and random weights, in evaluation mode."""
    from transformers import AutoConfig, AutoModel

    config = AutoConfig.for_model(name, **_small(AutoConfig.for_model(name), OWN.get(name, {})))
    return AutoModel.from_config(config).eval()


class Called(torch.nn.Module):
    """A model called with the keyword arguments that its kind needs; returns all tensors of its results."""

    def __init__(self, kind: str, name: str) -> None:
        super().__init__()
        self.kind, self.name, self.model = kind, name, _model(name)

    def forward(self, *args: torch.Tensor) -> Any:
        """The tensors of the model's results by name, without caches."""
        found = self.model(**_named(self.kind, self.name, args))
        return {k: v for k, v in found.items() if isinstance(v, torch.Tensor | tuple)}


def _named(kind: str, name: str, args: tuple[torch.Tensor, ...]) -> dict[str, Any]:
    """Keyword arguments of a model of a kind."""
    names = {"text": ["input_ids"], "pair": ["input_ids", "decoder_input_ids"], "wave": ["input_values"], "frames": ["input_features"],
             "series": ["past_values"], "image and text": ["pixel_values", "input_ids"], "image in text": ["pixel_values", "input_ids"]}.get(kind, ["pixel_values"])  # fmt: skip
    found: dict[str, Any] = dict(zip(INPUTS.get(name, names), args))
    return found | {"use_cache": False} if kind in ("text", "pair") and name not in UNCACHED else found


def _inputs(kind: str, name: str) -> Callable[[], tuple[torch.Tensor, ...]]:
    return SHAPES.get(name) or SHAPES[kind]


def more_transformers() -> dict[str, Make]:
    """Name -> (builder of the model, builder of its operands)."""
    return {
        f"hf {n}": (partial(Called, kind, n), _inputs(kind, n)) for kind, names in KINDS.items() for n in names.split()
    }


__all__ = ["more_transformers"]
