"""A team's cost store on a shared folder or an object store. Its rows are used where the user's store has none, in
preference to starter rows. Its storage location holds shards as a store's root does: immutable Parquet files named by
their sha256, so any number of writers may publish at once without a lock, and a shard that was damaged or exchanged is
recognised. Shards are copied into a mirror in this user's cache folder before they are read.

Rows of a team are measurements of other machines and people. They are ignored where this store has rows of its own; a
price based on them alone has a wide interval, so that kernels of a plan are measured on this machine before the plan
depends on them. If fewer than two runs of the team agree, the interval reaches down to the kernel's roofline bound: one
wrong row can neither bring a kernel into a plan nor keep it out. Failures and errors of a team's rows are not used.
"""

from __future__ import annotations

import os
import posixpath
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from hashlib import blake2b, sha256
from pathlib import Path
from typing import Protocol

from ... import cache_folder, private
from ...errors import CostStoreError
from ...plain import Malformed, read_bytes
from ..reports.reports import StoreReport
from . import cache, shards
from .schema import FORMAT, TEAM, checked
from .snapshot import LOADED, Snapshot

PULL_S = 3.0  # longest time that reading a store waits for the team's place; copying goes on in the background
EVERY_S = 600.0  # an automatic copy is made at most this often
MOST_SHARDS = 100_000  # of a team's place


@dataclass(frozen=True, repr=False)
class TeamReport(StoreReport):
    """Answer to `pull` and `push`: numbers of shards copied and already present, refused shards with the reason."""

    team: str
    copied: int
    present: int
    bad_shards: dict[str, str] = field(default_factory=dict)
    skipped_rows: dict[str, int] = field(default_factory=dict)


class Place(Protocol):
    """Storage location of a team's cost store: files by path relative to the location, with `/` between the parts."""

    def find(self) -> Iterator[tuple[str, int]]:
        """(path, size in bytes) of every file under the folder of shards."""
        ...

    def read(self, path: str, most: int) -> bytes:
        """Content of a file; raises OSError if it cannot be read or has more than `most` bytes."""
        ...

    def write(self, path: str, content: bytes) -> None:
        """Create a file; readers see all of it or nothing. Raises OSError if it cannot be written."""
        ...


class SharedFolder:
    """Storage location of a team's cost store in a folder of a mounted file system."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def find(self) -> Iterator[tuple[str, int]]:
        """(path, size in bytes) of every file under the folder of shards (`Place.find`)."""
        for shard in shards.find(self.root):
            yield shard.path.relative_to(self.root).as_posix(), shard.size

    def read(self, path: str, most: int) -> bytes:
        """Content of a file of the shared folder (`Place.read`).

        Raises OSError if it cannot be read or has more than `most` bytes.
        """
        self._refuse_links(self.root / path)
        try:
            return read_bytes(self.root / path, most)  # what was a file when it was found may be a pipe now
        except Malformed as error:
            raise OSError(str(error)) from None

    def write(self, path: str, content: bytes) -> None:
        """Create a file in the shared folder (`Place.write`). Raises OSError if it cannot be written."""
        target = self.root / path
        self._refuse_links(target)
        shards.write_by_content(target.parent, content)

    def _refuse_links(self, target: Path) -> None:
        """Raises OSError if a link in the team's folder leads elsewhere."""
        if Path(os.path.realpath(target)) != Path(os.path.realpath(self.root)) / target.relative_to(self.root):
            raise OSError(f"{target} leads out of the team's folder")


class ObjectStore:
    """Storage location of a team's cost store under an fsspec URL (s3://bucket/folder, gs://, memory://, …)."""

    def __init__(self, url: str) -> None:
        try:
            import fsspec
        except ImportError as error:
            raise CostStoreError(
                "a team's store under a URL needs fsspec", where=url, hint="pip install 'tensor-graphs[fleet]'"
            ) from error
        try:
            self.files, self.root = fsspec.core.url_to_fs(url)
        except Exception as error:  # those of storage libraries have no common class
            raise CostStoreError(f"the team's store cannot be reached: {str(error)[:300]}", where=url) from error

    def find(self) -> Iterator[tuple[str, int]]:
        """(path, size in bytes) of every file under the folder of shards (`Place.find`)."""
        folder = posixpath.join(self.root, FORMAT)
        with _errors_of_storage():
            self.files.invalidate_cache()
            found = self.files.find(folder, detail=True) if self.files.exists(folder) else {}
        for path, facts in found.items():
            yield posixpath.relpath(path, self.root), int(facts.get("size") or 0)

    def read(self, path: str, most: int) -> bytes:
        """Content of a file of the object store (`Place.read`).

        Raises OSError if it cannot be read or has more than `most` bytes.
        """
        with _errors_of_storage(), self.files.open(posixpath.join(self.root, path), "rb") as file:
            return _limited(file.read(most + 1), path, most)

    def write(self, path: str, content: bytes) -> None:
        """Create a file in the object store (`Place.write`). Raises OSError if it cannot be written."""
        target = posixpath.join(self.root, path)
        with _errors_of_storage():
            self.files.makedirs(posixpath.dirname(target), exist_ok=True)
            self.files.pipe_file(target, content)  # object stores show an object when it is complete


@contextmanager
def _errors_of_storage() -> Iterator[None]:
    """Raises OSError in place of the errors of storage libraries, which have no common class."""
    try:
        yield
    except OSError:
        raise
    except Exception as error:
        raise OSError(f"{type(error).__name__}: {str(error)[:200]}") from error


def place_of(team: str) -> Place:
    """Storage location of the team's cost store that a folder or URL names. Raises CostStoreError if it cannot be
    reached.
    """
    if "://" in team:
        return ObjectStore(team)
    root = Path(os.path.expanduser(team))
    if not root.is_dir():
        raise CostStoreError("the team's store does not exist", where=team, hint="create the folder, or name a URL")
    return SharedFolder(root)


def mirror_of(team: str) -> Path:
    """This user's private folder with copies of a team's shards. Raises CostStoreError if it cannot be used."""
    folder = cache_folder.home() / "teams" / blake2b(team.encode(), digest_size=16).hexdigest()
    if why := private.private_folder(folder):
        raise CostStoreError(f"the mirror of the team's store cannot be used: {why}", where=str(folder))
    return folder


# ---------------------------------------------------------------- copying
def pull(team: str, mirror: Path | None = None) -> TeamReport:
    """Copy the team's new shards into the mirror, each after its checksum and schema were verified; returns the counts.

    `mirror`: folder, by default that of `mirror_of`. Raises CostStoreError if the team's store cannot be read.
    """
    place, target = place_of(team), mirror or mirror_of(team)
    have = {shard.name for shard in shards.find(target)}
    copied, present, bad, skipped = 0, 0, dict[str, str](), Counter[str]()
    for path, size in _shards_of(place, team):
        name = posixpath.basename(path).removesuffix(".parquet")
        if name in have:
            present += 1
            continue
        try:
            content = _verified(place, path, name, size)
            _, refused = checked(shards.decode(content))  # invalid rows are left out again on each reading
            shards.write_by_content(target / FORMAT / "device=team" / name[:2], content)
        except shards.BadShard as reason:
            bad[name] = str(reason)
            continue
        except OSError as error:
            bad[name] = (error.strerror or str(error) or "cannot be read")[:200]
            continue
        skipped.update(refused)
        copied += 1
    return TeamReport(team, copied, present, bad, dict(skipped))


def push(root: Path, team: str) -> TeamReport:
    """Publish the good shards of a store that the team's store does not have; returns the counts.

    Raises CostStoreError if none can be written.
    """
    place = place_of(team)
    have = {posixpath.basename(path).removesuffix(".parquet") for path, _ in _shards_of(place, team)}
    copied, present, bad, unwritten = 0, 0, dict[str, str](), ""
    for shard in shards.find(root):
        if shard.name in have:
            present += 1
            continue
        try:
            checked(shards.read(shard.path))
            content = shard.path.read_bytes()
            if sha256(content).hexdigest() != shard.name:
                raise shards.BadShard("sha256-differs")
        except (shards.BadShard, OSError) as error:
            bad[shard.name] = str(error)[:200]
            continue
        try:
            place.write(shard.path.relative_to(root).as_posix(), content)
            copied += 1
        except OSError as error:
            bad[shard.name] = unwritten = str(error)[:200]
    if unwritten and not copied:
        raise CostStoreError(f"no shard can be written to the team's store: {unwritten}", where=team)
    return TeamReport(team, copied, present, bad)


def _shards_of(place: Place, team: str) -> Iterator[tuple[str, int]]:
    """(path, bytes) of the shards at a team's storage location.

    Raises CostStoreError if they cannot be listed, or are too many.
    """
    try:
        for number, (path, size) in enumerate(place.find()):
            if number >= MOST_SHARDS:
                raise CostStoreError(
                    f"the team's store has more than {MOST_SHARDS} shards", where=team, hint="compact it"
                )
            if shards.is_name(posixpath.basename(path)):
                yield path, size
    except OSError as error:
        raise CostStoreError(f"the team's store cannot be listed: {error}", where=team) from error


def _verified(place: Place, path: str, name: str, size: int) -> bytes:
    """Content of a shard whose sha256 is its name. Raises BadShard or OSError."""
    if size > shards.MAX_SHARD_FILE_BYTES:
        raise shards.BadShard("too-large")
    content = place.read(path, shards.MAX_SHARD_FILE_BYTES)
    if sha256(content).hexdigest() != name:
        raise shards.BadShard("sha256-differs")
    return content


def _limited(content: bytes, path: str, most: int) -> bytes:
    if len(content) > most:
        raise OSError(f"{path} has more than {most} bytes")
    return content


# ---------------------------------------------------------------- reading
def rows_of(team: str, wait_s: float, *, refresh: bool) -> tuple[Snapshot, tuple[str, ...], str]:
    """The team's timings as a snapshot, the names of their shards, and a warning or "".

    With `refresh`, new shards are copied first if the last copy is older than EVERY_S. Waits at most PULL_S for that;
    the copy then continues in the background, for the next reader. `wait_s`: longest wait for another process that
    holds the cache; the shards are then read into memory. Raises CostStoreError if the mirror cannot be used.
    """
    mirror = mirror_of(team)
    warning = _refreshed(team, mirror) if refresh else ""
    file = cache.private_folder(mirror) / f"{FORMAT}.duckdb"
    try:
        loaded = cache.load_file(mirror, file, wait_s)
    except (cache.CacheBusy, cache.CacheUnusable):
        loaded = cache.load_memory(mirror, file)
    found = Snapshot()
    columns = {name: loaded.snapshot.column("timing", name) for name in LOADED["timing"]}
    found.extend("timing", {**columns, "run": [TEAM + run for run in columns["run"]]})
    return found, loaded.shards, warning


def _refreshed(team: str, mirror: Path) -> str:
    """Copy new shards if the last copy is older than EVERY_S; returns a warning if that failed, else ""."""
    stamp = mirror / "copied"
    try:
        if abs(time.time() - stamp.stat().st_mtime) < EVERY_S:  # a stamp of the future is of a clock that was wrong
            return ""
    except OSError:
        pass
    failed: list[str] = []

    def copy() -> None:
        try:
            pull(team, mirror)
            stamp.touch()
        except (CostStoreError, OSError) as error:
            failed.append(str(error).partition("\n")[0])
        except Exception as error:  # errors of storage libraries have no common class
            failed.append(f"{type(error).__name__}: {str(error)[:200]}")

    thread = threading.Thread(target=copy, daemon=True, name="team-store")
    thread.start()
    thread.join(PULL_S)
    return f"the team's store {team} was not refreshed: {failed[0]}" if failed else ""


__all__ = ["TeamReport", "mirror_of", "place_of", "pull", "push", "rows_of"]
