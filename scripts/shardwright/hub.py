"""The Hugging Face Hub through its own client: one file's bytes, one repository's listing.

Endpoint (HF_ENDPOINT), token (HF_TOKEN or a stored login), proxies and headers are the client's. The
body is read here, into a partial file that a later try continues with a Range request: the client's
own download starts a killed transfer from zero, and keeps locks in its cache.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx2
from huggingface_hub import HfApi, constants, get_hf_file_metadata, hf_hub_url
from huggingface_hub.errors import (
    EntryNotFoundError,
    GatedRepoError,
    HfHubHTTPError,
    OfflineModeIsEnabled,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)
from huggingface_hub.hf_api import RepoFile
from huggingface_hub.utils import build_hf_headers, get_session, hf_raise_for_status

from shardwright.errors import BuildError
from shardwright.file_pins import FilePin
from shardwright.progress import Progress
from shardwright.sources import Source, TransientFault

_BUSY = (408, 416, 425, 429)
# A build asks for its files and nothing else: the client would also fetch and cache a list of agents.
constants.HF_HUB_DISABLE_TELEMETRY = True


def _url(source: Source, file: str) -> str:
    return hf_hub_url(source.repo, source.path_of(file), repo_type=source.repo_type, revision=source.revision)


def _page(source: Source) -> str:
    kind = "datasets/" if source.repo_type == "dataset" else ""
    return f"{constants.ENDPOINT}/{kind}{source.repo}"


def _no_access(source: Source, subject: str, error: HfHubHTTPError) -> BuildError:
    page = _page(source)
    status = error.response.status_code
    if isinstance(error, GatedRepoError):
        found = f"a gated repository (HTTP {status})"
        step = f"accept its terms at {page}, then give the token of that account: export HF_TOKEN=…"
    else:
        found = f"no access, or no such repository (HTTP {status})"
        step = f"check the name at {page}; if it is private, export HF_TOKEN=… of an account that may read it"
    return BuildError(
        subject,
        found=found,
        expected=f"leave to read {source.repo} from {constants.ENDPOINT}",
        next_step=f"{step} (under Slurm the variable must reach the job)",
    )


def _explain(source: Source, subject: str, error: HfHubHTTPError) -> Exception:
    """Turn a refusal of the hub into a BuildError, or into a fault that is worth another try."""
    status = error.response.status_code
    if isinstance(error, RevisionNotFoundError | EntryNotFoundError):
        missing = "revision" if isinstance(error, RevisionNotFoundError) else "file"
        return BuildError(
            subject,
            found=f"no such {missing} at {_page(source)}",
            expected="the pinned file at the pinned revision",
            next_step="correct the repository, the revision or the pin table",
        )
    if isinstance(error, GatedRepoError | RepositoryNotFoundError) or status in (401, 403):
        return _no_access(source, subject, error)
    if status >= 500 or status in _BUSY:
        asked = error.response.headers.get("Retry-After", "")
        return TransientFault(f"HTTP {status}", float(asked) if asked.isdecimal() else 0.0)
    return BuildError(
        subject,
        found=f"HTTP {status}",
        expected="the pinned file",
        next_step=f"look at {_page(source)}; check HF_ENDPOINT and the proxy settings",
    )


@contextmanager
def _explained(source: Source, subject: str) -> Iterator[None]:
    try:
        yield
    except HfHubHTTPError as error:
        raise _explain(source, subject, error) from error
    except OfflineModeIsEnabled as error:
        raise BuildError(
            subject,
            found="HF_HUB_OFFLINE is set",
            expected="leave to reach the hub",
            next_step="unset HF_HUB_OFFLINE, or set the source to a folder that mirrors the files",
        ) from error
    except httpx2.TransportError as error:
        raise TransientFault(f"{type(error).__name__}: {error}") from error


def _check_offer(source: Source, pin: FilePin, url: str) -> None:
    """Ask for the file's headers, and refuse at once what cannot become the pinned bytes."""
    offer = get_hf_file_metadata(url)
    subject = source.describe(pin.file)
    step = "correct the revision or the pin table (or HF_ENDPOINT, if it names another hub)"
    if offer.commit_hash not in (None, source.revision):
        raise BuildError(
            subject, found=f"commit {offer.commit_hash}", expected=f"commit {source.revision}", next_step=step
        )
    if offer.size not in (None, pin.bytes):
        raise BuildError(
            subject,
            found=f"{offer.size} bytes on the hub",
            expected=f"{pin.bytes} bytes (pinned)",
            next_step=step,
        )
    is_digest = offer.etag is not None and len(offer.etag) == 64
    if is_digest and offer.etag != pin.sha256:
        raise BuildError(
            subject,
            found=f"sha256 {offer.etag} announced by the hub",
            expected=f"sha256 {pin.sha256} (pinned)",
            next_step=step,
        )


def receive(source: Source, pin: FilePin, partial: Path, progress: Progress) -> None:
    """Append what is missing of the file to `partial`.

    Raises:
        BuildError: The hub refuses for good, or holds another file than the pinned one.
        TransientFault: A dropped connection or a busy server; `partial` keeps what came.
        Stalled: The server sends next to nothing.
    """
    url = _url(source, pin.file)
    with _explained(source, source.describe(pin.file)):
        _check_offer(source, pin, url)
        with partial.open("ab") as writer:
            _append(url, writer, progress)


def _append(url: str, writer: Any, progress: Progress) -> None:
    have = writer.tell()
    headers = {**build_hf_headers(), "Accept-Encoding": "identity"}
    if have:
        headers["Range"] = f"bytes={have}-"
    timeout = constants.HF_HUB_DOWNLOAD_TIMEOUT
    with get_session().stream("GET", url, headers=headers, timeout=timeout, follow_redirects=True) as answer:
        if answer.status_code == 416:  # no such range: what we hold is not a part of this file
            writer.truncate(0)
        hf_raise_for_status(answer)
        if have and answer.status_code != 206:  # the server sends the whole file again
            writer.truncate(0)
            progress.restart()
        for piece in answer.iter_bytes():
            writer.write(piece)
            progress.advance(len(piece))


@dataclass(frozen=True)
class Listed:
    """One file as the hub lists it: a large one (LFS) has a SHA-256, a small one a git blob id."""

    file: str
    bytes: int
    sha256: str
    blob_id: str


def list_files(source: Source) -> list[Listed]:
    """List the repository's files at the revision, sorted by name.

    Raises:
        BuildError: The hub refuses.
        TransientFault: A dropped connection or a busy server.
    """
    with _explained(source, f"{source.repo}@{source.revision}"):
        entries = HfApi().list_repo_tree(
            source.repo, recursive=True, revision=source.revision, repo_type=source.repo_type
        )
        files = [entry for entry in entries if isinstance(entry, RepoFile)]
    return sorted(
        (
            Listed(entry.path, entry.size, entry.lfs.sha256 if entry.lfs else "", entry.blob_id)
            for entry in files
        ),
        key=lambda listed: listed.file,
    )


def read_small(source: Source, listed: Listed) -> bytes:
    """Return the whole of a small file, checked against its git blob id.

    Raises:
        BuildError: The hub refuses, or sends other bytes than it lists.
        TransientFault: A dropped connection or a busy server.
    """
    subject = source.describe(listed.file)
    with _explained(source, subject):
        answer = get_session().get(
            _url(source, listed.file), headers=build_hf_headers(), follow_redirects=True
        )
        hf_raise_for_status(answer)
    data = answer.content
    blob_id = hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()
    if blob_id != listed.blob_id:
        raise BuildError(
            subject,
            found=f"git blob {blob_id}, {len(data)} bytes",
            expected=f"git blob {listed.blob_id}, {listed.bytes} bytes, as the hub lists it",
            next_step="run the same command again",
        )
    return data
