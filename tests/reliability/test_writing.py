"""What is written is whole or as before: full disks, links, pipes, kills, and folders that are replaced."""

from __future__ import annotations

import errno
import hashlib
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from tensor_graphs.costdb.store import shards
from tensor_graphs.errors import UnwritableError
from tensor_graphs.writing import files, folders
from tensor_graphs.writing.hidden_files import clean

from ..fuzz.kill import WHAT, kills
from ..only_in import only_in


def names(folder: Path) -> set[str]:
    return {p.name for p in folder.iterdir()}


def test_a_file_is_replaced_whole(tmp_path: Path) -> None:
    target = tmp_path / "deep" / "f.txt"
    files.write_text(target, "one")
    target.chmod(0o640)
    with pytest.raises(KeyError), files.replacing(target) as file:
        file.write(b"half")
        raise KeyError
    assert target.read_text() == "one" and names(target.parent) == {"f.txt"}
    files.write_text(target, "two")
    assert target.read_text() == "two" and target.stat().st_mode & 0o777 == 0o640


def test_links_are_followed(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "a" / "f")
    for text in ("made", "replaced"):
        files.write_text(tmp_path / "link", text)
        assert (tmp_path / "a" / "f").read_text() == text and (tmp_path / "link").is_symlink()


@pytest.mark.skipif(os.name != "posix", reason="makes a pipe")
def test_a_pipe_or_link_in_place_of_a_cache_s_file_is_replaced(tmp_path: Path) -> None:
    """Writing to a pipe would wait for a reader."""
    (tmp_path / "other").write_text("mine")
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "link").symlink_to(tmp_path / "other")
    for name in ("pipe", "link"):
        with files.replacing_raw(tmp_path / name, own=True) as file:
            file.write(b"new")
        assert (tmp_path / name).read_bytes() == b"new" and not (tmp_path / name).is_symlink()
    assert (tmp_path / "other").read_text() == "mine"
    name = hashlib.sha256(b"rows").hexdigest() + ".parquet"
    os.mkfifo(tmp_path / name)
    assert shards.write_by_content(tmp_path, b"rows").read_bytes() == b"rows"


def test_a_link_to_itself_is_not_replaced(tmp_path: Path) -> None:
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    with pytest.raises(UnwritableError, match="symbolic links"):
        files.write_text(tmp_path / "loop", "x")
    with pytest.raises(UnwritableError, match="symbolic links"), folders.replacing_folder(tmp_path / "loop"):
        pass
    assert (tmp_path / "loop").is_symlink() and names(tmp_path) == {"loop"}


def test_a_link_that_the_system_does_not_follow_is_not_followed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As Linux (fs.protected_symlinks) does with another user's link in a sticky folder."""
    (tmp_path / "mine").write_text("old")
    link, stat = tmp_path / "report.html", os.stat
    link.symlink_to(tmp_path / "mine")

    def refused(path: Any, **given: Any) -> os.stat_result:
        if path == link and given.get("follow_symlinks", True):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))
        return stat(path, **given)

    only_in(monkeypatch, files, "os", stat=refused)
    with pytest.raises(UnwritableError, match="Permission denied"):
        files.write_text(link, "new")
    monkeypatch.undo()
    assert (tmp_path / "mine").read_text() == "old"


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full here")
@pytest.mark.parametrize(
    ("arguments", "first"),
    [
        (["rules", "list"], "standard output cannot be written: No space"),
        (["rules", "list", "--json"], "standard output cannot be written: No space"),
        (["nonsense", "--json"], "No such command"),  # the command's own error is told before
    ],
)
def test_a_full_standard_output_is_told(arguments: list[str], first: str) -> None:
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "tensor_graphs", *arguments], stdout=full, stderr=subprocess.PIPE, text=True
        )
    assert done.returncode == 2 and done.stderr.startswith(f"error: {first}")
    assert done.stderr.splitlines()[-1].startswith("error: standard output cannot be written: No space")


def test_pipes_and_standard_output(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    found: list[str] = []
    reader = threading.Thread(target=lambda: found.append((tmp_path / "pipe").read_text()))
    reader.start()
    files.write_text(tmp_path / "pipe", "through")
    reader.join(60)
    assert found == ["through"]
    code = "from tensor_graphs.writing.files import write_text; write_text('/dev/stdout', 'x' * 100_000)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "x" * 100_000
    with (tmp_path / "out").open("w") as file:
        subprocess.run([sys.executable, "-c", code], stdout=file, check=True)
    assert (tmp_path / "out").read_text() == "x" * 100_000 and names(tmp_path) == {"pipe", "out"}


@pytest.mark.parametrize("call", ["write", "fsync", "replace"])
def test_a_full_disk_is_named_with_the_bytes_needed(call: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    target = tmp_path / "f"
    files.write_text(target, "older")

    def full(*_: Any) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    if call == "write":
        monkeypatch.setattr(files._Counted, "flush", lambda self: None)
        monkeypatch.setattr(files, "_take_over", full)
    else:
        only_in(monkeypatch, files, "os", **{call: full})
    with pytest.raises(UnwritableError, match=r"needs 4321 bytes, \d+ are free") as caught:
        files.write_bytes(target, b"x" * 4321)
    assert caught.value.exit_code == 2 and caught.value.where == str(target)
    monkeypatch.undo()
    assert target.read_text() == "older" and names(tmp_path) == {"f"}


@pytest.mark.parametrize("exchange", [True, False])
def test_a_folder_is_replaced_whole(exchange: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if not exchange:
        monkeypatch.setattr(folders, "_exchanged", lambda one, other: False)
    target = tmp_path / "out"
    for text in ("one", "two"):
        with folders.replacing_folder(target) as part:
            (part / "f").write_text(text)
        assert (target / "f").read_text() == text and names(tmp_path) == {"out"}
    with pytest.raises(KeyError), folders.replacing_folder(target) as part:
        (part / "f").write_text("half")
        raise KeyError
    assert (target / "f").read_text() == "two" and names(tmp_path) == {"out"}


def test_a_folder_that_was_moved_aside_comes_back(tmp_path: Path) -> None:
    """Where names cannot be exchanged, a kill between two renames leaves the older folder under a hidden name."""
    code = (
        "import os, signal, sys; from pathlib import Path; from tensor_graphs.writing import folders\n"
        "folders._exchanged = lambda one, other: False\n"
        "rename = os.rename\n"
        "def first(a, b):\n"
        "    rename(a, b)\n"
        "    os.kill(os.getpid(), signal.SIGKILL)\n"
        "target = Path(sys.argv[1])\n"
        "with folders.replacing_folder(target) as part:\n"
        "    (part / 'f').write_text('new')\n"
        "    os.rename = first\n"
    )
    target = tmp_path / "out"
    target.mkdir()
    (target / "f").write_text("old")
    done = subprocess.run([sys.executable, "-c", code, str(target)], check=False)
    assert done.returncode == -signal.SIGKILL and not target.exists() and len(names(tmp_path)) == 2
    folders.recover(target)
    assert (target / "f").read_text() == "old" and names(tmp_path) == {"out"}


def test_what_others_are_writing_is_left_alone(tmp_path: Path) -> None:
    target = tmp_path / "f"
    with files.replacing(target) as file:
        assert clean(target) == 0
        files.write_text(target, "another")
        file.write(b"this one")
    assert target.read_text() == "this one" and names(tmp_path) == {"f"}


def test_a_pair_of_files_is_replaced_or_neither(tmp_path: Path) -> None:
    target = tmp_path / "f"
    files.write_text(target, "old")
    with pytest.raises(KeyError), files.undone_on_failure(target):
        files.write_text(target, "new")
        assert [p.read_text() for p in files.kept_versions(target)] == ["old"]
        raise KeyError
    assert target.read_text() == "old" and names(tmp_path) == {"f"}


@pytest.mark.parametrize("what", WHAT)
def test_kills_lose_nothing(what: str) -> None:
    assert [message for message, _ in kills(what, 2)] == [""] * 2


def test_the_current_folder_is_filled_and_stays_the_current_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with folders.replacing_folder(".") as part:
        for name in ("manifest.json", "a", "z"):
            (part / name).write_text(name)
    assert sorted(os.listdir(".")) == sorted(os.listdir(tmp_path)) == ["a", "manifest.json", "z"]
    with pytest.raises(UnwritableError, match="current folder, and not empty"), folders.replacing_folder("."):
        raise AssertionError
    assert (tmp_path / "z").read_text() == "z"
