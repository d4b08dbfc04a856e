"""Joins the saturated e-graphs (views) of blocks (repeated subgraphs) into one e-graph of the whole model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..blocks.block_order import weight_only
from ..blocks.blocks import BlockInstance, Blocks
from ..ir.tensor import LEAVES, Tensor
from ..ops.ops import Type
from .congruence import MergedClasses
from .saturation_report import SaturationReport
from .view import Bools, EGraphView, Ints

_SEAMS = (("input", "in", "inputs"), ("param", "w", "params"), ("state", "s", "states"))


class _BlockJoiner:
    """The e-classes of all block instances and of the model's own values, merged where they hold the same value."""

    def __init__(self, blocks: Blocks, views: Sequence[EGraphView]) -> None:
        self.blocks, self.views = blocks, views
        self.size = 0
        self.merged = MergedClasses()
        self.of: dict[Tensor, int] = {}  # e-class of the model's values
        self.types: list[Type] = []
        self.weights: list[Bools] = []
        self.originals: list[Bools] = []
        self.ages: list[Ints] = []
        self.ops: list[str] = []
        self.attrs: list[tuple[tuple[str, Any], ...]] = []
        self.cls: list[Ints] = []
        self.width: list[Ints] = []
        self.child: list[Ints] = []
        self.original_nodes: list[Bools] = []
        self.tensors: dict[int, Tensor] = {}
        self.placed: list[tuple[int, int, int]] = []  # (block, first e-class, number of e-classes) of each instance
        self.templates = [self._template(v) for v in views]

    def name(self, value: Tensor, c: int) -> None:
        """Record that an e-class holds a value of the model."""
        known = self.of.setdefault(value, c)
        self.merged.join(known, c)

    @staticmethod
    def _template(view: EGraphView) -> _Template:
        """The part of a block's view to copy per instance: all except leaves that stand for values of the model."""
        boundary = {v.attr("name"): view.classes[v] for v in view.tensors.values() if v.op in LEAVES[:3]}
        own = {i: v for i, v in view.tensors.items() if v.op not in LEAVES[:3]}
        keep = np.array([i for i in range(len(view)) if i not in view.tensors or i in own], np.int64)
        place = {int(i): k for k, i in enumerate(keep)}
        width = np.diff(view.off)
        return _Template(
            ops=[view.op[i] for i in keep.tolist()],
            attrs=[view.attrs[i] for i in keep.tolist()],
            cls=view.cls[keep],
            width=width[keep],
            child=view.child[np.repeat(np.isin(np.arange(len(view)), keep), width)],
            original_nodes=view.original_nodes[keep]
            if view.original_nodes is not None
            else np.zeros(len(keep), np.bool_),
            boundary=boundary,
            constants={place[i]: v for i, v in own.items()},
        )

    def add_instance(self, instance: BlockInstance) -> None:
        """Add one instance: a copy of its block's template, merged with the model's values."""
        view, template = self.views[instance.block], self.templates[instance.block]
        first, base = self.size, len(self.ops)
        self.placed.append((instance.block, first, view.n_classes))
        self.size += view.n_classes
        self.types += view.types
        self.weights.append(view.weight)
        self.originals.append(view.original_classes)
        self.ages.append(view.age if view.age is not None else np.zeros(view.n_classes, np.int32))
        self.ops += template.ops
        self.attrs += template.attrs
        self.cls.append(template.cls + first)
        self.width.append(template.width)
        self.child.append(template.child + first)
        self.original_nodes.append(template.original_nodes)
        for place, constant in template.constants.items():
            self.tensors[base + place] = constant
            self.name(constant, first + int(template.cls[place]))
        for _, prefix, values in _SEAMS:
            for k, value in enumerate(getattr(instance, values)):
                if f"{prefix}{k}" in template.boundary:
                    self.name(value, first + template.boundary[f"{prefix}{k}"])
        for value, root in zip(instance.outputs, view.roots):
            self.name(value, first + root)

    def add_values_outside_blocks(self) -> None:
        """Add the model's own e-nodes for values that no block computes: leaves and shared weight-only expressions."""
        computed = {v for i in self.blocks.instances for v in i.outputs}
        computed |= set(self.tensors.values())
        ends = dict.fromkeys([*(v for v in self.of if v not in computed), *self.blocks.graph.roots])
        fixed = weight_only(self.blocks.graph.nodes())
        stack, order = [v for v in reversed(ends) if v not in computed], dict[Tensor, None]()
        while stack:
            value = stack.pop()
            if value in computed or value in order:
                continue
            order[value] = None
            stack += reversed(value.args)
        for value in order:
            if value not in self.of:
                self.of[value] = self.size
                self.size += 1
                self.types.append(value.type)
                self.weights.append(np.array([value in fixed], np.bool_))
                self.originals.append(np.ones(1, np.bool_))
                self.ages.append(np.zeros(1, np.int32))
        for value in order:
            if value.op in LEAVES:
                self.tensors[len(self.ops)] = value
            self.ops.append(value.op)
            self.attrs.append(value.attrs)
            self.cls.append(np.array([self.of[value]], np.int32))
            self.width.append(np.array([len(value.args)], np.int32))
            self.child.append(np.array([self.of[a] for a in value.args], np.int32))
            self.original_nodes.append(np.ones(1, np.bool_))

    def merge_congruent(self) -> None:
        """Merge e-classes that hold an equal e-node: two blocks that read a value may both have found the same function
        of it."""
        labels = [self.tensors.get(i, (op, attrs)) for i, (op, attrs) in enumerate(zip(self.ops, self.attrs))]
        parts = (self.cls, self.width, self.child)
        self.merged.close(self.size, labels, *(np.concatenate([np.zeros(0, np.int32), *p]) for p in parts))

    def view(self) -> EGraphView:
        """The joined view, e-classes renumbered."""
        old = self.merged.representatives(self.size)
        rows = np.concatenate([np.zeros(0, np.int32), *self.cls])
        children = np.concatenate([np.zeros(0, np.int32), *self.child])
        used = np.unique(old[np.concatenate([rows, children, [self.of[r] for r in self.blocks.graph.roots]])])
        number = np.full(self.size, -1, np.int32)
        number[used] = np.arange(len(used), dtype=np.int32)
        number = number[old]

        def flagged(flags: Sequence[Bools]) -> Bools:
            """A merged e-class has a flag if any of its parts has the flag."""
            found = np.zeros(len(used), np.bool_)
            found[number[(number >= 0) & np.concatenate([np.zeros(0, np.bool_), *flags])]] = True
            return found

        ages = np.concatenate([np.zeros(0, np.int32), *self.ages])
        age = np.full(len(used), np.iinfo(np.int32).max, np.int32)
        np.minimum.at(age, number[number >= 0], ages[number >= 0])
        return EGraphView(
            op=self.ops,
            attrs=self.attrs,
            cls=number[rows],
            off=np.concatenate([[0], np.cumsum(np.concatenate([np.zeros(0, np.int32), *self.width]))]).astype(np.int32),
            child=number[children],
            types=[self.types[c] for c in used.tolist()],
            weight=flagged(self.weights),
            roots=tuple(int(number[self.of[r]]) for r in self.blocks.graph.roots),
            report=merged(self.views),
            tensors=self.tensors,
            classes={v: int(number[c]) for v, c in self.of.items() if number[c] >= 0},
            block_classes=flagged(self.originals),
            age=age,
            original_nodes=np.concatenate([np.zeros(0, np.bool_), *self.original_nodes]),
            instances=tuple((block, number[first : first + size]) for block, first, size in self.placed),
        )


@dataclass(frozen=True)
class _Template:
    """The part of a block's view that every instance copies. `boundary`: name of each leaf (value that the block reads)
    -> its e-class."""

    ops: list[str]
    attrs: list[tuple[tuple[str, Any], ...]]
    cls: Ints
    width: Ints
    child: Ints
    original_nodes: Bools
    boundary: dict[str, int]
    constants: dict[int, Tensor]


#: Reasons to stop, worst first.
_REASONS = ("interrupted", "worker-died", "bytes", "seconds", "nodes", "iterations", "saturated")


def merged(views: Sequence[EGraphView]) -> SaturationReport:
    """One report for several blocks (repeated subgraphs): sums, the worst reason for stopping, all rules."""
    reports = [v.report for v in views]
    matches: dict[str, int] = {}
    seconds: dict[str, float] = {}
    for r in reports:
        for name, count in r.matches.items():
            matches[name] = matches.get(name, 0) + count
        for name, t in r.rule_seconds.items():
            seconds[name] = seconds.get(name, 0.0) + t
    longest = max((len(r.sizes) for r in reports), default=0)
    return SaturationReport(
        stopped=min((r.stopped for r in reports), key=_REASONS.index, default="saturated"),
        iterations=max((r.iterations for r in reports), default=0),
        sizes=tuple(sum(r.sizes[min(i, len(r.sizes) - 1)] for r in reports if r.sizes) for i in range(longest)),
        matches=matches,
        rule_seconds=seconds,
        seconds=sum(r.seconds for r in reports),
        kept=max((r.kept for r in reports), default=0),
        extractable=all(r.extractable for r in reports),
        message="; ".join(dict.fromkeys(r.message for r in reports if r.message)),
    )


def join_blocks(blocks: Blocks, views: Sequence[EGraphView]) -> EGraphView:
    """Join the saturated e-graphs (views) of a model's blocks (repeated subgraphs) into the e-graph of the whole model.

    Each occurrence of a block gets a copy of the block's view; values that several occurrences share are merged. Linear
    in the size of the result, but for sorting. The roots are those of `blocks.graph`. Values that no block computes
    (leaves, weight-only expressions that several blocks share) get the model's own e-nodes. E-classes that hold an
    equal e-node are merged; the e-node stays there several times (`union.congruent` keeps one).
    """
    work = _BlockJoiner(blocks, views)
    for instance in blocks.instances:
        work.add_instance(instance)
    work.add_values_outside_blocks()
    work.merge_congruent()
    return work.view()


__all__ = ["join_blocks", "merged"]
