"""Pinned files brought here and verified, from the hub or from a local mirror of it.

A file is transferred into a partial file of its own, named after the pinned digest. It survives a
killed job, and the next try goes on where it ended. No cache is shared and no lock of the hub client
is taken, so nothing can wait on a lock file of a dead job or of another node.

Tries are bounded: `attempts` in a row that bring less than a megabyte of new bytes, or as many whole
transfers with wrong bytes, end in an error.
"""

from __future__ import annotations

import errno
import os
import shutil
import time
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from dataclasses import dataclass
from pathlib import Path

from shardwright.errors import BuildError
from shardwright.file_pins import FilePin
from shardwright.files import fsync_dir, sha256_file
from shardwright.progress import MEGABYTE, WINDOW_S, Progress, Stalled
from shardwright.sources import Source, TransientFault

CHUNK = 1 << 20
MAX_WAIT_S = 60.0
_NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


@dataclass(frozen=True)
class Patience:
    """How often to try and how long to wait.

    Args:
        attempts: Tries in a row without progress, or with wrong bytes.
        backoff_s: Wait after the first failed try; doubles each time, at most MAX_WAIT_S.
        window_s: How long a live connection may send next to nothing.
        lock_wait_s: How long another writer of the same target is waited for.
    """

    attempts: int = 3
    backoff_s: float = 2.0
    window_s: float = WINDOW_S
    lock_wait_s: float = 3600.0

    def wait_s(self, idle: int, asked_s: float) -> float:
        """Seconds to wait before the next try, after `idle` tries without progress."""
        return min(max(self.backoff_s * 2 ** max(idle - 1, 0), asked_s), MAX_WAIT_S)


def _copy_from_folder(source: Source, pin: FilePin, partial: Path, progress: Progress) -> None:
    origin = source.folder / source.path_of(pin.file)
    if not origin.is_file():
        raise BuildError(
            str(origin),
            found="no such file",
            expected="the pinned file in the mirror folder",
            next_step="copy it there, or set the source to `hub`",
        )
    size = origin.stat().st_size
    if size != pin.bytes:
        raise BuildError(
            str(origin),
            found=f"{size} bytes",
            expected=f"{pin.bytes} bytes (pinned)",
            next_step="bring the right file to the mirror, or correct the pin table",
        )
    with origin.open("rb") as reader, partial.open("ab") as writer:
        reader.seek(writer.tell())
        while piece := reader.read(CHUNK):
            writer.write(piece)
            progress.advance(len(piece))


def _receive(source: Source, pin: FilePin, partial: Path, progress: Progress) -> None:
    if source.is_hub:
        from shardwright.hub import receive

        receive(source, pin, partial, progress)
    else:
        _copy_from_folder(source, pin, partial, progress)


def _disk_full(pin: FilePin, partial: Path, found: str) -> BuildError:
    return BuildError(
        str(partial.parent),
        found=found,
        expected=f"room for the {pin.bytes / MEGABYTE:,.1f} MB of {pin.file}",
        next_step="free some space, or put the build on a bigger disk (`--config root=/data/x`), "
        "and run again: what is here already is kept",
    )


def _check_space(pin: FilePin, partial: Path, have: int) -> None:
    free = shutil.disk_usage(partial.parent).free
    if free < pin.bytes - have:
        raise _disk_full(pin, partial, f"{free / MEGABYTE:,.1f} MB free")


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


def _transfer_once(source: Source, pin: FilePin, partial: Path, window_s: float) -> None:
    """Bring what is missing of one file into `partial`."""
    have = _size(partial)
    if have > pin.bytes:
        partial.unlink()
        have = 0
    if have == pin.bytes and partial.exists():
        return
    _check_space(pin, partial, have)
    partial.touch()
    progress = Progress(pin.file, pin.bytes, have, window_s)
    try:
        _receive(source, pin, partial, progress)
    except OSError as error:
        if error.errno not in _NO_ROOM:
            raise
        raise _disk_full(pin, partial, error.strerror) from error
    size = _size(partial)
    if size != pin.bytes:
        raise TransientFault(f"{size} bytes came instead of {pin.bytes}")


def _wrong_bytes(source: Source, pin: FilePin, found: str, attempts: int) -> BuildError:
    return BuildError(
        source.describe(pin.file),
        found=f"sha256 {found} in {attempts} transfers of {pin.bytes} bytes",
        expected=f"sha256 {pin.sha256} (pinned)",
        next_step="if the sender is right, correct the pin table; else try again or use another source",
    )


def _gave_up(source: Source, pin: FilePin, fault: Exception, attempts: int) -> BuildError:
    return BuildError(
        source.describe(pin.file),
        found=f"{fault} ({attempts} tries in a row without progress)",
        expected=f"{pin.bytes} bytes with sha256 {pin.sha256}",
        next_step="run the same command again: what has come is kept and continued",
    )


def _until_verified(source: Source, pin: FilePin, partial: Path, patience: Patience) -> None:
    """Transfer, hash, and begin again as often as `patience` allows; `partial` is right at the end."""
    idle = wrong = 0
    most = _size(partial)
    while True:
        try:
            _transfer_once(source, pin, partial, patience.window_s)
        except (TransientFault, Stalled) as fault:
            size = _size(partial)
            idle = 0 if size - most >= MEGABYTE else idle + 1
            most = max(most, size)
            if idle >= patience.attempts:
                raise _gave_up(source, pin, fault, idle) from fault
            wait_s = patience.wait_s(idle, getattr(fault, "wait_s", 0.0))
            print(f"{pin.file}: {fault}; trying again in {wait_s:.1f} s", flush=True)
            time.sleep(wait_s)
            continue
        found = sha256_file(partial)
        if found == pin.sha256:
            return
        partial.unlink()
        idle = most = 0
        wrong += 1
        if wrong >= patience.attempts:
            raise _wrong_bytes(source, pin, found, wrong)
        print(f"{pin.file}: wrong bytes (sha256 {found}); transferring it again", flush=True)


def is_verified(path: Path, pin: FilePin) -> bool:
    """Say whether `path` holds exactly the pinned bytes."""
    return path.is_file() and path.stat().st_size == pin.bytes and sha256_file(path) == pin.sha256


def fetch_file(
    source: Source,
    pin: FilePin,
    target: Path,
    partials: Path,
    patience: Patience,
) -> bool:
    """Bring one pinned file to `target`, unless it is there already.

    Args:
        source: Hub or mirror.
        pin: What the file must be.
        target: Where it goes, by rename, once its bytes are right.
        partials: Folder for the unfinished file; same file system as `target`.
        patience: Tries and waits.

    Returns:
        Whether anything was transferred.

    Raises:
        BuildError: Wrong bytes, wrong size, no access, no space, or no progress.
    """
    if is_verified(target, pin):
        return False
    partials.mkdir(parents=True, exist_ok=True)
    partial = partials / f"{pin.file.replace('/', '__')}.{pin.sha256[:16]}.part"
    _until_verified(source, pin, partial, patience)
    with partial.open("rb") as stream:
        os.fsync(stream.fileno())
    target.parent.mkdir(parents=True, exist_ok=True)
    partial.replace(target)
    fsync_dir(target.parent)
    return True


def fetch_files(
    source: Source, pins: list[FilePin], folder: Path, partials: Path, patience: Patience, num_threads: int
) -> int:
    """Bring all pinned files below `folder`, several at a time.

    At the first failure no further file is begun; those under way are finished and kept.

    Returns:
        How many files were transferred; the others were there already.

    Raises:
        BuildError: The first failure (see `fetch_file`).
    """
    with ThreadPoolExecutor(max_workers=num_threads) as pool:
        jobs = [pool.submit(fetch_file, source, pin, folder / pin.file, partials, patience) for pin in pins]
        done, _ = wait(jobs, return_when=FIRST_EXCEPTION)
        failed = [job for job in done if job.exception()]
        if failed:
            print("a file failed; files under way are finished and kept", flush=True)
            pool.shutdown(wait=False, cancel_futures=True)
            raise failed[0].exception()
    return sum(job.result() for job in jobs)
