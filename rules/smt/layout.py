"""Defines the meaning in SMT of layout ops: which element of the operand each element of the result reads."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from itertools import combinations, product
from typing import Any

from ...egraph.ops.index_maps import AffineMap, AxisIndex, BroadcastMap, ConcatMap, IndexMap, ReshapeMap
from ...egraph.ops.ops import Op
from ..semantics.solver import OutOfScope
from ..semantics.sums import Extreme, Total
from .elementwise import Elements
from .unknowns import IllTyped, SizeFacts, Sym


class LayoutSemantics(Elements):
    """SMT semantics of layout ops: those with an index map (which operand element each element of the result reads),
    `full` (every element is one number), `iota` (an element is its index along an axis), and gathers."""

    def axis(self, x: Sym, attrs: Mapping[str, Any]) -> int:
        """An op's axis attribute as a non-negative number.

        Raises OutOfScope if it is unknown, Reject if there is no such axis.
        """
        axis = attrs["axis"]
        if self.z.is_expr(axis):
            raise OutOfScope("an unknown axis")
        if not -len(x.shape) <= axis < len(x.shape):
            raise IllTyped
        return int(axis) % len(x.shape)

    def view(self, entry: Op, args: list[Sym], attrs: Mapping[str, Any], facts: SizeFacts) -> Sym:
        """The result, as a symbolic value, of an op `entry` that only moves elements: each element is read from an
        operand at the index that the op's index map gives. The conditions under which the op is well typed are added to
        `facts`."""
        assert entry.index_map is not None
        if "axis" in attrs:
            attrs = {**attrs, "axis": self.axis(args[0], attrs)}
        shape, x = self.laws[entry.law](args, attrs, facts), args[0]
        read = self.reader(entry.index_map(attrs, [a.shape for a in args]), args, shape, facts)
        return Sym(shape, x.dtype, read, x.boolean)

    def reader(
        self, found: IndexMap, args: list[Sym], shape: tuple[Any, ...], facts: SizeFacts
    ) -> Callable[[Sequence[Any]], Any]:
        """Function from an index of the result to the z3 term of the element, by the index map `found` over the
        operands.
        """
        x = args[0]
        if isinstance(found, AffineMap):
            return lambda i: x.at([self.along(a, i, facts) for a in found.axes])
        if isinstance(found, BroadcastMap):
            return lambda i: x.at(self.narrowed(x.shape, i))
        if isinstance(found, ReshapeMap):
            return lambda i: x.at(self.place(x.shape, shape, i, facts))
        return lambda i: self.part(found, args, i)

    def along(self, along: AxisIndex, i: Sequence[Any], facts: SizeFacts) -> Any:
        """z3 term of the operand's index along one axis, for the index `i` of the result; axioms are added to
        `facts`.
        """
        found = along.offset
        for axis, factor in along.terms:
            if self.z.is_expr(factor):
                facts.conditions.append(self.strided("step", i[axis], factor) == factor * i[axis])
            term = i[axis] if isinstance(factor, int) and factor == 1 else factor * i[axis]
            found = term if isinstance(found, int) and found == 0 else found + term
        return found

    def part(self, found: ConcatMap, args: list[Sym], i: Sequence[Any]) -> Any:
        """z3 term of the element at index `i` of a padded operand, or of concatenated operands (index map `found`)."""
        axis, ((operand, start, stop), *rest) = found.axis, found.parts
        moved = i if isinstance(start, int) and start == 0 else [*i[:axis], i[axis] - start, *i[axis + 1 :]]
        if found.fill is not None:
            inside = self.z.And(i[axis] >= start, i[axis] < stop)
            return self.either(inside, args[operand].at(moved), self.number(found.fill, args[operand].dtype))
        if not rest:
            return args[operand].at(moved)
        return self.either(i[axis] < stop, args[operand].at(moved), self.part(ConcatMap(axis, tuple(rest)), args, i))

    @cached_property
    def laws(self) -> dict[str, Callable[[list[Sym], Mapping[str, Any], SizeFacts], tuple[Any, ...]]]:
        """Rules for result shapes by name (structures.VIEW_LAWS): functions (operands, attributes, facts) -> the
        result's shape.

        They add the conditions for being well typed to the facts, the formulas collected for a proof.
        """
        return {
            "permute": self._permuted, "slice": self._sliced, "along": lambda args, attrs, facts: args[0].shape,
            "concat": self._joined, "pad": self._padded, "broadcast_to": self._stretched, "reshape": self._reshaped,
        }  # fmt: skip

    def _permuted(self, args: list[Sym], attrs: Mapping[str, Any], facts: SizeFacts) -> tuple[Any, ...]:
        shape, perm = args[0].shape, attrs["perm"]
        if sorted(perm) != list(range(len(shape))):
            raise IllTyped
        return tuple(shape[p] for p in perm)

    def _sliced(self, args: list[Sym], attrs: Mapping[str, Any], facts: SizeFacts) -> tuple[Any, ...]:
        axis, start, stop, step = (attrs[n] for n in ("axis", "start", "stop", "step"))
        facts.conditions += [start >= 0, start <= stop, stop <= args[0].shape[axis], step >= 1]
        plain = isinstance(step, int) and step == 1
        size = stop - start if plain else (stop - start + step - 1) / step
        if self.z.is_expr(step):  # the same number as that of windows with this stride
            last = self.strided("positions", stop - start - 1, step)
            self.facts.conditions.append(self.z.Implies(self.z.And(stop > start, step >= 1), size == last + 1))
        return _put(args[0].shape, axis, size)

    def _joined(self, args: list[Sym], attrs: Mapping[str, Any], facts: SizeFacts) -> tuple[Any, ...]:
        (x, y), axis = args, attrs["axis"]
        if len(x.shape) != len(y.shape) or x.boolean != y.boolean:
            raise IllTyped
        facts.conditions += [a == b for i, (a, b) in enumerate(zip(x.shape, y.shape)) if i != axis]
        facts.conditions.append(x.dtype == y.dtype)
        return _put(x.shape, axis, x.shape[axis] + y.shape[axis])

    def _padded(self, args: list[Sym], attrs: Mapping[str, Any], facts: SizeFacts) -> tuple[Any, ...]:
        lo, hi, axis = attrs["lo"], attrs["hi"], attrs["axis"]
        if args[0].boolean:
            raise OutOfScope("padding of booleans")
        facts.conditions += [self.z.IntVal(0) <= lo, self.z.IntVal(0) <= hi]
        return _put(args[0].shape, axis, lo + args[0].shape[axis] + hi)

    def _stretched(self, args: list[Sym], attrs: Mapping[str, Any], facts: SizeFacts) -> tuple[Any, ...]:
        shape = args[0].shape
        if len(attrs["shape"]) != len(shape):
            raise IllTyped
        facts.conditions += [self.z.Or(a == 1, a == b) for a, b in zip(shape, attrs["shape"])]
        if facts is self.facts:  # an existing value has a valid shape
            facts.conditions += [d >= 0 for d in attrs["shape"]]
        return tuple(attrs["shape"])

    def _reshaped(self, args: list[Sym], attrs: Mapping[str, Any], facts: SizeFacts) -> tuple[Any, ...]:
        """Indices are linearized by an uninterpreted function of the shape and delinearized by another."""
        x, shape = args[0], tuple(attrs["shape"])
        volumes = [self.volume(s) for s in (x.shape, shape)]
        cases = self.beside_ones(x.shape, shape)
        self.facts.conditions += [self.z.Implies(same, volumes[0] == volumes[1]) for same, _ in cases]
        facts.conditions += [volumes[0] == volumes[1], *(d >= 0 for d in shape)]
        return shape

    def strided(self, name: str, value: Any, stride: Any) -> Any:
        """z3 term of `value` divided by a stride, rounded down (`name` "positions"), or multiplied by it ("step").

        The term is an uninterpreted z3 function of both, whose arithmetic axioms are added only where a slice has such
        a step. For stride 1 it is `value` itself.
        """
        if not self.z.is_expr(stride) and stride == 1:
            return value
        number = self.z.IntSort()
        return self.function(name, number, number, number)(value, stride)

    def _full(self, args: list[Sym], attrs: Mapping[str, Any], facts: SizeFacts) -> Sym:
        dtype = self.code(attrs["dtype"]) if isinstance(attrs["dtype"], str) else attrs["dtype"]
        value = self.number(attrs["value"], dtype)
        facts.conditions += [d >= 0 for d in attrs["shape"]]
        return Sym(tuple(attrs["shape"]), dtype, lambda i: value)

    def volume(self, shape: Sequence[Any]) -> Any:
        """z3 term of the number of elements of a shape.

        An uninterpreted function, a multiple of the first and of the last size.
        """
        z, number, n = self.z, self.z.IntSort(), len(shape)
        if not n:
            return z.IntVal(1)
        found = self.function(f"volume {n}", *[number] * n, number)(*shape)
        for rest, size in ((shape[:-1], shape[-1]), (shape[1:], shape[0])) if n > 1 else ():
            inner = self.function(f"volume {n - 1}", *[number] * n)(*rest)
            self.facts.conditions += [found == inner * size, z.Implies(z.And(*(d >= 0 for d in rest)), inner >= 0)]
        return found

    def place(self, old: Sequence[Any], new: Sequence[Any], i: Sequence[Any], facts: SizeFacts) -> list[Any]:
        """Index into the operand of a reshape that corresponds to index `i` of the result; axioms about it are added to
        `facts`.

        `old`, `new`: shapes of operand and result. Axioms: leading or trailing axes of equal sizes keep their index and
        the rest is a reshape; axes of size 1 can be dropped.
        """
        z = self.z
        inside = z.And(self.volume(old) == self.volume(new), *(c for k, d in zip(i, new) for c in (k >= 0, k < d)))
        found = self.counted(old, new, i, facts, inside)
        for same, mapped in self.beside_ones(old, new):
            moved = (w == (i[mapped[d]] if d in mapped else 0) for d, w in enumerate(found))
            facts.conditions.append(z.Implies(z.And(same, inside), z.And(*moved, True)))
        for kept, rest in ((-1, slice(0, -1)), (0, slice(1, None))) if old and new else ():
            same = z.And(inside, old[kept] == new[kept])
            inner = self.counted(old[rest], new[rest], i[rest], facts, same)
            facts.conditions.append(
                z.Implies(same, z.And(found[kept] == i[kept], *(w == v for w, v in zip(found[rest], inner))))
            )
        return found

    def counted(
        self, old: Sequence[Any], new: Sequence[Any], i: Sequence[Any], facts: SizeFacts, inside: Any
    ) -> list[Any]:
        """The index into shape `old` with the linear position of index `i` of shape `new`, if `inside` holds.

        Axioms about it are added to `facts`.
        """
        z, number = self.z, self.z.IntSort()

        def count(shape: Sequence[Any], where: Sequence[Any]) -> Any:
            return self.function(f"count {len(shape)}", *[number] * (2 * len(shape) + 1))(*shape, *where)

        def back(shape: Sequence[Any], at: Any) -> list[Any]:
            names = (f"place {len(shape)} {k}" for k in range(len(shape)))
            return [self.function(n, *[number] * (len(shape) + 2))(*shape, at) for n in names]

        at = count(new, i)
        found = back(old, at)
        known = [*(p == k for p, k in zip(back(new, at), i)), count(old, found) == at]
        facts.conditions.append(
            z.Implies(inside, z.And(*known, *(c for p, d in zip(found, old) for c in (p >= 0, p < d))))
        )
        return found

    def beside_ones(self, old: Sequence[Any], new: Sequence[Any]) -> list[tuple[Any, dict[int, int]]]:
        """Reshapes from shape `old` to `new` that only add, drop or move axes of size 1, as (condition, kept axes).

        The sizes satisfy the condition. The kept axes map an axis of `old` to the axis of `new` with the same size.
        """
        z, found = self.z, []
        axes = [[d for d, n in enumerate(s) if z.is_expr(n) or n != 1] for s in (old, new)]
        most = min(map(len, axes))
        for kept_count in range(max(0, most - 1), most + 1):
            for first, second in product(*(combinations(a, kept_count) for a in axes)):
                kept = dict(zip(first, second))
                ones = [old[d] == 1 for d in axes[0] if d not in kept] + [
                    new[d] == 1 for d in axes[1] if d not in second
                ]
                found.append((z.And(*ones, *(old[p] == new[q] for p, q in kept.items()), True), kept))
        return found

    def _gather(self, args: list[Sym], attrs: Mapping[str, Any], facts: SizeFacts) -> Sym:
        """A gather: the position is an uninterpreted function of the index value and of the axis size (out-of-range
        indices are clipped)."""
        (x, n), axis, z = args, self.axis(args[0], attrs), self.z
        if n.boolean:
            raise IllTyped
        size, many = x.shape[axis], len(n.shape)
        facts.conditions.append(self.function("whole", z.IntSort(), z.BoolSort())(n.dtype))
        which = self.function("which", self.sort, z.IntSort(), z.IntSort())

        def at(i: Sequence[Any]) -> Any:
            index = n.at(i[axis : axis + many])
            if isinstance(index, Total | Extreme):
                raise OutOfScope("an index that is computed")
            place = which(index, size)
            facts.conditions.append(z.Implies(size > 0, z.And(place >= 0, place < size)))
            return x.at([*i[:axis], place, *i[axis + many :]])

        return Sym((*x.shape[:axis], *n.shape, *x.shape[axis + 1 :]), x.dtype, at, x.boolean)

    def _iota(self, args: list[Sym], attrs: Mapping[str, Any], facts: SizeFacts) -> Sym:
        shape, axis = tuple(attrs["shape"]), attrs["axis"]
        if self.z.is_expr(axis):
            raise OutOfScope("an unknown axis")
        if not -len(shape) <= axis < len(shape):
            raise IllTyped
        dtype = self.code(attrs["dtype"]) if isinstance(attrs["dtype"], str) else attrs["dtype"]
        facts.conditions += [d >= 0 for d in shape]
        number = self.z.IntSort()
        place = self.z.ToReal if self.real else lambda k: self.function("place", number, number, self.sort)(k, dtype)
        return Sym(shape, dtype, lambda i: place(i[axis] if self.z.is_expr(i[axis]) else self.z.IntVal(i[axis])))


def _put(shape: Sequence[Any], axis: int, size: Any) -> tuple[Any, ...]:
    return (*shape[:axis], size, *shape[axis + 1 :])
