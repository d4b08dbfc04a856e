"""Describes families of decoders with rotary position embeddings, as data: how their layers differ, and their sizes
read from a config."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from math import sqrt
from typing import Any

from ...errors import BadModelError, UnsupportedError
from .checkpoint import Config
from .layers import MAX_HEAD
from .rotary import Rope, rope_of


@dataclass(frozen=True)
class Windows:
    """Sliding windows of a decoder family: which layers see only the latest positions.

    `size`: default of the config field `sliding_window`, 0 for none. `layers` with a window: "none", "all", "flagged"
    (all if the config sets `use_sliding_window`), "upper" (those from `max_window_layers` on, if it is set),
    "unrotated" (those without rotary positions, if it is set) or "alternating" (all but every `period`-th;
    `sliding_window` must not be null).
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


#: An option as (config field that sets it, default of the field); with an empty name it is always the default.
Option = tuple[str, bool]
NO: Option = ("", False)


@dataclass(frozen=True)
class Biases:
    """Which projections of a decoder family have biases: those to queries, keys and values; the output projection of
    attention; those of the MLP."""

    qkv: Option = NO
    out: Option = NO
    mlp: Option = NO


@dataclass(frozen=True)
class LayerNorms:
    """Names of the norms of a decoder layer: of the inputs of attention and MLP, and of their results before the
    residual sum. An empty name: there is no such norm."""

    attention_input: str = "input_layernorm"
    attention_output: str = ""
    mlp_input: str = "post_attention_layernorm"
    mlp_output: str = ""


#: Config fields that the model classes of some families read; in the config of another family they change nothing.
OPTIONAL = {
    "attn_logit_softcapping", "final_logit_softcapping", "sliding_window_pattern", "_sliding_window_pattern", "mlp_only_layers",
    "decoder_sparse_step", "qk_layernorm",
}  # fmt: skip


@dataclass(frozen=True)
class Family:
    """Options in which rotary decoders of one `model_type` differ from others.

    `reads`: the fields of OPTIONAL that its model classes read. `tied`, `activation`, `rope_theta`, `eps`, `positions`
    and `original`: defaults of the config's fields, those of the activation and of eps being `activation_field` and
    `eps_field`, that of the longest sequence `max_position_embeddings`. `windows`: which layers see only the latest
    positions. `experts`: options of routed experts (None: a plain MLP).
    """

    reads: tuple[str, ...] = ()

    norm: str = "rms"  # or "layer", "layer without bias"
    gain: str = "narrow"  # of RMS norms, see `rms_norm`
    norms: LayerNorms = LayerNorms()
    qk_norm: str = ""  # norms of queries and keys: "head" for each head, "all" over all heads; empty: none
    biases: Biases = Biases()
    parallel: Option = NO  # whether attention and MLP read the same normalized input
    scaled_embedding: bool = False  # token embeddings are multiplied by sqrt(hidden)
    multipliers: bool = False  # the config scales embeddings, scores, residual sums and logits
    logit_scale: float | None = None  # default of the config's factor on logits, `logit_scale`; None: no such field
    tied: bool = False
    fused: bool = False  # one tensor holds query, key and value, another gate and up
    mlp: tuple[str, ...] = ("gate_proj", "up_proj", "down_proj")  # matrices of the MLP; of two, there is no gate
    sinks: bool = False  # a learned score per head that takes part in the softmax
    partial: bool = False  # a part of each head may be rotated
    rotated_share: float = 1.0  # default of `partial_rotary_factor`
    interleaved: bool = False  # neighbouring elements of a head are rotated together, not those of its two halves
    unrotated: str = ""  # layers without rotary positions: "listed" in `no_rope_layers`, "full" attention; empty: none
    local_rope: bool = False  # layers with a window have a rotary embedding of their own
    query_scalar: bool = False  # scores are divided by the root of `query_pre_attn_scalar`
    softcaps: tuple[float, float] = (0.0, 0.0)  # defaults of the caps on scores and on logits
    activation: str = "silu"
    activation_field: str = "hidden_act"
    eps: float = 1e-6
    eps_field: str = "rms_norm_eps"
    positions: int = 131_072
    original: int | None = None  # `original_max_position_embeddings`
    rope_theta: float = 10_000.0
    rope_scaling: Mapping[str, Any] = field(default_factory=dict)  # default if the config has none
    head_dim: int | None = None  # default head size; None: hidden / heads
    windows: Windows = Windows()
    experts: Experts | None = None


_CAPS = ("attn_logit_softcapping", "final_logit_softcapping")
_ATTENTION_BIASES = Biases(qkv=("attention_bias", False), out=("attention_bias", False))
_ALL_BIASES = replace(_ATTENTION_BIASES, mlp=("mlp_bias", False))
_GEMMA: dict[str, Any] = {
    "gain": "plus one", "scaled_embedding": True, "tied": True, "biases": _ATTENTION_BIASES,
    "activation": "gelu_pytorch_tanh", "activation_field": "hidden_activation", "head_dim": 256,
}  # fmt: skip
_GEMMA2: dict[str, Any] = {
    **_GEMMA, "query_scalar": True,
    "norms": LayerNorms("input_layernorm", "post_attention_layernorm", "pre_feedforward_layernorm", "post_feedforward_layernorm"),
}  # fmt: skip
_YARN = {"rope_type": "yarn", "factor": 32.0, "beta_fast": 32.0, "beta_slow": 1.0, "truncate": False,
         "original_max_position_embeddings": 4096}  # fmt: skip
FAMILIES = {
    "llama": Family(biases=_ALL_BIASES, positions=2048),
    "mistral": Family(windows=Windows("all")),
    "granite": Family(biases=_ALL_BIASES, multipliers=True, positions=2048),
    "smollm3": Family(
        biases=_ALL_BIASES, unrotated="listed", tied=True, rope_theta=2_000_000.0, positions=32_768,
        windows=Windows("unrotated", size=0),
    ),
    "olmo2": Family(
        norms=LayerNorms("", "post_attention_layernorm", "", "post_feedforward_layernorm"), gain="wide", qk_norm="all",
        biases=_ATTENTION_BIASES, eps=1e-5, positions=2048,
    ),
    "starcoder2": Family(
        norm="layer", biases=Biases(*[("use_bias", True)] * 3), mlp=("c_fc", "c_proj"), activation="gelu_pytorch_tanh",
        tied=True, eps=1e-5, eps_field="norm_epsilon", positions=4096, windows=Windows("all", size=0),
    ),
    "stablelm": Family(
        norm="layer", reads=("qk_layernorm",), biases=Biases(("use_qkv_bias", False)), parallel=("use_parallel_residual", False), partial=True,
        rotated_share=0.25, eps=1e-5, eps_field="layer_norm_eps", positions=4096,
    ),
    "cohere2": Family(
        norm="layer without bias", norms=LayerNorms(mlp_input=""), biases=_ATTENTION_BIASES, parallel=("", True),
        reads=("sliding_window_pattern",), logit_scale=0.0625, tied=True, interleaved=True, unrotated="full", eps=1e-5,
        eps_field="layer_norm_eps", positions=8192, windows=Windows("alternating", period=4),
    ),
    "qwen2": Family(biases=Biases(qkv=("", True)), positions=32_768, windows=Windows("upper")),
    "qwen3": Family(
        biases=_ATTENTION_BIASES, qk_norm="head", head_dim=128, positions=32_768, windows=Windows("upper")
    ),
    "gemma": Family(**_GEMMA, positions=8192),
    "gemma2": Family(**_GEMMA2, reads=_CAPS, softcaps=(50.0, 30.0), positions=8192, windows=Windows("alternating")),
    "gemma3_text": Family(
        **_GEMMA2, reads=(*_CAPS, "sliding_window_pattern", "_sliding_window_pattern"), qk_norm="head",
        local_rope=True, rope_theta=1_000_000.0, windows=Windows("alternating", period=6),
    ),
    "phi3": Family(fused=True, partial=True, eps=1e-5, positions=4096, original=4096, windows=Windows("all", size=0)),
    "mixtral": Family(
        eps=1e-5, rope_theta=1_000_000.0, windows=Windows("all", size=0),
        experts=Experts("block_sparse_moe", "gate", "num_local_experts", parts=("w1", "w3", "w2")),
    ),
    "qwen3_moe": Family(
        biases=_ATTENTION_BIASES, reads=("mlp_only_layers", "decoder_sparse_step"), qk_norm="head", positions=32_768,
        windows=Windows("flagged"),
        experts=Experts("mlp", "gate", "num_experts", "moe_intermediate_size", ("gate_proj", "up_proj", "down_proj"), "flagged"),
    ),
    "gpt_oss": Family(
        biases=Biases(*[("attention_bias", True)] * 2), gain="wide", sinks=True, eps=1e-5, rope_theta=150_000.0,
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
    norms. `scale`: factor on scores; `softcap`: their cap (0: none). `embedding`, `residual`, `logits`: factors on
    token embeddings, on what is added to the residual stream, and on logits. `qkv_bias`, `out_bias`, `mlp_bias`:
    whether the projections to queries, keys and values, the output projection, and the MLP have biases. `parallel`:
    whether attention and MLP read the same normalized input.
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
    embedding: float
    residual: float
    logits: float
    qkv_bias: bool
    out_bias: bool
    mlp_bias: bool
    parallel: bool

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

    def factor(name: str, default: float) -> float:
        return config.number(name, default) if family.multipliers else default

    divisor = factor("logits_scaling", 1.0)
    if divisor == 0:
        raise BadModelError("logits_scaling is 0", where=config.where)
    return Sizes(
        hidden, n_heads, kv, head, config.size("intermediate_size"), config.size("vocab_size"),
        config.size("num_hidden_layers", most=most_layers), config.size("max_position_embeddings", family.positions),
        config.number(family.eps_field, family.eps), query**-0.5 if not family.multipliers else factor("attention_multiplier", 1.0),
        softcap(config, "attn_logit_softcapping", family.softcaps[0]),
        factor("embedding_multiplier", sqrt(hidden) if family.scaled_embedding else 1.0), factor("residual_multiplier", 1.0),
        (1.0 if family.logit_scale is None else config.number("logit_scale", family.logit_scale)) / divisor,
        *(flagged(config, bias) for bias in (family.biases.qkv, family.biases.out, family.biases.mlp, family.parallel)),
    )  # fmt: skip


def flagged(config: Config, option: Option) -> bool:
    """Value of an option that is a config field with a default, or a constant."""
    name, default = option
    return config.flag(name, default) if name else default


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
    if not found.fields and family.rope_scaling:
        if config.fields.get("rope_scaling", family) is None:
            raise UnsupportedError("rope_scaling=None is not supported: no scaling to some versions of transformers, the default to others",
                                   where=config.where, hint="name a rope_type, or leave the field out for the default")  # fmt: skip
        found = Config(family.rope_scaling, config.where)
    part = found.number("partial_rotary_factor", config.number("partial_rotary_factor", family.rotated_share))
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
    flag = windows.layers in ("flagged", "upper", "unrotated") and not config.flag("use_sliding_window", False)
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
        late = [i >= first for i in range(layers)]
        chosen = late if windows.layers == "upper" else [not turned for turned in listed_rotations(config, layers)]
        default = ["sliding" if window and here else "full" for here in chosen]
    found = config.texts("layer_types") or default
    if len(found) != layers:
        raise BadModelError(f"layer_types does not list {layers} layers", where=config.where)
    known = {"full_attention": 0, "full": 0, "sliding_attention": window, "sliding": window}
    unknown = Counter(name for name in found if name not in known)
    if unknown:
        raise UnsupportedError("layer_types that are not supported", missing=unknown, where=config.where)
    return [known[name] for name in found]


def rotated_layers(config: Config, family: Family, windows: list[int]) -> list[bool]:
    """Whether each layer has rotary positions, for layers with these attention windows (0: full attention)."""
    if family.unrotated == "listed":
        return listed_rotations(config, len(windows))
    return [family.unrotated != "full" or window > 0 for window in windows]


def listed_rotations(config: Config, layers: int) -> list[bool]:
    """Whether each layer has rotary positions: those that `no_rope_layers` lists with 1, or all but every
    `no_rope_layer_interval`-th. Raises BadModelError for another list."""
    found = config.fields.get("no_rope_layers")
    if found is None:
        period = config.size("no_rope_layer_interval", 4)
        return [(i + 1) % period != 0 for i in range(layers)]
    if not isinstance(found, list) or len(found) != layers or any(type(v) is not int or v not in (0, 1) for v in found):
        raise BadModelError(f"no_rope_layers is no list of {layers} numbers 0 or 1", where=config.where)
    return [v == 1 for v in found]
