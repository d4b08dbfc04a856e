"""Code and plans are loaded from folders that nobody but this user can write: nowhere else, and nothing damaged."""

from __future__ import annotations

import builtins
import dis
import errno
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from types import CodeType

import pytest

from tensor_graphs import cache_folder, settings
from tensor_graphs.backends.c import helpers as c_helpers
from tensor_graphs.backends.ir.source_text import imports_of
from tensor_graphs.backends.program.helpers.helper_functions import all_helpers
from tensor_graphs.costdb.store.store import Store
from tensor_graphs.errors import UsageError
from tensor_graphs.private import private_folder, read_sealed, sealed, temporary_place, unsafe_folder

from ..only_in import only_in

ROOT = hasattr(os, "getuid") and os.getuid() == 0
SOURCE = "int f(void) { return 7; }\n"


def planted(folder: Path) -> Path:
    """A library under the name of the honest one, whose initializer leaves a mark."""
    honest = next((folder / "c").glob("*.so"))
    mark = folder / "mark"
    text = folder / "evil.c"
    code = (
        '#include <stdio.h>\n__attribute__((constructor)) static void run(void) { fclose(fopen("MARK", "w")); }\n'
        "int f(void) { return 8; }\n"
    )
    text.write_text(code.replace("MARK", str(mark)))
    subprocess.run([*c_helpers.c_compiler(), "-shared", "-fPIC", "-o", honest, text], check=True)
    honest.write_bytes(sealed(honest.read_bytes(), honest.name))
    return mark


@pytest.mark.parametrize("hole", ["home", "folder", "link", "above", "file", "owner"])
def test_planted_code_does_not_run(hole: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home = tmp_path / "shared" / "home"
    monkeypatch.setenv("TENSOR_GRAPHS_HOME", str(home))
    assert c_helpers.c_library(SOURCE).f() == 7
    mark = planted(home)
    honest = next((home / "c").glob("*.so"))
    if hole == "home":
        home.chmod(0o777)
    elif hole == "folder":
        (home / "c").chmod(0o770)
    elif hole == "above":
        home.parent.chmod(0o775)
    elif hole == "file":
        honest.chmod(0o666)
    elif hole == "link":
        (home / "c").rename(tmp_path / "theirs")
        (home / "c").symlink_to(tmp_path / "theirs")
    elif ROOT:
        os.chown(honest, 12345, 12345)
    else:
        pytest.skip("files can be given away by root only")
    if hole in ("file", "owner"):
        assert c_helpers.c_library(SOURCE).f() == 7
    else:
        with pytest.warns(UserWarning, match="only you can write"):
            assert c_helpers.c_library(SOURCE).f() == 7
    assert not mark.exists()


def test_functions_of_libraries_are_compiled_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TENSOR_GRAPHS_HOME", str(tmp_path))
    seven = "int seven(void) { return 7; }\n"
    source = lambda more: f"int seven(void);\nint f(void) {{ return seven() + {more}; }}\n"
    commands = list[list[str]]()
    monkeypatch.setattr(
        c_helpers, "command_output", lambda c, *a, run=c_helpers.command_output: (commands.append(c), run(c, *a))[1]
    )
    assert [c_helpers.c_library(source(more), parts=(seven,)).f() for more in (1, 2)] == [8, 9]
    assert sum("-c" in c for c in commands) == 3  # two programs, one function
    (kept,) = (tmp_path / "c").glob("*.o")
    kept.write_bytes(kept.read_bytes()[:-80] + kept.read_bytes()[-72:])  # damaged
    assert c_helpers.c_library(source(3), parts=(seven,)).f() == 10
    with pytest.raises(RuntimeError, match="failed"):
        c_helpers.c_library(source(4), parts=("int seven(void) { return }\n",))


def loaded_names(code: CodeType) -> Iterator[str]:
    """Global names that a code object and those in it read."""
    yield from (str(i.argval) for i in dis.get_instructions(code) if i.opname in ("LOAD_GLOBAL", "LOAD_NAME"))
    for inner in code.co_consts:
        if isinstance(inner, CodeType):
            yield from loaded_names(inner)


def test_the_helpers_of_emitted_programs_import_what_they_use() -> None:
    """On rare paths, too, such as the warning that a folder is not safe."""
    helpers = all_helpers()
    known = {
        *dir(builtins),
        *(key if isinstance(key, str) else key[-1] for key in helpers),
        "__annotations__",
        "jax",  # JAX programs import jax themselves
        "CUDA_LIBRARY",  # defined with CudaKernel, the base class of SizedCudaKernel
    }
    for key, body in helpers.items():
        text = "\n".join(("from __future__ import annotations", *imports_of(body), body))
        code = compile(text, str(key), "exec")
        made = {str(i.argval) for i in dis.get_instructions(code) if i.opname == "STORE_NAME"}
        assert set(loaded_names(code)) <= known | made, key


def test_a_damaged_library_is_compiled_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever byte is wrong, and though the file would load."""
    monkeypatch.setenv("TENSOR_GRAPHS_HOME", str(tmp_path))
    assert c_helpers.c_library(SOURCE).f() == 7
    (made,) = (tmp_path / "c").glob("*.so")
    whole = made.read_bytes()
    for at in (0, 100, len(whole) // 2, len(whole) - 1):
        made.unlink()
        made.write_bytes(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
        assert c_helpers.c_library(SOURCE).f() == 7
        assert read_sealed(made, name=made.name)


def test_a_library_in_another_s_place_is_compiled_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Though it is whole, and has a checksum."""
    monkeypatch.setenv("TENSOR_GRAPHS_HOME", str(tmp_path))
    assert c_helpers.c_library(SOURCE).f() == 7
    (seven,) = (tmp_path / "c").glob("*.so")
    assert c_helpers.c_library(SOURCE.replace("7", "8")).f() == 8
    (eight,) = {*(tmp_path / "c").glob("*.so")} - {seven}
    content = eight.read_bytes()
    seven.unlink()
    seven.write_bytes(content)
    assert c_helpers.c_library(SOURCE).f() == 7  # the one loaded before, if a path is loaded twice
    assert seven.read_bytes() != content, "compiled again"


def test_folders_are_safe_or_not(tmp_path: Path) -> None:
    own, link = tmp_path / "own", tmp_path / "link"
    assert private_folder(own / "new" / "deep") == "" and (own / "new").stat().st_mode & 0o777 == 0o700
    link.symlink_to(own)
    assert unsafe_folder(link / "new") == "", "a link of this user's own leads to a folder of its own"
    assert "is a link" in unsafe_folder(link)
    own.chmod(0o777)
    assert "written by other users" in unsafe_folder(own / "new") and "written by other users" in unsafe_folder(
        link / "new"
    )
    own.chmod(0o1777)
    assert unsafe_folder(own / "new") == "" and unsafe_folder(own) != "", "as in /tmp, what is there is its owner's"
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    assert unsafe_folder(tmp_path / "loop" / "x")
    if ROOT:
        os.chown(own, 12345, 12345)
        assert "another user" in unsafe_folder(own / "new")


def test_the_parent_of_a_link_is_that_of_its_target(tmp_path: Path) -> None:
    """`link/../c` is beside the target of the link, not beside the link."""
    (tmp_path / "own").mkdir(mode=0o700)
    (tmp_path / "shared" / "deep").mkdir(parents=True)
    (tmp_path / "shared").chmod(0o777)
    (tmp_path / "own" / "link").symlink_to(tmp_path / "shared" / "deep")
    assert "written by other users" in unsafe_folder(tmp_path / "own" / "link" / ".." / "c")
    assert unsafe_folder(tmp_path / "own" / ".." / "own" / "c") == ""


def test_compile_folders_of_killed_processes_go(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Old ones at the next compilation; neither new ones, nor folders of other names or behind links."""
    monkeypatch.setenv("TENSOR_GRAPHS_HOME", str(tmp_path))
    folder, beside = tmp_path / "c", tmp_path / "beside"
    names = {".compile-old", ".compile-new", "mine"}
    for one in (beside, *(folder / name for name in names)):
        one.mkdir(parents=True, mode=0o700)
        (one / "kernels.c").write_text("int")
        if not one.name.endswith("new"):
            os.utime(one, (0, 0))
    folder.chmod(0o700)
    (folder / ".compile-link").symlink_to(beside)
    os.utime(folder / ".compile-link", (0, 0), follow_symlinks=False)
    assert c_helpers.c_library(SOURCE).f() == 7
    assert {p.name for p in folder.iterdir() if p.suffix != ".so"} == {".compile-new", ".compile-link", "mine"}
    assert (beside / "kernels.c").exists()


def test_a_full_cache_folder_is_no_obstacle(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whether the library or the compiler's output finds no room."""
    monkeypatch.setenv("TENSOR_GRAPHS_HOME", str(tmp_path))
    replace = Path.replace

    def full(self: Path, target: Path) -> Path:
        if tmp_path in target.parents:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return replace(self, target)

    with monkeypatch.context() as patch, pytest.warns(UserWarning, match="No space left"):
        patch.setattr(Path, "replace", full)
        assert c_helpers.c_library(SOURCE).f() == 7
    with monkeypatch.context() as patch, pytest.warns(UserWarning, match="compiler failed"):
        compiler = tmp_path / "cc.sh"
        compiler.write_text(f'#!/bin/sh\ncase "$*" in *{tmp_path}*) exit 1;; esac\nexec cc "$@"\n')
        compiler.chmod(0o700)
        patch.setenv("CC", str(compiler))
        only_in(patch, c_helpers, "shutil", disk_usage=lambda folder: type("Usage", (), {"free": 0}))
        assert c_helpers.c_library(SOURCE).f() == 7
    assert not list((tmp_path / "c").iterdir())


def test_nothing_is_compiled_where_others_can_replace_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A shared TMPDIR that is not sticky is not used for code."""
    shared = tmp_path / "shared"
    shared.mkdir()
    shared.chmod(0o777)
    monkeypatch.setattr("tempfile.tempdir", str(shared))
    monkeypatch.setattr(cache_folder, "_temporary", [])
    assert temporary_place() == "/tmp"
    assert shared not in cache_folder._temporary_folder().parents
    monkeypatch.setattr("tensor_graphs.private.unsafe_folder", lambda folder: "not safe")
    monkeypatch.setattr(cache_folder, "_temporary", [])
    with pytest.raises(UsageError, match="set TMPDIR"):
        cache_folder._temporary_folder()


def test_the_compiler_s_temporary_files_are_in_the_compile_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = tmp_path / "seen"
    compiler = tmp_path / "cc.sh"
    compiler.write_text(f'#!/bin/sh\necho "$TMPDIR" >> {seen}\nexec cc "$@"\n')
    compiler.chmod(0o700)
    monkeypatch.setenv("CC", str(compiler))
    monkeypatch.setenv("TENSOR_GRAPHS_HOME", str(tmp_path / "home"))
    assert c_helpers.c_library(SOURCE).f() == 7
    assert Path(seen.read_text().splitlines()[-1]).parent == tmp_path / "home" / "c"


@pytest.mark.parametrize("home", [None, "here"])
def test_a_user_without_a_home_folder_has_no_cache(
    home: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Code is neither read from nor kept below the current folder."""
    pwd = pytest.importorskip("pwd")

    def unknown(_: object) -> None:
        raise KeyError

    for name in ("HOME", "TENSOR_GRAPHS_HOME", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    if home:
        monkeypatch.setenv("HOME", home)
    monkeypatch.setattr(pwd, "getpwuid", unknown)
    monkeypatch.setattr(cache_folder, "_temporary", [])
    monkeypatch.chdir(tmp_path)
    with pytest.warns(UserWarning, match="not known"):
        assert cache_folder.home().is_absolute()
    os.environ.pop("TENSOR_GRAPHS_HOME", None)
    with pytest.warns(UserWarning, match="home folder is not known"):
        assert c_helpers.c_library(SOURCE).f() == 7
    assert not list(tmp_path.iterdir())


def test_plans_and_caches_leave_a_shared_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Plans go to a folder of this process; a shared store's cache to the user's own home."""
    shared = tmp_path / "shared"
    shared.mkdir()
    shared.chmod(0o777)
    monkeypatch.setenv("TENSOR_GRAPHS_HOME", str(shared))
    monkeypatch.setattr(cache_folder, "_temporary", [])
    with pytest.warns(UserWarning, match="other users"):
        folder = cache_folder.private("plans")
    assert shared not in folder.parents and not (shared / "plans").exists()
    monkeypatch.setenv("TENSOR_GRAPHS_HOME", str(tmp_path / "own"))
    (shared / "db").mkdir(mode=0o777)
    (shared / "db").chmod(0o777)
    assert len(Store(shared / "db").snapshot) == 0
    assert not list((shared / "db").glob("cache*")) and list((tmp_path / "own" / "stores").iterdir())


def test_tritons_cache_is_private(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from tensor_graphs.backends.gpu import keep_compiled

    monkeypatch.setenv("TENSOR_GRAPHS_HOME", str(tmp_path))
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path / "mine"))
    keep_compiled()
    assert os.environ["TRITON_CACHE_DIR"] == str(tmp_path / "mine")
    (tmp_path / "mine").chmod(0o777)
    with pytest.warns(UserWarning, match="TRITON_CACHE_DIR is not used"):
        keep_compiled()
    assert os.environ["TRITON_CACHE_DIR"] == str(tmp_path / "triton")


def test_sealed_files(tmp_path: Path) -> None:
    path = tmp_path / "f"
    path.write_bytes(sealed(b"content"))
    assert read_sealed(path) == b"content"
    for wrong in (b"", b"content", sealed(b"content")[1:], sealed(b"content") + b"x"):
        path.write_bytes(wrong)
        with pytest.raises(ValueError, match="checksum"):
            read_sealed(path)
    with pytest.raises(ValueError, match="more than"):
        read_sealed(path, 3)
    (tmp_path / "link").symlink_to(path)
    with pytest.raises(OSError):
        read_sealed(tmp_path / "link")
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(ValueError, match="not a plain file"):
        read_sealed(tmp_path / "pipe")


def test_numbers_in_the_environment_are_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    for text in ("-1", "x", "1e3", "99999999999"):
        monkeypatch.setenv("TENSOR_GRAPHS_THREADS", text)
        with pytest.raises(UsageError, match="TENSOR_GRAPHS_THREADS"):
            settings.current()
