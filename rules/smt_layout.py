"""Layout ops in proofs by SMT: which element of an operand each element of the result is."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import combinations
from typing import Any

from .smt_elements import Elements
from .smt_world import Facts, Reject, Sym
from .solver import Beyond


class Layout(Elements):
    """One method for each op of structures.LAYOUT."""

    def axis(self, x: Sym, attrs: Mapping[str, Any]) -> int:
        """The axis attribute, which must be known and exist."""
        axis = attrs["axis"]
        if self.z.is_expr(axis):
            raise Beyond("an unknown axis")
        if not -len(x.shape) <= axis < len(x.shape):
            raise Reject
        return int(axis) % len(x.shape)

    def _permute(self, args: list[Sym], attrs: Mapping[str, Any], facts: Facts) -> Sym:
        (x,), perm = args, attrs["perm"]
        if sorted(perm) != list(range(len(x.shape))):
            raise Reject
        back = {p: i for i, p in enumerate(perm)}
        return Sym(
            tuple(x.shape[p] for p in perm), x.dtype, lambda i: x.at([i[back[d]] for d in range(len(perm))]), x.boolean
        )

    def _slice(self, args: list[Sym], attrs: Mapping[str, Any], facts: Facts) -> Sym:
        (x,), axis = args, self.axis(args[0], attrs)
        start, stop, step = attrs["start"], attrs["stop"], attrs["step"]
        facts.said += [start >= 0, start <= stop, stop <= x.shape[axis], step >= 1]
        size = stop - start if isinstance(step, int) and step == 1 else (stop - start + step - 1) / step

        def at(i: Sequence[Any]) -> Any:
            return x.at([*i[:axis], start + step * i[axis], *i[axis + 1 :]])

        return Sym(_put(x.shape, axis, size), x.dtype, at, x.boolean)

    def _flip(self, args: list[Sym], attrs: Mapping[str, Any], facts: Facts) -> Sym:
        (x,), axis = args, self.axis(args[0], attrs)
        return Sym(
            x.shape, x.dtype, lambda i: x.at([*i[:axis], x.shape[axis] - 1 - i[axis], *i[axis + 1 :]]), x.boolean
        )

    def _concat(self, args: list[Sym], attrs: Mapping[str, Any], facts: Facts) -> Sym:
        (x, y), axis = args, self.axis(args[0], attrs)
        if len(x.shape) != len(y.shape) or x.boolean != y.boolean:
            raise Reject
        facts.said += [a == b for i, (a, b) in enumerate(zip(x.shape, y.shape)) if i != axis]
        facts.said.append(x.dtype == y.dtype)
        n = x.shape[axis]

        def at(i: Sequence[Any]) -> Any:
            return self.either(i[axis] < n, x.at(i), y.at([*i[:axis], i[axis] - n, *i[axis + 1 :]]))

        return Sym(_put(x.shape, axis, n + y.shape[axis]), x.dtype, at, x.boolean)

    def _pad(self, args: list[Sym], attrs: Mapping[str, Any], facts: Facts) -> Sym:
        (x,), axis = args, self.axis(args[0], attrs)
        lo, hi, n = attrs["lo"], attrs["hi"], args[0].shape[axis]
        if x.boolean:
            raise Beyond("padding of booleans")
        facts.said += [self.z.IntVal(0) <= lo, self.z.IntVal(0) <= hi]
        value = self.number(attrs["value"], x.dtype)

        def at(i: Sequence[Any]) -> Any:
            inside = self.z.And(i[axis] >= lo, i[axis] < lo + n)
            return self.either(inside, x.at([*i[:axis], i[axis] - lo, *i[axis + 1 :]]), value)

        return Sym(_put(x.shape, axis, lo + n + hi), x.dtype, at)

    def _broadcast_to(self, args: list[Sym], attrs: Mapping[str, Any], facts: Facts) -> Sym:
        (x,), shape = args, attrs["shape"]
        if len(shape) != len(x.shape):
            raise Reject
        facts.said += [self.z.Or(a == 1, a == b) for a, b in zip(x.shape, shape)]
        return Sym(tuple(shape), x.dtype, lambda i: x.at(self.narrowed(x.shape, i)), x.boolean)

    def _full(self, args: list[Sym], attrs: Mapping[str, Any], facts: Facts) -> Sym:
        dtype = self.code(attrs["dtype"]) if isinstance(attrs["dtype"], str) else attrs["dtype"]
        value = self.number(attrs["value"], dtype)
        facts.said += [d >= 0 for d in attrs["shape"]]
        return Sym(tuple(attrs["shape"]), dtype, lambda i: value)

    def _reshape(self, args: list[Sym], attrs: Mapping[str, Any], facts: Facts) -> Sym:
        """An unknown map of indices that depends on both shapes alone; volumes are unknown functions of shapes."""
        (x,), shape, number = args, tuple(attrs["shape"]), self.z.IntSort()
        volumes = [self.function(f"volume {len(s)}", *[number] * len(s), number)(*s) for s in (x.shape, shape)]
        self.facts.said += [
            self.z.Implies(same, volumes[0] == volumes[1]) for same, _ in self.beside_ones(x.shape, shape)
        ]
        facts.said += [volumes[0] == volumes[1], *(d >= 0 for d in shape)]
        label = f"place {len(x.shape)} {len(shape)}"
        sorts = [number] * (len(x.shape) + 2 * len(shape) + 1)
        places = [self.function(f"{label} {k}", *sorts) for k in range(len(x.shape))]

        def at(i: Sequence[Any]) -> Any:
            where = [p(*x.shape, *shape, *i) for p in places]
            inside = self.z.And(*(c for k, d in zip(i, shape) for c in (k >= 0, k < d)), True)
            facts.said += [self.z.Implies(inside, self.z.And(p >= 0, p < d)) for p, d in zip(where, x.shape)]
            if len(shape) == len(x.shape):
                same = self.z.And(*(a == b for a, b in zip(shape, x.shape)), True)
                facts.said += [self.z.Implies(same, p == k) for p, k in zip(where, i)]
            else:
                for same, mapped in self.beside_ones(x.shape, shape):
                    facts.said += [
                        self.z.Implies(same, w == (i[mapped[d]] if d in mapped else 0)) for d, w in enumerate(where)
                    ]
            return x.at(where)

        return Sym(shape, x.dtype, at, x.boolean)

    def beside_ones(self, old: Sequence[Any], new: Sequence[Any]) -> list[tuple[Any, dict[int, int]]]:
        """The ways in which a reshape may only add or drop axes of size 1: what must hold, and the axes that are kept."""
        z, found = self.z, []
        axes = [[d for d, n in enumerate(s) if z.is_expr(n) or n != 1] for s in (old, new)]
        few, many = sorted(axes, key=len)
        for chosen in combinations(many, len(few)):
            kept = dict(zip(few, chosen) if few is axes[0] else zip(chosen, few))
            ones = [old[d] == 1 for d in axes[0] if d not in kept] + [
                new[d] == 1 for d in axes[1] if d not in kept.values()
            ]
            found.append((z.And(*ones, *(old[p] == new[q] for p, q in kept.items()), True), kept))
        return found

    def _iota(self, args: list[Sym], attrs: Mapping[str, Any], facts: Facts) -> Sym:
        shape, axis = tuple(attrs["shape"]), attrs["axis"]
        if self.z.is_expr(axis):
            raise Beyond("an unknown axis")
        if not -len(shape) <= axis < len(shape):
            raise Reject
        dtype = self.code(attrs["dtype"]) if isinstance(attrs["dtype"], str) else attrs["dtype"]
        facts.said += [d >= 0 for d in shape]
        number = self.z.IntSort()
        place = self.z.ToReal if self.real else lambda k: self.function("place", number, number, self.sort)(k, dtype)
        return Sym(shape, dtype, lambda i: place(i[axis] if self.z.is_expr(i[axis]) else self.z.IntVal(i[axis])))


def _put(shape: Sequence[Any], axis: int, size: Any) -> tuple[Any, ...]:
    return (*shape[:axis], size, *shape[axis + 1 :])
