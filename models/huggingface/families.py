"""Describes families of decoders with rotary position embeddings, as data: how their layers differ, and their sizes
read from a config."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ...errors import BadModelError, UnsupportedError
from .checkpoint import Config
from .layers import MAX_HEAD
from .rotary import Rope, rope_of


@dataclass(frozen=True)
class Windows:
    """Sliding windows of a decoder family: which layers see only the latest positions.

    `size`: default of the config field `sliding_window`, 0 for none. `layers` with a window: "none", "all", "flagged"
    (all if the config sets `use_sliding_window`), "upper" (those from `max_window_layers` on, if it is set) or
    "alternating" (all but every `period`-th; `sliding_window` must not be null).
    """

    layers: str = "none"
    size: int = 4096
    period: int = 2


@dataclass(frozen=True)
class Experts:
    """Options of a layer of routed experts: how many per token, and how its tensors are called.

    `at`: prefix of its tensors' names. `router`: name of the router's tensor. `count`, `inner`: config fields of the
    number of experts and of their inner size. `parts`: names of gate, up and down matrices in expert {e}; empty for
    stacked tensors with biases and interleaved gate and up. `scores`: "chosen" is a softmax over the chosen experts;
    "all" one over all experts, divided by the sum of the chosen ones; "flagged" is "all", divided only if the config's
    `norm_topk_prob` says so.
    """

    at: str
    router: str
    count: str
    inner: str = "intermediate_size"
    parts: tuple[str, ...] = ()
    scores: str = "all"


#: Config fields that the model classes of some families read; in the config of another family they change nothing.
OPTIONAL = {
    "attention_bias", "mlp_bias", "attn_logit_softcapping", "final_logit_softcapping", "sliding_window_pattern",
    "_sliding_window_pattern", "mlp_only_layers", "decoder_sparse_step",
}  # fmt: skip


@dataclass(frozen=True)
class Family:
    """Options in which rotary decoders of one `model_type` differ from others.

    `reads`: the fields of OPTIONAL that its model classes read. `qk_norm`: queries and keys are normalized. `tied`,
    `activation`, `rope_theta`, `eps`, `positions` and `original`: defaults of the config's fields, the activation's
    being `activation_field`, that of the longest sequence `max_position_embeddings`. `windows`: which layers see only
    the latest positions. `experts`: options of routed experts (None: a plain MLP).
    """

    reads: tuple[str, ...] = ()

    gain: str = "narrow"  # of RMS norms, see `rms_norm`
    qk_norm: bool = False
    qkv_bias: bool = False  # biases on the query, key and value projections only
    attention_bias: bool = False  # default of the config's flag: biases on all four projections
    post_norms: bool = False  # norms after attention and MLP, before the residual sum
    scaled_embedding: bool = False  # token embeddings are multiplied by sqrt(hidden)
    tied: bool = False
    fused: bool = False  # one tensor holds query, key and value, another gate and up
    sinks: bool = False  # a learned score per head that takes part in the softmax
    partial: bool = False  # a part of each head may be rotated
    local_rope: bool = False  # layers with a window have a rotary embedding of their own
    query_scalar: bool = False  # scores are divided by the root of `query_pre_attn_scalar`
    softcaps: tuple[float, float] = (0.0, 0.0)  # defaults of the caps on scores and on logits
    activation: str = "silu"
    activation_field: str = "hidden_act"
    eps: float = 1e-6
    positions: int = 131_072
    original: int | None = None  # `original_max_position_embeddings`
    rope_theta: float = 10_000.0
    rope_scaling: Mapping[str, Any] = field(default_factory=dict)  # default if the config has none
    head_dim: int | None = None  # default head size; None: hidden / heads
    windows: Windows = Windows()
    experts: Experts | None = None


_CAPS = ("attn_logit_softcapping", "final_logit_softcapping")
_GEMMA: dict[str, Any] = {
    "gain": "plus one", "post_norms": True, "scaled_embedding": True, "tied": True, "query_scalar": True,
    "activation": "gelu_pytorch_tanh", "activation_field": "hidden_activation", "head_dim": 256,
}  # fmt: skip
_YARN = {"rope_type": "yarn", "factor": 32.0, "beta_fast": 32.0, "beta_slow": 1.0, "truncate": False,
         "original_max_position_embeddings": 4096}  # fmt: skip
FAMILIES = {
    "llama": Family(reads=("attention_bias", "mlp_bias"), positions=2048),
    "mistral": Family(windows=Windows("all")),
    "qwen2": Family(qkv_bias=True, positions=32_768, windows=Windows("upper")),
    "qwen3": Family(
        reads=("attention_bias",), qk_norm=True, head_dim=128, positions=32_768, windows=Windows("upper")
    ),
    "gemma2": Family(
        **_GEMMA, reads=("attention_bias", *_CAPS), softcaps=(50.0, 30.0), positions=8192, windows=Windows("alternating")
    ),
    "gemma3_text": Family(
        **_GEMMA, reads=("attention_bias", *_CAPS, "sliding_window_pattern", "_sliding_window_pattern"), qk_norm=True,
        local_rope=True, rope_theta=1_000_000.0, windows=Windows("alternating", period=6),
    ),
    "phi3": Family(fused=True, partial=True, eps=1e-5, positions=4096, original=4096, windows=Windows("all", size=0)),
    "mixtral": Family(
        eps=1e-5, rope_theta=1_000_000.0, windows=Windows("all", size=0),
        experts=Experts("block_sparse_moe", "gate", "num_local_experts", parts=("w1", "w3", "w2")),
    ),
    "qwen3_moe": Family(
        reads=("attention_bias", "mlp_only_layers", "decoder_sparse_step"), qk_norm=True, positions=32_768,
        windows=Windows("flagged"),
        experts=Experts("mlp", "gate", "num_experts", "moe_intermediate_size", ("gate_proj", "up_proj", "down_proj"), "flagged"),
    ),
    "gpt_oss": Family(
        reads=("attention_bias",), gain="wide", attention_bias=True, sinks=True, eps=1e-5, rope_theta=150_000.0,
        rope_scaling=_YARN, head_dim=64, windows=Windows("alternating", size=128),
        experts=Experts("mlp", "router", "num_local_experts", scores="chosen"),
    ),
}  # fmt: skip


def read_by(family: Family, config: Config) -> Config:
    """The config without the fields of OPTIONAL that the family's model classes do not read."""
    ignored = OPTIONAL.difference(family.reads)
    return Config({name: value for name, value in config.fields.items() if name not in ignored}, config.where)


@dataclass(frozen=True)
class Sizes:
    """Sizes and numbers of a rotary decoder, read from a config and checked.

    `hidden`: width of the model. `heads`, `kv`: numbers of query and of key-value heads; `head`: size of one. `inner`:
    width of the MLP. `vocab`, `layers`: numbers of tokens and of layers. `positions`: longest sequence. `eps`: of the
    norms. `scale`: factor on scores; `softcap`: their cap (0: none). `qkv_bias`, `out_bias`, `mlp_bias`: whether the
    projections to queries, keys and values, the output projection, and the MLP have biases.
    """

    hidden: int
    heads: int
    kv: int
    head: int
    inner: int
    vocab: int
    layers: int
    positions: int
    eps: float
    scale: float
    softcap: float
    qkv_bias: bool
    out_bias: bool
    mlp_bias: bool

    @property
    def each(self) -> int:
        """Query heads per key-value head; 0 instead of 1, because such models need no axis for them."""
        return 0 if self.heads == self.kv else self.heads // self.kv


def sizes_of(config: Config, family: Family, most_layers: int) -> Sizes:
    """Sizes of a decoder with rotary position embeddings, from its config; `family` has defaults for what the config
    lacks.

    Raises BadModelError if the number of heads is no multiple of the number of key-value heads or if the head size is
    odd, TooLargeError for more than `most_layers` layers.
    """
    hidden, n_heads = config.size("hidden_size"), config.size("num_attention_heads")
    kv = config.size("num_key_value_heads", n_heads)
    head = config.size("head_dim", family.head_dim or max(hidden // n_heads, 1), most=MAX_HEAD)
    if n_heads % kv or head % 2:
        raise BadModelError(f"{n_heads} heads on {kv} key-value heads of size {head} do not fit", where=config.where)
    query = config.number("query_pre_attn_scalar", 256.0) if family.query_scalar else float(head)
    if query <= 0:
        raise BadModelError("query_pre_attn_scalar is not positive", where=config.where)
    bias = config.flag("attention_bias", family.attention_bias)
    return Sizes(
        hidden, n_heads, kv, head, config.size("intermediate_size"), config.size("vocab_size"),
        config.size("num_hidden_layers", most=most_layers), config.size("max_position_embeddings", family.positions),
        config.number("rms_norm_eps", family.eps), query**-0.5, softcap(config, "attn_logit_softcapping", family.softcaps[0]),
        bias or family.qkv_bias, bias, config.flag("mlp_bias", False),
    )  # fmt: skip


def softcap(config: Config, name: str, default: float) -> float:
    """Cap on scores or logits from the config field `name`; `default` if it is missing, 0 for none, also if the field
    is null."""
    return 0.0 if name in config.fields and config.fields[name] is None else config.number(name, default)


def ropes_of(config: Config, family: Family, s: Sizes) -> tuple[Rope, Rope]:
    """Rotary embeddings of a decoder, as (that of full attention layers, that of sliding-window layers).

    Newer configs have `rope_parameters` in place of `rope_scaling`, with a section for each kind of layer if these
    differ. Raises UnsupportedError where they contradict each other or the family, and for other values of
    `partial_rotary_factor` than it has.
    """
    given, older = config.section("rope_parameters"), config.section("rope_scaling")
    sections = {"full_attention", "sliding_attention"} & given.fields.keys()
    full = given.section("full_attention") if family.local_rope else given
    local = given.section("sliding_attention")
    if bool(sections) is not family.local_rope and given.fields:
        raise UnsupportedError("rope_parameters with sections of layers that the model has not, or without them",
                               where=config.where)  # fmt: skip
    if full.fields and older.fields and full.fields != older.fields:
        raise UnsupportedError("rope_parameters and rope_scaling differ", where=config.where)
    found = full if full.fields else older
    theta = found.number("rope_theta", config.number("rope_theta", family.rope_theta))
    if not found.fields and config.fields.get("rope_scaling", family) is not None:
        found = Config(family.rope_scaling, config.where)
    part = found.number("partial_rotary_factor", config.number("partial_rotary_factor", 1.0))
    if part != 1.0 and (not family.partial or not 0 < part <= 1 or int(s.head * part) % 2 or int(s.head * part) < 2):
        raise UnsupportedError(f"partial_rotary_factor={part} is not supported", where=found.where)
    if (original := config.fields.get("original_max_position_embeddings", family.original)) is not None:
        found = Config({**found.fields, "original_max_position_embeddings": original}, found.where)
    table = rope_of(theta, int(s.head * part), found, s.positions)
    if not family.local_rope:
        return table, table
    base = local.number("rope_theta", config.number("rope_local_base_freq", 10_000.0))
    local.refuse(partial_rotary_factor=1.0)
    return table, rope_of(base, s.head, local, s.positions)


def layer_windows(config: Config, kind: str, layers: int) -> list[int]:
    """Sliding window of each layer of a model of the family `kind` (key of FAMILIES); 0 means full attention.

    A null `sliding_window` disables all windows. Raises BadModelError or UnsupportedError for other lists of
    `layer_types`, and BadModelError for a missing window.
    """
    config, windows = read_by(FAMILIES[kind], config), FAMILIES[kind].windows
    off = "sliding_window" in config.fields and config.fields["sliding_window"] is None
    window = (
        0 if off else config.size("sliding_window", windows.size, least=0 if windows.layers != "alternating" else 1)
    )
    flag = windows.layers in ("flagged", "upper") and not config.flag("use_sliding_window", False)
    window = 0 if flag or windows.layers == "none" else window
    if windows.layers in ("none", "all", "flagged"):
        return [window] * layers
    if windows.layers == "alternating":
        if off:  # a window of 0 would select the rotary table of full-attention layers
            raise BadModelError("sliding_window is null", where=config.where)
        period = config.size("sliding_window_pattern", config.size("_sliding_window_pattern", windows.period))
        default = ["full" if (i + 1) % period == 0 else "sliding" for i in range(layers)]
    else:
        first = config.size("max_window_layers", 28, least=0)
        default = ["sliding" if window and i >= first else "full" for i in range(layers)]
    found = config.texts("layer_types") or default
    if len(found) != layers:
        raise BadModelError(f"layer_types does not list {layers} layers", where=config.where)
    known = {"full_attention": 0, "full": 0, "sliding_attention": window, "sliding": window}
    unknown = {name: found.count(name) for name in found if name not in known}
    if unknown:
        raise UnsupportedError("layer_types that are not supported", missing=unknown, where=config.where)
    return [known[name] for name in found]
