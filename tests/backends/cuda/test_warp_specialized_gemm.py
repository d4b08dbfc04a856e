"""Warp-specialized GEMM: values on a simulated GPU (cuda_roles_host.h), refusals, emitted text."""

from __future__ import annotations

import ctypes
import re
import sys
from collections.abc import Callable, Mapping
from dataclasses import replace
from itertools import product
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

import tensor_graphs.egraph.builders.builders as t
from tensor_graphs.backends.cuda.backend import BACKEND, generated
from tensor_graphs.backends.cuda.emit.sizes import _spot_at_call, with_sizes
from tensor_graphs.backends.cuda.emit.spelling import CudaLaunch
from tensor_graphs.backends.cuda.warp_specialized import kernel as cuda_roles
from tensor_graphs.backends.cuda.warp_specialized.device_library import (
    COLUMNS,
    GROUPS,
    PIECE,
    ROLE_INTRINSICS,
    ROLE_LIBRARY,
    product_text,
)
from tensor_graphs.backends.cuda.warp_specialized.parameters import GemmSchedule
from tensor_graphs.backends.cuda.warp_specialized.schedules import gemm_schedules
from tensor_graphs.backends.generate.call_code import launches
from tensor_graphs.backends.generate.kernel_text import kernel_text, module_of
from tensor_graphs.backends.generate.size_text import Text
from tensor_graphs.backends.generate.template import GeneratedKernel, template_of
from tensor_graphs.backends.machine import target
from tensor_graphs.backends.program.helpers.cuda_helpers import CUDA_LIBRARY, cuda_text
from tensor_graphs.egraph.composites import composite_ops as c
from tensor_graphs.egraph.evaluate.interpret import evaluate
from tensor_graphs.egraph.ir.tensor import Tensor, topological
from tensor_graphs.egraph.ops.ops import Type
from tensor_graphs.extract.model.kernel import Call, Operand, contiguous, output_names

from ..cuda_host import HERE, INTRINSICS, library_of

GOLDEN = Path(__file__).parents[1] / "golden"
BASE = {"roles": 1, "m": 128, "n": 64, "stages": 3, "turns": 1, "down": 1, "across": 1, "parts": 1, "group": 2}
NAME = re.compile(r'extern "C" __global__ void __launch_bounds__\(384, 1\)[^\n]*\n(\w+)\(')


def x(name: str, *shape: int) -> Tensor:
    return t.input(name, shape)


def _gated() -> Tensor:
    rows = x("x", 128, 128)
    return c.silu(t.matmul(rows, x("w", 128, 128))) * t.matmul(rows, x("v", 128, 128))


def _batched() -> Tensor:
    return t.matmul(x("x", 2, 128, 64), t.permute(x("w", 2, 128, 64), (0, 2, 1)))


#: name -> (term, what its schedules have beside BASE)
CASES: dict[str, tuple[Callable[[], Tensor], list[dict[str, int]]]] = {
    "gelu": (lambda: c.gelu(t.matmul(x("x", 256, 192), x("w", 192, 256)) + x("b", 256)), [
        {}, {"n": 128, "turns": 2}, {"m": 64, "turns": 2, "down": 2}, {"across": 2, "early": 1}, {"n": 192, "down": 2}]),
    "residual": (lambda: t.matmul(x("x", 256, 256), x("w", 256, 128)) + x("b", 128) + x("r", 256, 128), [
        {"n": 128, "stages": 2}, {"down": 2}, {"m": 256, "across": 2}, {"turns": 2, "across": 2, "stages": 4}]),
    "gated": (_gated, [{}, {"turns": 2, "m": 64, "down": 2}, {"n": 128, "parts": 2}, {"m": 64, "n": 128, "stages": 2, "parts": 2}]),
    "batched": (_batched, [{}, {"down": 1, "across": 2}, {"m": 64, "turns": 2}, {"n": 128}]),
    "turned": (lambda: t.matmul(t.permute(x("x", 128, 128), (1, 0)), t.permute(x("w", 128, 128), (1, 0))), [
        {}, {"n": 128}, {"across": 2}, {"m": 64, "turns": 2, "down": 2}, {"n": 112}]),
    "narrow": (lambda: c.relu(t.matmul(x("x", 128, 128), x("w", 128, 288)) + x("b", 288)) + x("r", 128, 288), [
        {"n": 144}, {"n": 96, "m": 64, "turns": 2, "across": 1}, {"n": 160}]),
    "ragged": (lambda: t.matmul(x("x", 200, 64), x("w", 64, 152)) + x("r", 200, 152), [{}, {"n": 192}, {"m": 256}, {"m": 64, "turns": 2, "n": 128}]),
    "three": (lambda: t.matmul(x("x", 2, 64, 64), x("w", 64, 128)) * x("g", 2, 1, 128), [{}, {"n": 128}]),
    "parts": (lambda: t.matmul(x("x", 256, 320), x("w", 320, 256)) + x("r", 256, 256), [
        {"parts": 2, "n": 128}, {"parts": 4, "n": 192}, {"parts": 4, "m": 64, "n": 128, "stages": 5}, {"parts": 2, "n": 144}, {"m": 256, "parts": 2, "n": 128, "stages": 2}]),
    "turned parts": (lambda: t.matmul(x("x", 96, 200), t.permute(x("w", 192, 200), (1, 0))) * x("g", 192), [
        {"parts": 3, "n": 64, "m": 64, "stages": 4}, {"m": 64, "n": 96, "parts": 2}, {"m": 64, "n": 128}, {"n": 128}]),
    "uneven": (lambda: c.relu(t.matmul(x("x", 200, 128), x("w", 128, 147)) + x("b", 147)), [
        {}, {"n": 192}, {"n": 128, "turns": 2, "m": 64}, {"m": 64, "n": 128}, {"parts": 2, "n": 128}, {"n": 144, "m": 256}]),
    "uneven gated": (lambda: c.silu(t.matmul(x("x", 2, 70, 64), x("w", 64, 83))) * t.matmul(x("x", 2, 70, 64), x("v", 64, 83)), [{}, {"m": 64, "turns": 2}]),
    "uneven sum": (lambda: t.matmul(t.permute(x("x", 75, 136), (1, 0)), x("w", 75, 147)), [{}, {"n": 128, "parts": 2}]),
    "wide": (lambda: t.cast(t.matmul(x("x", 128, 64), x("w", 64, 128)), "float32") * 2.0, [{}]),
}  # fmt: skip
LAID_OUT = {"uneven": ("w",), "uneven gated": ("w", "v"), "uneven sum": ("w",)}  # weights that are so anew


def called(name: str, dtype: str = "bfloat16", **more: int) -> tuple[GeneratedKernel, Call]:
    root = CASES[name][0]()
    kinds = {
        str(n.attr("name")): Operand(Type(n.shape, dtype), contiguous(n.shape))
        for n in topological([root])
        if n.op == "input"
    }  # type: ignore[arg-type]
    template = generated(root, LAID_OUT.get(name, ()))
    out = Operand(Type(root.shape, "float32" if name == "wide" else dtype), contiguous(root.shape))  # type: ignore[arg-type]
    return template, Call({o: kinds[o] for o in template.operands}, out, {}, schedule={**BASE, **more})


def _several() -> tuple[GeneratedKernel, Call]:
    """Columns of one product as two results."""
    whole = t.matmul(x("x", 256, 64), x("w", 64, 192)) + x("b", 192)
    parts = [t.slice_axis(whole, 1, 0, 64), t.slice_axis(whole, 1, 64, 192)]
    template = template_of(BACKEND.emitter, parts)
    kinds = {
        n: Operand(Type(s, "bfloat16"), contiguous(s)) for n, s in (("x", (256, 64)), ("w", (64, 192)), ("b", (192,)))
    }
    first, second = (Operand(Type((256, n), "bfloat16"), contiguous((256, n))) for n in (64, 128))
    call = Call({o: kinds[o] for o in template.operands}, first, {}, schedule={**BASE, "turns": 2}, more=(second,))
    return template, call


def launched(template: GeneratedKernel, call: Call) -> CudaLaunch:
    (launch,) = launches(template, call)
    assert isinstance(launch, CudaLaunch)
    return launch


class Described(ctypes.Structure):
    """A matrix as the host's copy unit knows it."""

    _fields_ = [(n, ctypes.c_int64) for n in ("data", "rows", "columns", "height", "width", "apart")]


def compiled(texts: list[str], folder: Path, change: Mapping[str, str] = {}) -> Any:
    """The kernels of some texts: name -> function of (places, blocks, threads, blocks of a cluster)."""
    library = ROLE_LIBRARY
    for before, after in change.items():
        library = library.replace(before, after)
    source = "\n".join([CUDA_LIBRARY, library, *texts])
    source = source.replace(INTRINSICS, (HERE / "cuda_host.h").read_text(encoding="utf-8"))
    source = source.replace(ROLE_INTRINSICS, (HERE / "cuda_roles_host.h").read_text(encoding="utf-8"))
    for name in NAME.findall(source):
        source += (
            f'extern "C" bool run_{name}(void** args, int blocks, int threads, int cluster) '
            f"{{ return host::run_roles({name}, args, blocks, threads, cluster); }}\n"
        )
    return library_of(source, folder / "roles.cpp", "-O1")


def run(library: Any, template: GeneratedKernel, call: Call, seed: int = 0) -> float:
    """The relative error of a kernel, the largest of its results."""
    arrays, wanted = ran(library, template, call, seed)
    apart = (
        np.linalg.norm(arrays[n].double().numpy() - want) / np.linalg.norm(want)
        for n, want in zip(output_names(len(wanted)), wanted)
    )
    return float(max(apart))


def ran(
    library: Any, template: GeneratedKernel, call: Call, seed: int = 0, without: int = 0
) -> tuple[dict[str, Any], list[Any]]:
    """What a kernel reads and writes, and what it should write; its last blocks may be left away."""
    launch, rng = launched(template, call), np.random.default_rng(seed)
    torch = pytest.importorskip("torch")
    arrays = {
        n: torch.from_numpy(rng.standard_normal(o.type.shape).astype(np.float32)).to(getattr(torch, o.type.dtype))
        for n, o in call.operands.items()
    }
    given = {n: v.double().numpy() for n, v in arrays.items()}
    wanted = evaluate(template.roots, {n: v.astype(np.float32) for n, v in given.items()}, float64=True)
    outputs = output_names(len(wanted))
    for name in template.prep:
        laid_out = template.write_prep(name, name, replace(call, names={name: name}))
        arrays[name] = eval(laid_out, {"torch": torch, name: arrays[name]})
    for name, want, o in zip(outputs, wanted, call.outputs, strict=True):
        whole = torch.full((want.shape[0] * o.strides[0],), float("nan"), dtype=getattr(torch, o.type.dtype))
        arrays[name] = whole.as_strided(want.shape, o.strides)
    boxes = [
        Described(arrays[o].data_ptr(), *shape, *block, apart or shape[1]) for o, shape, block, apart in launch.boxes
    ]
    places = [*(arrays[a].data_ptr() for a in launch.args), *(ctypes.addressof(b) for b in boxes)]
    cluster = call.schedule["down"] * call.schedule["across"] * call.schedule["parts"]
    function = getattr(library, f"run_{launch.name}")
    function.restype = ctypes.c_bool
    given_places = (ctypes.c_void_p * len(places))(*places)
    assert function(given_places, launch.grid - without, launch.block, cluster), "roles wait for ever"
    return arrays, wanted


@pytest.fixture
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    """A GPU with so few multiprocessors that blocks take several tiles."""
    two = replace(target(), multiprocessors=2)
    monkeypatch.setattr(cuda_roles, "target", lambda: two)


@pytest.mark.usefixtures("few")
def test_roles_compute_what_the_term_means(tmp_path: Path) -> None:
    found = [called(name, **more) for name, (_, own) in CASES.items() for more in own]
    found += [called("gelu", "float16"), called("turned", "float16", m=64, turns=2), _several()]
    for template, call in found:
        lowered = template.lower(call)
        assert lowered is not None
        assert BACKEND.emitter.fits(lowered.kernel, lowered.shape, call.schedule, False), call.schedule
    library = compiled([launched(*one).text for one in found], tmp_path)
    for template, call in found:
        limit = {"bfloat16": 6e-3, "float16": 8e-4, "float32": 1e-6}[call.output.type.dtype]
        assert run(library, template, call) < limit, (template.pattern, call.schedule)


@pytest.mark.usefixtures("few")
@pytest.mark.parametrize(
    ("right", "wrong", "parts"),
    [("await(empty + 8 * slot, parity ^ 1);", "", False), ("await_puts<WAITING - 1>();", "await_puts<WAITING>();", False),
     ("if (TURNS && turn > 1) await(", "if (TURNS && turn > 9) await(", False),
     ("await(order + 8 * (group - 1), 0);", "", True), ("sent(c, behind(to, block))", "sent(c, 0)", True)],
    ids=["full ring", "results overwritten", "out of turn", "before parts came", "parts on top of each other"],
)  # fmt: skip
def test_what_would_race_or_hang_is_found(right: str, wrong: str, parts: bool, tmp_path: Path) -> None:
    """The CPU's units notice roles that do not wait for each other."""
    alone = {"n": 128, "m": 64, "turns": 2, "down": 2, "stages": 2}
    template, call = called("parts", n=128, parts=4) if parts else called("gelu", **alone)
    text = launched(template, call).text
    assert right in ROLE_LIBRARY
    library = compiled([text], tmp_path, {right: wrong})
    try:
        assert run(library, template, call) > 1e-2
    except AssertionError as error:
        assert "for ever" in str(error)


def test_tiles_that_overlap_have_the_same_bits(tmp_path: Path) -> None:
    """The last tile of columns begins earlier; which of two blocks writes last must not show, whoever joins the parts
    of a sum."""
    root = t.cast(t.matmul(x("x", 64, 192), x("w", 192, 160)), "float32")
    template = generated(root)
    given = {
        n: Operand(Type(shape, "bfloat16"), contiguous(shape)) for n, shape in (("x", (64, 192)), ("w", (192, 160)))
    }
    schedule = {**BASE, "m": 64, "n": 128, "parts": 3}
    call = Call(given, Operand(Type((64, 160), "float32"), contiguous((64, 160))), {}, schedule=schedule)
    library = compiled([launched(template, call).text], tmp_path)
    (both, (wanted,)), (first, _) = (ran(library, template, call, without=blocks) for blocks in (0, 3))
    assert np.allclose(both["out"], wanted, atol=1e-3)
    assert first["out"][:, 128:].isnan().all() and np.array_equal(first["out"][:, 32:128], both["out"][:, 32:128])


def test_few_tiles_are_in_parts_and_begin_early() -> None:
    """Where a product has less tiles than there are multiprocessors; and small kernels are started before the one
    before has ended."""
    for rows, size, columns in ((64, 5632, 2048), (200, 4096, 1024), (32, 4864, 896)):
        root = t.matmul(x("x", rows, size), t.permute(x("w", columns, size), (1, 0)))
        template = generated(root)
        given = {
            n: Operand(Type(s, "bfloat16"), contiguous(s)) for n, s in (("x", (rows, size)), ("w", (columns, size)))
        }
        call = Call(given, Operand(Type(root.shape, "bfloat16"), contiguous(root.shape)), {})  # type: ignore[arg-type]
        found = template.lower(call)
        assert found is not None
        proposed = [s.numbers() for s in gemm_schedules(found.kernel, found.shape, 16)]
        assert len(proposed) == 16 and proposed[0]["parts"] > 1 and proposed[1] == proposed[0] | {"early": 1}
        assert any("roles" in s for s in found.space[:3])  # a first look has one of each form


def test_roles_are_proposed_where_they_are_legal() -> None:
    for name in ("gelu", "gated", "batched", "turned", "three"):
        template, call = called(name)
        found = template.lower(call)
        assert found is not None
        proposed = [s.numbers() for s in gemm_schedules(found.kernel, found.shape, 8)]
        assert proposed and list(found.space) == [
            s.numbers() for s in gemm_schedules(found.kernel, found.shape, len(found.space))
        ]
        fits = template.fits
        assert fits is not None and all(fits(replace(call, schedule=s)) for s in proposed)
        for change in ({"m": 96}, {"n": 72}, {"n": 512}, {"stages": 9}, {"turns": 4}, {"down": 2, "across": 2}, {"roles": 2},
                       {"warps": 4}, {"m": 256, "n": 256}, {"m": 64, "n": 80}, {"parts": 9}, {"parts": 2, "down": 2}, {"parts": 2, "turns": 2}):  # fmt: skip
            assert not BACKEND.emitter.fits(found.kernel, found.shape, {**BASE, **change}, False), change


def test_what_lies_in_shared_memory_has_room_there() -> None:
    """Five stages of 256 rows and 128 columns once passed, and wrote where nothing was."""
    asked = {
        (m, n, stages, turns, rights): (GemmSchedule(m, n, stages, turns), rights)
        for m, n, stages, turns, rights in product((64, 128, 256), COLUMNS, range(2, 9), (1, 2), (1, 2))
    }
    for key, (roles, rights) in asked.items():
        waiting = roles.store_buffers(rights)
        ring = roles.stages * (roles.stage(rights) + 16) + waiting * GROUPS * roles.height * 2 * PIECE + 8 * GROUPS
        assert waiting in (0, 1, 2) and (not waiting or 1024 + ring <= target().shared_per_block), key
    template, call = called("gelu")
    found = template.lower(call)
    assert found is not None and asked[256, 128, 4, 1, 1][0].store_buffers(1) > 0
    assert not BACKEND.emitter.fits(
        found.kernel, found.shape, {**BASE, "m": 256, "n": 128, "stages": 5, "early": 1}, False
    )


@pytest.mark.parametrize(
    ("root", "dtype"),
    [(t.matmul(x("a", 256, 128), x("w", 128, 256)), "float32"), (t.matmul(x("a", 256, 68), x("w", 68, 256)), "bfloat16"),
     (t.matmul(x("a", 256, 128), x("w", 128, 32)), "bfloat16"), (t.matmul(x("a", 256, 128) * x("g", 128), x("w", 128, 256)), "bfloat16"),
     (t.matmul(x("a", 256, 128), x("w", 128, 252)), "bfloat16"),
     (t.matmul(x("a", 256, 128), x("w", 128, 256)) * t.sum(x("a", 256, 128), axis=1, keepdims=True), "bfloat16")],
    ids=["float32", "rows of 136 bytes", "few columns", "scaled rows", "steps of 8 bytes", "a sum beside"],
)  # fmt: skip
def test_what_has_no_roles_is_left_to_others(root: Tensor, dtype: str) -> None:
    template = generated(root)
    kinds = {str(n.attr("name")): Operand(Type(n.shape, dtype), contiguous(n.shape)) for n in topological([root]) if n.op == "input"}  # type: ignore[arg-type]  # fmt: skip
    call = Call({o: kinds[o] for o in template.operands}, Operand(Type(root.shape, dtype), contiguous(root.shape)), {})  # type: ignore[arg-type]
    found = template.lower(call)
    assert found is None or not any("roles" in schedule for schedule in found.space)


def test_a_value_of_each_row_beside_the_product_has_no_roles() -> None:
    """Its text did not compile: which thread writes it was asked in a name that roles do not have."""
    scale = t.rsqrt(x("s", 256, 1) + 1.0)
    roots = [t.matmul(x("a", 256, 128), x("w", 128, 256)) * scale, scale]
    template = generated(roots)
    given = {"a": (256, 128), "w": (128, 256), "s": (256, 1)}
    place = lambda shape: Operand(Type(shape, "float32" if shape[1] == 1 else "bfloat16"), contiguous(shape))
    call = Call({n: place(given[n]) for n in template.operands}, place((256, 256)), {}, more=(place((256, 1)),))
    found = template.lower(call)
    assert found is None or not any(s.get("roles") for s in template.space(call))  # type: ignore[misc]
    alone = generated(roots[:1])
    assert any(s.get("roles") for s in alone.space(replace(call, more=())))  # type: ignore[misc]


@pytest.mark.usefixtures("few")
def test_a_ragged_result_inside_a_wider_one_ends_where_it_does(tmp_path: Path) -> None:
    """What lies beyond the columns there belongs to another; the copy unit is told of a narrower matrix, or rows are
    written by threads."""
    found = []
    for apart in (160, 157):
        template, call = called("ragged", n=192)
        found.append((template, replace(call, output=Operand(call.output.type, (apart, 1)))))
    texts = [launched(*one).text for one in found]
    assert "end_piece(" in texts[0] and "write_piece(" in texts[1]
    library = compiled(texts, tmp_path)
    for template, call in found:
        arrays, (want,) = ran(library, template, call)
        beyond = arrays["out"].as_strided((199, call.output.strides[0] - 152), call.output.strides, 152)
        assert beyond.isnan().all()
        assert np.linalg.norm(arrays["out"].double().numpy() - want) < 6e-3 * np.linalg.norm(want)


def test_the_source_of_roles_is_the_golden_file(update_golden: bool) -> None:
    template, call = called("residual", n=128, turns=2, down=2, early=1)
    text = re.sub(r"_[0-9a-f]{10}\b", "", launched(template, call).text)
    path = GOLDEN / "cuda_roles.cu"
    if update_golden:
        path.write_text(f"// Generated; see test_warp_specialized_gemm.py.\n{text}", encoding="utf-8")
    assert path.read_text(encoding="utf-8").partition("\n")[2] == text


def test_the_text_of_a_kernel_brings_its_library_and_describes_matrices(monkeypatch: pytest.MonkeyPatch) -> None:
    template, call = called("gelu", down=2)
    text = kernel_text(template, call)
    assert (
        text.text.count('CUDA_ROLES = r"""') == 1
        and "import tensor_graphs" not in text.text
        and "from tensor_graphs" not in text.text
    )
    module = module_of(text)
    ((_, kernel),) = module.CudaKernel.known.items()
    whole = "\n".join((CUDA_LIBRARY, ROLE_LIBRARY, product_text(64), kernel.text.lstrip("\n")))
    assert kernel.source() == cuda_text(text.text) == whole
    seen: list[Any] = []
    kernel.ready = {(None, 16): ("kernel", "config")}
    monkeypatch.setattr(kernel, "described", lambda x, shape, box: (tuple(x.shape), shape, box))
    monkeypatch.setattr(kernel, "launch_described", lambda *given: seen.append(given))
    core = ModuleType("cuda.core")
    core.launch = None  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "cuda.core", core)
    torch = pytest.importorskip("torch")
    tensors = [torch.empty(call.operands[o].type.shape, dtype=torch.bfloat16) for o in template.operands]
    module.run(*tensors, torch.empty(256, 256, dtype=torch.bfloat16), None)
    ((made, places, maps),) = seen
    assert made == "kernel" and len(places) == 1  # the bias is read by threads
    assert maps == [
        ((256, 192), (256, 192), (128, 64)),
        ((192, 256), (192, 256), (32, 64)),
        ((256, 256), (256, 256), (64, 64)),
    ]


# ---------------------------------------------------------------- every size
@pytest.mark.usefixtures("few")
def test_tiles_are_the_same_where_their_numbers_are_arguments(tmp_path: Path) -> None:
    found = [called("gelu", n=128, turns=2), called("residual", down=2), called("residual", m=256, across=2),
             called("parts", n=128, parts=2), called("batched"), called("uneven", n=192)]  # fmt: skip
    texts = [_spot_at_call(launched(*one).text, "") for one in found]
    assert all("spot_at(roles, tile, " in text and "roles.spot<" not in text for text in texts)
    library = compiled(texts, tmp_path)
    for template, call in found:
        assert run(library, template, call) < 6e-3, (template.pattern, call.schedule)


def test_sizes_are_parameters_between_addresses_and_tensor_maps() -> None:
    """As `CudaKernel.launch_described` passes them."""
    texts = []
    points = [{"T": n} for n in (3967, 2942, 2179, 1597, 1186, 859)]
    for point in points:
        rows = x("x", point["T"], 128)
        template = generated(t.matmul(rows, x("w", 128, 256)) + x("b", 256))
        kinds = {o: Operand(Type(s, "bfloat16"), contiguous(s)) for o, s in (("x", rows.shape), ("w", (128, 256)), ("b", (256,)))}  # fmt: skip
        out = Operand(Type((point["T"], 256), "bfloat16"), contiguous((point["T"], 256)))
        call = Call({o: kinds[o] for o in template.operands}, out, {}, schedule=BASE)
        texts.append(launched(template, call).text.replace(launched(template, call).name, "kernel0_"))
    found = with_sizes(Text.of(texts, points), "kernel0_", ["T"], "size_")
    assert found is not None
    head = re.search(r"\nkernel0_\((.*)\) \{\n", found[0])
    assert head is not None
    address, size, *maps = head[1].split(", ")
    assert "__restrict__ b" in address and size == "const int size_T"
    assert len(maps) >= 2 and all(m.startswith("DESCRIBED ") for m in maps)
    assert found[1] == ["T"] and "spot_at(roles, tile, " in found[0]
