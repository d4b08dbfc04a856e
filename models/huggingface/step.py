"""Builds one step of a decoder over key-value caches, as a graph: prefill of several tokens, or decoding of one."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal

from ...egraph.builders import builders as t
from ...egraph.ir.graph import Graph
from ...egraph.ir.tensor import Tensor
from ...egraph.ir.weight_data import Data
from ...errors import BadModelError, UnsupportedError, UsageError
from ..files.inside import inside
from ..files.safetensors import read_json_file
from . import decoder
from .checkpoint import Config, Weights
from .families import FAMILIES, layer_windows
from .load import opened, weights_of
from .sequences import Cached, TokenAccess, cache_positions

#: model_type -> builder of a model's outputs over a `TokenAccess`.
MODELS: Mapping[str, Callable[[Config, Weights, TokenAccess], decoder.Outputs]] = {
    "gpt2": decoder.gpt2,
    **{kind: partial(decoder.rotary, kind) for kind in FAMILIES},
}


#: Tokens of a step whose logits are wanted: the one that the input `last` names for each row, the last one, or all.
Wanted = Literal["named", "last", "all"]


@dataclass(frozen=True)
class Caches:
    """Sizes of the key-value caches that several step graphs share.

    `batch` rows; `capacity`: largest number of tokens of a row; `most`: largest number of tokens of a row in one step
    (`tokens` of `build_step`), which the rings of layers with windows must have room for.
    """

    batch: int
    capacity: int
    most: int


def build_step(
    config: Config, weights: Weights, caches: Caches, tokens: int, *,
    ids: Tensor | None = None, start: Tensor | None = None, fresh: bool = False, wanted: Wanted = "named",
) -> Graph:  # fmt: skip
    """Graph of one decoder step of `tokens` further tokens of each row.

    Output: `logits` [batch, vocabulary] after one token of each row, or with `wanted="all"` [batch, tokens, vocabulary]
    after each token.

    Inputs, all int64: `input_ids` [batch, tokens]. `start` [batch], the position of each row's first token, at most
    `caches.capacity - tokens`; with `fresh` there is no such input: all rows start at 0 and attend to these tokens
    only. `last` [batch], if there are several tokens and `wanted` is "named": index of the token whose logits are
    wanted; tokens behind it are padding. Given `ids` or `start` (of a state, for example) take the place of the inputs
    `input_ids` and `start`. States: `keys.N` and `values.N`, N the layer, written in place.

    Raises UnsupportedError for models without a language modelling head, UsageError for sizes that do not fit.
    """
    kind = config.text("model_type", "")
    if kind not in MODELS:
        raise UnsupportedError(f"model_type={kind[:80]!r} generates no text", where=config.where,
                               hint=f"known: {', '.join(MODELS)}")  # fmt: skip
    if not 1 <= tokens <= min(caches.most, caches.capacity) or caches.batch < 1:
        raise UsageError(f"{tokens} tokens in a step over caches of {caches}")
    shape = (caches.batch, tokens)
    ids = t.input("input_ids", shape, "int64") if ids is None else ids
    if not fresh and start is None:
        start = t.input("start", shape[:1], "int64")
    last = t.input("last", shape[:1], "int64") if tokens > 1 and wanted == "named" else None
    access = Cached(ids, caches.capacity, caches.most, None if fresh else start, last, every=wanted == "all")
    outputs = MODELS[kind](config, weights, access)
    if "logits" not in outputs:
        raise UnsupportedError(f"the class {config.model_class[:80]!r} has no logits", where=config.where)
    weights.finish()
    inputs = [leaf for leaf in (ids, start, last) if leaf is not None and leaf.op == "input"]
    return Graph.of(outputs, params=weights.params, inputs=inputs, updates=access.updates, name=f"{kind}-step")


def positions_of(config: Config) -> int:
    """Largest number of tokens in a sequence that a model's config allows."""
    kind = config.text("model_type", "")
    if kind in FAMILIES:
        return config.size("max_position_embeddings", FAMILIES[kind].positions)
    return config.size("n_positions", 1024)


def eos_of(folder: Folder) -> tuple[int, ...]:
    """Tokens that end a text: `eos_token_id` of generation_config.json, else of the config.

    Those outside the vocabulary are left out. Raises BadModelError for fields that are not tokens.
    """
    file = Path(folder.where) / "generation_config.json"
    known = bool(folder.where) and file.is_file()
    fields = read_json_file(inside(Path(folder.where), file.name, trust=folder.trust)) if known else {}
    found = fields.get("eos_token_id", folder.config.fields.get("eos_token_id"))
    found = [found] if isinstance(found, int) else found or []
    if not isinstance(found, list) or not all(type(v) is int for v in found):
        raise BadModelError("eos_token_id is no token or list of tokens", where=str(file))
    return tuple(v for v in found if 0 <= v < folder.config.size("vocab_size"))


def refuse_wrong_weights(folder: Folder, caches: Caches) -> None:
    """Check a folder's weights for `build_step`.

    Raises BadWeightsError, BadModelError or UnsupportedError where building a step would.
    """
    build_step(folder.config, folder.weights(), caches, 1)


def ring_slack(config: Config, caches: Caches) -> int | None:
    """Least number of positions that the rings of a model's caches keep beyond their windows; None without rings.

    After a position p was written, tokens from position `p - slack` on still find all keys and values in their window.
    """
    kind = config.text("model_type", "")
    windows = {0} if kind not in FAMILIES else {*layer_windows(config, kind, config.size("num_hidden_layers"))}
    rooms = ((cache_positions(w, caches.capacity, caches.most), w) for w in windows)
    return min((room - window for room, window in rooms if room < caches.capacity), default=None)


class Folder:
    """A decoder's model folder, opened: its config, and its weights, which stay in their files until a graph needs
    them."""

    def __init__(self, path: Path | str, *, trust: bool = False) -> None:
        """Open a folder. Errors as in `load_folder`; raises UnsupportedError for models that generate no text."""
        self.config, self.data = opened(path, trust=trust)
        self.where, self.trust = str(path), trust

    @classmethod
    def of(cls, config: Mapping[str, Any], data: Mapping[str, Data]) -> Folder:
        """Folder with contents in memory: the fields of its config.json, and its tensors `data` by name."""
        made = object.__new__(cls)
        made.config, made.data, made.where, made.trust = Config(config), data, "", False
        return made

    def weights(self) -> Weights:
        """Access to the weights, of which none is requested yet."""
        return weights_of(self.config, self.data, self.where)


__all__ = [
    "MODELS",
    "Caches",
    "Folder",
    "Wanted",
    "build_step",
    "eos_of",
    "positions_of",
    "refuse_wrong_weights",
    "ring_slack",
]
