"""Files that appear whole or not at all: scratch names, renames, digests, owner locks."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import glob
import hashlib
import json
import os
import shutil
import socket
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from shardwright.errors import BuildError

CHECKOUT = Path(__file__).resolve().parents[2]
_NO_LOCKS = (errno.ENOSYS, errno.ENOLCK, errno.EOPNOTSUPP)  # Lustre without -o flock, some NFS


def find_path(text: str) -> Path:
    """Return the file or folder that a config value names.

    A relative path is looked for in the working directory first, then in the checkout, so that
    the committed configs work from any `--directory`.
    """
    path = Path(text).expanduser()
    if path.is_absolute() or path.exists():
        return path
    return CHECKOUT / path


def sha256_file(path: Path) -> str:
    """Return the SHA-256 of a file as 64 lowercase hex digits, read in 1 MiB pieces."""
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def fsync_dir(folder: Path) -> None:
    """Make a rename in `folder` durable."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Yield a scratch name beside `path`; on a clean exit fsync it and rename it over `path`.

    On an exception the scratch file is removed and `path` keeps what it held.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(prefix=f".{path.name}.", suffix=".part", dir=path.parent)
    os.close(handle)
    scratch = Path(name)
    try:
        yield scratch
        with scratch.open("rb") as stream:
            os.fsync(stream.fileno())
        scratch.chmod(0o644)
        scratch.replace(path)
        fsync_dir(path.parent)
    finally:
        scratch.unlink(missing_ok=True)


@contextlib.contextmanager
def scratch_folder(parent: Path, label: str) -> Iterator[Path]:
    """Yield a private folder below `parent` (same file system as the target, so rename works)."""
    parent.mkdir(parents=True, exist_ok=True)
    folder = Path(tempfile.mkdtemp(prefix=f".{label}.", suffix=".part", dir=parent))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def publish_folder(scratch: Path, target: Path) -> None:
    """Put a finished folder in the place of `target`, readable by others as any folder."""
    shutil.rmtree(target, ignore_errors=True)
    scratch.chmod(0o755)
    scratch.rename(target)
    fsync_dir(target.parent)


def write_json(path: Path, value: Any) -> None:
    """Write `value` as indented, key-sorted JSON, by rename."""
    with replacing(path) as scratch:
        text = json.dumps(value, indent=2, sort_keys=True, ensure_ascii=False)
        scratch.write_text(f"{text}\n", encoding="utf-8")


def read_json(path: Path) -> Any:
    """Read a JSON file, in UTF-8 as JSON is, whatever the locale."""
    return json.loads(path.read_text(encoding="utf-8"))


@contextlib.contextmanager
def owner_lock(lock_path: Path, wait_s: float = 3600.0) -> Iterator[int]:
    """Hold `lock_path` alone; a second writer of the same target waits, then takes over.

    After `kill -9` of Snakemake its jobs live on as orphans; the rerun's copy waits here until
    the orphan is gone instead of writing beside it. The lock dies with its process, or with the
    last child that was given the yielded file descriptor (`pass_fds`).

    Raises:
        BuildError: The lock was still held after `wait_s` seconds.
    """
    lock_path.parent.mkdir(parents=True, exist_ok=True)
    with lock_path.open("a+") as stream:
        deadline = time.monotonic() + wait_s
        announced = False
        while True:
            try:
                fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                stream.seek(0)
                owner = stream.read().strip() or "an unnamed process"
                if time.monotonic() >= deadline:
                    raise BuildError(
                        str(lock_path),
                        found=f"a lock held by {owner} for more than {wait_s:.0f} s",
                        expected="one writer for this target",
                        next_step="end that process, or wait for it, and run the same command again",
                    ) from None
                if not announced:
                    print(f"waiting for {owner}, which is writing the same target", flush=True)
                    announced = True
                time.sleep(0.2)
            except OSError as error:
                if error.errno not in _NO_LOCKS:
                    raise
                print(f"{lock_path.parent} cannot lock files; going on without a lock", flush=True)
                break
        stream.seek(0)
        stream.truncate()
        stream.write(f"{socket.gethostname()} pid {os.getpid()}\n")
        stream.flush()
        yield stream.fileno()


@contextlib.contextmanager
def sole_writer(target: Path, wait_s: float = 3600.0, root: Path | None = None) -> Iterator[None]:
    """Hold the owner lock of `target`, and clear what a killed writer of it left behind.

    Args:
        target: The file or folder to be written.
        wait_s: How long to wait for another writer.
        root: The build's root, which gets the lock in its `locks/`; the folder above the target's
            unless told.

    Raises:
        BuildError: Another process held the lock for `wait_s` seconds.
    """
    root = root or target.parent.parent
    name = "-".join(target.relative_to(root).parts)
    lock = root / "locks" / f"{name}.lock"
    with owner_lock(lock, wait_s):
        for stale in target.parent.glob(f".{glob.escape(target.name)}.*.part"):
            if stale.is_dir():
                shutil.rmtree(stale, ignore_errors=True)
            else:
                stale.unlink(missing_ok=True)
        yield
