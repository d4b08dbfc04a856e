"""The async-copy race check on texts as Triton's compiler leaves them."""

from __future__ import annotations

import pytest

from tensor_graphs.backends.triton.async_copy_race import async_copy_races

ROWS, COLUMNS = (
    "!ttg.memdesc<{}x128x64xbf16, #shared, #smem, mutable>",
    "!ttg.memdesc<{}x64x128xbf16, #shared, #smem, mutable>",
)


def text(places: int, ahead: int, pending: int, *, products: int = 1, early: bool = False, box: bool = True) -> str:
    """A loop that reads rows `ahead` rounds before they are multiplied, into a ring of so many places, and leaves so
    many products under way; `early`: copies come before the wait."""

    def copy(indent: str, place: str) -> list[str]:
        how = f"ttng.async_tma_copy_global_to_local %box[%m, %k] {place}, %there, %true : !tt" if box else (
            f"%token = ttg.async_copy_global_to_local %pointers, {place} mask %mask : tensor"
        )  # fmt: skip
        return [f"{indent}{place} = ttg.memdesc_index %rows[%i] : {ROWS.format(places)}", f"{indent}{how}"]

    wait = f"      %done:2 = ttng.warp_group_dot_wait %acc_1, %left {{pendings = {pending} : i32}} : tensor"
    copies = copy("      ", "%later")
    return "\n".join([
        f"    %rows = ttg.local_alloc : () -> {ROWS.format(places)} loc(#loc1)",
        f"    %cols = ttg.local_alloc : () -> {COLUMNS.format(ahead + 2)} loc(#loc1)",
        "    %bars = ttg.local_alloc : () -> !ttg.memdesc<2x1xi64, #shared1, #smem, mutable>",
        *(line for n in range(ahead) for line in copy("    ", f"%first_{n}")),
        "    %all:2 = scf.for %k = %c0 to %c1024 step %c64 iter_args(%acc = %cst) -> (tensor) : i32 {",
        f"      %left = ttg.memdesc_index %rows[%j] : {ROWS.format(places)}",
        f"      %right = ttg.memdesc_index %cols[%j] : {COLUMNS.format(ahead + 2)}",
        "      %turned = ttg.memdesc_trans %left {order = array<i32: 1, 0>} : !ttg.memdesc",
        *(f"      %acc_{n} = ttng.warp_group_dot %turned, %right, %acc {{inputPrecision = 0 : i32, isAsync = true}} : !ttg"
          for n in range(products)),
        *([*copies, wait] if early else [wait, *copies]),
        "      scf.yield %done#0 : tensor loc(#loc1)",
        "    } loc(#loc1)",
    ])  # fmt: skip


@pytest.mark.parametrize("box", [True, False], ids=["boxes", "pointers"])
@pytest.mark.parametrize(
    ("places", "ahead", "pending", "more", "wrong"),
    [
        (3, 2, 1, {}, False),  # as Triton makes it for products alone
        (2, 2, 1, {}, True),  # where something else reads the rows as well
        (2, 2, 0, {}, False),  # what waits for each product
        (1, 1, 1, {}, True),
        (2, 1, 1, {}, False),
        (2, 1, 2, {}, True),  # two rounds under way
        (2, 1, 2, {"products": 2}, False),  # the two of one round
        (2, 2, 0, {"early": True}, True),  # the wait comes too late
        (3, 2, 0, {"early": True}, False),
        (3, 2, 1, {"early": True}, True),  # under way is the product of the round before as well
        (4, 2, 1, {"early": True}, False),
    ],
)
def test_a_copy_overtakes_what_is_under_way(
    places: int, ahead: int, pending: int, more: dict[str, bool], wrong: bool, box: bool
) -> None:
    """By places of the ring, rounds between a copy and its product, and products that are not waited for."""
    assert bool(async_copy_races(text(places, ahead, pending, **more, box=box))) is wrong  # type: ignore[arg-type]


def test_what_is_waited_for_at_once_is_no_race() -> None:
    """Products that do not run on by themselves, texts without rings or loops, and no text at all."""
    assert not async_copy_races(text(2, 2, 1).replace("isAsync = true", "isAsync = false"))
    assert not async_copy_races("\n".join(line for line in text(2, 2, 1).splitlines() if "local_alloc" not in line))
    assert not async_copy_races("") and not async_copy_races("module {\n}")
