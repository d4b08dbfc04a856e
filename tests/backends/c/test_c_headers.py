"""Kernels in C are compiled with the parts of immintrin.h that they use, or else with all of it."""

from __future__ import annotations

import platform
from pathlib import Path

import pytest

from tensor_graphs.backends.c import helpers as c_helpers
from tensor_graphs.backends.c.byte_values_text import BYTE_VALUES
from tensor_graphs.backends.c.integer_tiles import INTEGER_DIRECT, INTEGER_STACKS, INTEGER_TILES
from tensor_graphs.backends.ir.c_math import DEFINITIONS, HEAD
from tensor_graphs.backends.registry import backend

pytestmark = pytest.mark.skipif(
    bool(backend("c").unavailable()) or platform.machine() != "x86_64", reason="no C compiler for x86-64"
)
WHOLE = "#include <immintrin.h>\n"


@pytest.mark.parametrize("processor", ["x86-64", "haswell", "icelake-server", "sapphirerapids"])
def test_the_parts_declare_every_instruction_that_kernels_use(processor: str, tmp_path: Path) -> None:
    texts = [HEAD, *DEFINITIONS.values(), INTEGER_TILES, INTEGER_DIRECT, INTEGER_STACKS]
    short = c_helpers.c_short_headers("\n".join([*texts, *BYTE_VALUES.values()]))
    (file := tmp_path / "all.c").write_text(short)
    assert short.count(WHOLE) == short.count(f"#else\n{WHOLE}#endif\n") > 2
    flags = [*c_helpers.c_flags(), f"-march={processor}", "-fsyntax-only", "-Werror=implicit-function-declaration"]
    c_helpers.c_output([*c_helpers.c_compiler(), *flags, str(file)])


def test_parts_that_the_compiler_rejects_are_replaced_by_the_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(c_helpers, "c_short_headers", lambda source: source.replace(WHOLE, "#include <no_such.h>\n"))
    source = f"{WHOLE}int lowest(void) {{ return _mm_cvtsi128_si32(_mm_set1_epi32(3)); }}\n"
    assert c_helpers.c_library(source).lowest() == 3
