"""Queries an e-graph for e-nodes by their op and the ops of their operands, with cached answers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

SEEN = 1  # language.STATUS_SEEN: an e-node of at least this status stays in the view even if subsumed


class Shapes:
    """Cached answers to the question whether the e-graph has an e-node of an op over operands of given ops."""

    def __init__(self, names: Sequence[str], arrays: Mapping[str, np.ndarray[Any, Any]], n_classes: int) -> None:
        self.number = {name: i for i, name in enumerate(names)}
        self.op, self.off, self.child = arrays["op"], arrays["off"], arrays["child"]
        self.holds = np.zeros((len(names), n_classes), np.bool_)
        self.holds[self.op, arrays["cls"]] = True
        self.known: dict[Any, bool] = {}

    def stands(self, op: str, operands: Sequence[tuple[int, str]]) -> bool:
        """Whether the e-graph has an e-node of `op` whose operand e-classes contain, for each (operand index, op) of
        `operands`, an e-node of that op."""
        key = (op, *map(tuple, operands))
        if key not in self.known:
            self.known[key] = op in self.number and self._stands(op, operands)
        return self.known[key]

    def _stands(self, op: str, operands: Sequence[tuple[int, str]]) -> bool:
        start = self.off[:-1][self.op == self.number[op]]
        found = np.ones(len(start), np.bool_)
        for i, inner in operands:
            found &= self.holds[self.number[inner]][self.child[start + i]] if inner in self.number else False
        return bool(found.any())
