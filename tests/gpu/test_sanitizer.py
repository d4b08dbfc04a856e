"""What sanitizer.py writes, runs and reads, without a sanitizer or a GPU."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="emitted programs work on Torch's tensors")
pytest.importorskip("triton", reason="generated kernels are Triton's")

from . import programs, run_program, sanitizer
from .sanitizer import Seen, gives_out_roles, passed, reported, starts_barrier, table

FEW = ("pointwise, odd", "pool")


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, list[str]]]:
    folder = tmp_path_factory.mktemp("programs")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(programs, "CLASSES", {n: programs.CLASSES[n] for n in FEW})
        return folder, programs.write(folder)


def test_every_class_has_programs_of_some_emitter() -> None:
    emitters = {
        n: [e for e in programs.EMITTERS if any(True for _ in programs.programs(n, e))] for n in programs.CLASSES
    }
    assert all(emitters.values()) and {e for found in emitters.values() for e in found} == {*programs.EMITTERS}


def test_emitted_programs_run_without_the_package(written: tuple[Path, dict[str, list[str]]]) -> None:
    folder, classes = written
    assert {*classes} == {f"{n} ({e})" for n in FEW for e in programs.EMITTERS}
    assert [*programs.write(folder / "one", "pool (triton)")] == ["pool (triton)"]
    names = [p for name, found in classes.items() if "triton" in name for p in found]
    command = [sys.executable, run_program.__file__, "--device", "cpu", *(str(folder / n) for n in names)]
    done = subprocess.run(
        command, capture_output=True, text=True, env={**os.environ, "TRITON_INTERPRET": "1"}, check=False
    )
    assert done.returncode == 0, done.stderr
    assert [line.split()[-1] for line in done.stdout.splitlines()] == ["begun", "ok"] * len(names)


MEMORY = """========= COMPUTE-SANITIZER
triton.0.0: begun
========= Invalid __global__ write of size 4 bytes
=========     at rows_0123456789+0x70 in program.py:10
=========     by thread (0,0,0) in block (0,0,0)
=========
========= Invalid __global__ read of size 2 bytes
=========     at void at::native::copy<float>(float*)+0x30
========= Error: Race reported between Write access at rows_0123456789_join+0x10 and Read access at rows_0123456789_join+0x90 [1 hazards]
=========
========= Error: Potential RAW hazard detected at __shared__ 0x2849f in block (28,0,0) :
=========     Write Thread (31,0,0) at rows_0123456789_join+0x5770 in program.py:274
=========     Read Thread (352,0,0) at rows_0123456789_join+0x130 in program.py:274
=========         Host Frame: launch [0x2099] in launcher.so
=========
========= Error: Race reported between Read access at rows_0123456789_join+0x160 in program.py:247
=========     and Write access at rows_0123456789_join+0xc40 in program.py:247 [8 hazards]
========= Warning: Race reported between Write access at attention_0123456789+0x1a0
=========     and Read access at attention_0123456789+0x1d0 [256 hazards]
========= ERROR SUMMARY: 4 errors
"""


LISTING = """
        /*0110*/                   BAR.SYNC.DEFER_BLOCKING 0x1 ;
        /*0120*/                   S2R R0, SR_TID.X ;
        /*0130*/                   LDS.U8 R2, [R2+UR28+0x28094] ;
        /*0140*/               @P0 BAR.SYNC.DEFER_BLOCKING 0x1 ;
        /*0160*/                   LDS.U8 R2, [R2+UR28+0x28094] ;
        /*0170*/                   IMAD.MOV.U32 R3, RZ, RZ, 0x3010202 ;
        /*0180*/                   IMAD.MOV.U32 R2, RZ, RZ, RZ ;
        /*0190*/                   BAR.SYNC.DEFER_BLOCKING 0x0, 0x80 ;
        /*0200*/                   LDS.U8 R4, [R2] ;
        /*0210*/                   LDS R4, [R2] ;
        /*0c40*/                   STS [UR6+0x22060], R2 ;
        /*0c50*/                   BAR.SYNC.DEFER_BLOCKING 0x1 ;
        /*1000*/                   STS [UR6+0x22060], R2 ;
        /*1010*/                   MEMBAR.ALL.CTA ;
        /*1020*/                   NOP ;
        /*1030*/                   NOP ;
        /*1040*/                   NOP ;
        /*5770*/                   STS.64 [UR7+0x28098], R2 ;
        /*5780*/                   BAR.SYNC.DEFER_BLOCKING 0x1 ;
"""


def test_a_role_is_read_behind_a_barrier_of_all_warps_and_stored_before_one() -> None:
    at = [0x130, 0x160, 0x200, 0x210, 0x220]
    assert [gives_out_roles(LISTING, [offset], [0xC40]) for offset in at] == [True, True, False, False, False]
    assert [gives_out_roles(LISTING, [0x130], [store]) for store in (0x1000, 0x200, 0x2000)] == [False] * 3
    assert not gives_out_roles(LISTING, [], [0xC40])


BARRIER = """
.text.attention_0123456789:
        /*0010*/                   S2R R0, SR_TID.X ;
        /*0020*/                   S2UR UR7, SR_CgaCtaId ;
        /*0050*/                   BSSY B0, `(.L_x_0) ;
        /*0080*/                   ISETP.NE.AND P0, PT, R0, RZ, PT ;
        /*00a0*/                   LEA.HI R2, R54, R0, RZ, 0x5 ;
        /*00d0*/                   VOTEU.ALL UP0, P0 ;
        /*00e0*/              @!P0 IMAD.MOV.U32 R3, RZ, RZ, 0x600 ;
        /*0100*/                   @!UP0 UMOV UR6, 0x400 ;
        /*0160*/                   VOTEU.ALL UP0, P0 ;
        /*0170*/                   LEA.HI R4, R4, R53, RZ, 0x2 ;
        /*01a0*/                   @!UP0 SYNCS.EXCH.64 URZ, [UR6], UR4 ;
        /*01b0*/              @!P0 NOP ;
        /*01c0*/                   USHF.R.U32.HI UR5, URZ, 0x4, UR8 ;
        /*01d0*/              @!P0 SYNCS.ARRIVE.TRANS64 RZ, [UR6], R3 ;
        /*01e0*/                   ISETP.GE.AND P0, PT, R0, 0x20, PT ;
        /*0210*/                   UCGABAR_ARV ;
        /*0230*/              @!P0 BRA `(.L_x_1) ;
"""


def test_a_thread_arrives_at_the_mbarrier_that_it_made() -> None:
    assert starts_barrier(BARRIER, 0x1A0, 0x1D0)
    assert not any(starts_barrier(BARRIER, *at) for at in ((0x1D0, 0x1A0), (0x1A0, 0x1E0), (0x160, 0x1D0), (0, 0x1D0)))
    others = {
        "SR_TID.X": "SR_LANEID",  # a thread of each warp
        "ISETP.NE.AND P0, PT, R0, RZ, PT": "ISETP.NE.AND P0, PT, R0, 0x1, PT",
        "LEA.HI R2, R54,": "LEA.HI R0, R54,",  # harmless: behind the comparison
        "USHF.R.U32.HI UR5,": "USHF.R.U32.HI UR6,",  # another mbarrier
        "USHF.R.U32.HI UR5, URZ,": "USHF.R.U64 UR5, URZ,",
        "LEA.HI R4, R4,": "LEA.HI R4, P0, R4,",  # another predicate
        "@!P0 NOP": "@!P0 BRA `(.L_x_1)",
        "/*01b0*/": ".L_x_3:\n        /*01b0*/",
        "VOTEU.ALL UP0, P0": "VOTEU.ALL UP0, P1",
        "S2UR UR7, SR_CgaCtaId": "S2R R0, SR_LANEID",
        "VOTEU.ALL UP0": "VOTEU.ANY UP0",
    }
    told = [starts_barrier(BARRIER.replace(old, new), 0x1A0, 0x1D0) for old, new in others.items()]
    assert told == [new.startswith("LEA.HI R0") for new in others.values()]


def test_errors_belong_to_the_program_whose_kernel_they_are_in() -> None:
    owners = {"rows_0123456789": "a", "rows_0123456789_join": "b", "attention_0123456789": "c"}
    assert reported(MEMORY, owners).reports == {"a": 1, "": 1, "b": 3, "c": 1}
    listings = {"rows_0123456789_join": LISTING, "attention_0123456789": BARRIER}
    seen = reported(MEMORY, owners, lambda kernel: listings.get(kernel, ""))
    assert seen.reports == {"a": 1, "": 1, "b": 1} and seen.false == {"b": 2, "c": 1} and len(seen.lines) == 16
    assert not reported("========= ERROR SUMMARY: 0 errors\n", {}).reports


def test_a_program_that_ends_its_process_does_not_cost_the_others(
    written: tuple[Path, dict[str, list[str]]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, _ = written
    fake = tmp_path / "run_program.py"
    fake.write_text(
        "import os, sys\nfor name in map(os.path.basename, sys.argv[1:]):\n    print(f'{name}: begun', flush=True)\n"
        "    if name.startswith('triton'):\n        os._exit(9)\n    print(f'{name}: 1e-3', 'ok' if '33' not in name else 'wrong')\n"
    )
    monkeypatch.setattr(sanitizer, "HERE", tmp_path)
    names = ["cuda.0.0", "triton.0.0", "triton.1.0", "cuda.1.0"]
    for name in names:
        (folder / name).mkdir(exist_ok=True)
        (folder / name / "program.py").touch()
    seen = passed(folder, names, "", time.monotonic() + 60)
    assert {*seen.right} == {"cuda.0.0", "cuda.1.0"} and {*seen.wrong} == {"triton.0.0", "triton.1.0"}
    assert "code 9" in seen.wrong["triton.0.0"]
    text = table({"one": names[:1], "two": names[1:2]}, {"": seen, "memcheck": Seen()})
    assert "| one | 1 | 1.0e-03 | 0 | 0 |" in text and "triton.0.0: the process ended" in text
    assert passed(folder, names, "", time.monotonic()).wrong == dict.fromkeys(names, "not run: the time was up")
