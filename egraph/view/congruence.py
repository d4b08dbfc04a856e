"""Merges e-classes (union-find), and closes the result under congruence: e-classes that hold an equal e-node (op,
attributes, operand e-classes) are one e-class."""

from __future__ import annotations

from collections.abc import Hashable, Iterable

import numpy as np

from .view import Ints


class MergedClasses:
    """Union-find over e-classes, which are numbers: the lowest number of a merged e-class is its representative."""

    def __init__(self) -> None:
        self.up: dict[int, int] = {}  # e-class -> a lower one that it was merged with

    def find(self, c: int) -> int:
        """The representative of an e-class."""
        root = c
        while root in self.up:
            root = self.up[root]
        while c != root:
            self.up[c], c = root, self.up[c]
        return root

    def join(self, a: int, b: int) -> None:
        """Merge two e-classes."""
        a, b = self.find(a), self.find(b)
        if a != b:
            self.up[max(a, b)] = min(a, b)

    def representatives(self, count: int) -> Ints:
        """The representative of each of the e-classes 0 to `count` - 1."""
        found = np.arange(count, dtype=np.int32)
        for c in list(self.up):
            found[c] = self.find(c)
        return found

    def close(self, count: int, labels: Iterable[Hashable], cls: Ints, width: Ints, child: Ints) -> None:
        """Merge those of `count` e-classes that hold an equal e-node, until there are none.

        Of each e-node, `labels` has what it is without its operands (op and attributes, or the tensor of a leaf), `cls`
        its e-class, and `width` the number of its operands, whose e-classes follow each other in `child`.
        """
        ids: dict[Hashable, int] = {}
        label = np.array([ids.setdefault(one, len(ids)) for one in labels], np.int64)
        start = np.cumsum(width) - width
        alike = [rows for n in np.unique(width) if len(rows := np.flatnonzero(width == n)) > 1]
        merged_some = True
        while merged_some:
            merged_some, found = False, self.representatives(count)
            for rows in alike:
                reads = found[child[start[rows, None] + np.arange(width[rows[0]])]]
                keys = np.column_stack([label[rows], reads])
                order = np.lexsort(keys.T)
                keys, classes = keys[order], found[cls[rows[order]]]
                equal = (keys[1:] == keys[:-1]).all(axis=1) & (classes[1:] != classes[:-1])
                for k in np.flatnonzero(equal).tolist():
                    self.join(int(classes[k]), int(classes[k + 1]))
                    merged_some = True


__all__ = ["MergedClasses"]
