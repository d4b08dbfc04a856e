"""Kernels in C are compiled with the parts of immintrin.h that they use, or else with all of it."""

from __future__ import annotations

import platform
import re
from pathlib import Path

import pytest

from tensor_graphs.backends.c import helpers as c_helpers
from tensor_graphs.backends.registry import backend

pytestmark = pytest.mark.skipif(
    bool(backend("c").unavailable()) or platform.machine() != "x86_64", reason="no C compiler for x86-64"
)
WHOLE = "#include <immintrin.h>\n"
INTRINSIC = re.compile(r"\b_mm[0-9]*_\w+(?=\()")


def intrinsics(avx512: bool) -> list[str]:
    """The vector instructions that texts of kernels use: those of AVX-512 alone, or the others."""
    folder = Path(c_helpers.__file__).parents[1]
    texts = [file.read_text() for part in ("c", "ir") for file in sorted((folder / part).rglob("*.py"))]
    found = {name for text in texts if "_mm" in text for name in INTRINSIC.findall(text)}
    return sorted(n for n in found if ("_mm512" in n or "mask" in n) == avx512 and "_avx_" not in n)


@pytest.mark.parametrize("processor", ["haswell", "icelake-server", "sapphirerapids"])
def test_the_parts_declare_every_instruction_that_kernels_use(processor: str, tmp_path: Path) -> None:
    used = intrinsics(False) + (intrinsics(True) if processor != "haswell" else [])
    used += ["_mm256_dpbusd_avx_epi32"] if processor == "sapphirerapids" else []
    assert len(used) > 20
    lines = [f"#ifndef {n}\nvoid *const use_{n} = (void *){n};\n#endif\n" for n in used]  # macros need no declaration
    short = c_helpers.c_short_headers(WHOLE + "".join(lines))
    assert short.count(WHOLE) == short.count(f"#else\n{WHOLE}#endif\n") == 1
    (file := tmp_path / "all.c").write_text(short)
    flags = [*c_helpers.c_flags(), f"-march={processor}", "-fsyntax-only", "-Werror"]
    c_helpers.c_output([*c_helpers.c_compiler(), *flags, str(file)])


def test_parts_that_the_compiler_rejects_are_replaced_by_the_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(c_helpers, "c_short_headers", lambda source: source.replace(WHOLE, "#include <no_such.h>\n"))
    source = f"{WHOLE}int lowest(void) {{ return _mm_cvtsi128_si32(_mm_set1_epi32(3)); }}\n"
    assert c_helpers.c_library(source).lowest() == 3
