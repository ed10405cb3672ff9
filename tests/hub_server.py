"""A hub on loopback that speaks what huggingface_hub asks for, and fails on demand.

    with HubServer() as hub:
        hub.add("dataset", "owner/name", REVISION, {"a.parquet": b"…"})
        hub.fault("a.parquet", "drop:1000", "500")     # consumed one a GET, in this order
        … run a program with HF_ENDPOINT=hub.url …
        hub.requests                                    # (method, file, Range header, status, …)

Served: `resolve/<revision>/<file>` (HEAD and GET, ETag, X-Repo-Commit, Range → 206; files in `lfs`
redirect to a CDN on another host name, as the real hub does) and the API's `tree/<revision>`.

Faults: `drop:N` (close after N bytes), `reset:N`, `flip` (one byte differs, size stays), `cut:N`
(N bytes less, with a Content-Length that agrees), `drip` (a byte a second), `norange:N` (Range is
ignored; the whole file comes in N pieces, a tenth of a second apart), `NNN` (that status), `ok`.
"""

from __future__ import annotations

import collections
import contextlib
import hashlib
import http.server
import json
import socket
import struct
import sys
import threading
import time
from collections.abc import Iterator
from typing import NamedTuple
from urllib.parse import unquote, urlsplit


class Request(NamedTuple):
    """One request as the server saw it."""

    method: str
    file: str
    range: str
    status: int
    host: str
    has_token: bool


def sha256(data: bytes) -> str:
    """The digest as the hub announces it."""
    return hashlib.sha256(data).hexdigest()


def git_blob_id(data: bytes) -> str:
    """The digest that git, and so the hub, gives a small file."""
    return hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()


@contextlib.contextmanager
def hub_endpoint(url: str) -> Iterator[None]:
    """Point the hub client of this process at `url`, as HF_ENDPOINT does when a process starts."""
    from huggingface_hub import constants

    before = constants.ENDPOINT, constants.HUGGINGFACE_CO_URL_TEMPLATE
    constants.ENDPOINT = url
    constants.HUGGINGFACE_CO_URL_TEMPLATE = url + "/{repo_id}/resolve/{revision}/{filename}"
    try:
        yield
    finally:
        constants.ENDPOINT, constants.HUGGINGFACE_CO_URL_TEMPLATE = before


class HubServer(http.server.ThreadingHTTPServer):
    """The server: repositories, faults to come, the requests so far."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), HubHandler)
        self.repos: dict[tuple[str, str, str], dict[str, bytes]] = {}
        self.lfs: set[str] = set()
        self.branches: dict[str, str] = {}
        self.faults: dict[str, list[str]] = collections.defaultdict(list)
        self.head_faults: list[int] = []
        self.gated: dict[str, int] = {}
        self.token = ""
        self.requests: list[Request] = []
        self._thread = threading.Thread(
            target=self.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True
        )

    def __enter__(self) -> HubServer:
        self._thread.start()
        return self

    def __exit__(self, *args: object) -> None:
        self.shutdown()
        self.server_close()

    def handle_error(self, request: object, client_address: object) -> None:
        """A client that was killed is no error of the server's; anything else is shown."""
        if not isinstance(sys.exception(), ConnectionError):
            super().handle_error(request, client_address)

    @property
    def url(self) -> str:
        """What HF_ENDPOINT must be."""
        return f"http://127.0.0.1:{self.server_address[1]}"

    def add(self, kind: str, repo: str, revision: str, files: dict[str, bytes], lfs: bool = False) -> None:
        """Publish `files` as one revision of a repository."""
        self.repos[(kind, repo, revision)] = files
        if lfs:
            self.lfs.update(files)

    def fault(self, file: str, *kinds: str) -> None:
        """Let the next GETs of `file` go wrong, one kind each."""
        self.faults[file].extend(kinds)

    def gets(self, file: str) -> list[Request]:
        """The GETs of one file's bytes (a redirect to the CDN path is not one)."""
        return [r for r in self.requests if r.method == "GET" and r.file == file and r.status != 302]


class HubHandler(http.server.BaseHTTPRequestHandler):
    """Answers as the hub does, unless a fault is due."""

    protocol_version = "HTTP/1.1"
    server: HubServer

    def log_message(self, *args: object) -> None:
        """The request log is in `server.requests`."""

    def do_HEAD(self) -> None:
        self._answer(with_body=False)

    def do_GET(self) -> None:
        self._answer(with_body=True)

    def _answer(self, with_body: bool) -> None:
        parts = unquote(urlsplit(self.path).path).strip("/").split("/")
        if parts[0] == "api" and "tree" in parts:
            return self._tree(parts[1:])
        if len(parts) < 5:
            return self._refuse(self.path, 404, "")
        kind = "model"
        if parts[0] == "cdn":
            parts = parts[1:]
        if parts[0] == "datasets":
            kind, parts = "dataset", parts[1:]
        repo, revision, file = "/".join(parts[:2]), parts[3], "/".join(parts[4:])
        revision = self.server.branches.get(revision, revision)
        if not self._may_read(repo):
            return self._refuse(file, self.server.gated[repo], "GatedRepo")
        files = self.server.repos.get((kind, repo, revision))
        if files is None:
            known = any(key[:2] == (kind, repo) for key in self.server.repos)
            code = "RevisionNotFound" if known else "RepoNotFound"
            return self._refuse(file, 404 if known else 401, code)
        if file not in files:
            return self._refuse(file, 404, "EntryNotFound")
        if not with_body and self.server.head_faults:
            return self._refuse(file, self.server.head_faults.pop(0), "")
        if file in self.server.lfs and not self.path.startswith("/cdn/"):
            return self._redirect(file, revision, files[file])
        if not with_body:
            return self._headers(file, 200, revision, files[file], len(files[file]))
        return self._body(file, revision, files[file])

    def _may_read(self, repo: str) -> bool:
        is_signed = self.path.startswith("/cdn/")
        token = self.headers.get("Authorization")
        return is_signed or repo not in self.server.gated or token == f"Bearer {self.server.token}"

    def _log(self, file: str, status: int) -> None:
        headers = self.headers
        self.server.requests.append(
            Request(
                self.command,
                file,
                headers.get("Range", ""),
                status,
                headers.get("Host", "").partition(":")[0],
                "Authorization" in headers,
            )
        )

    def _refuse(self, file: str, status: int, code: str) -> None:
        self._log(file, status)
        self.send_response(status)
        if code:
            self.send_header("X-Error-Code", code)
        if status == 429:
            self.send_header("Retry-After", "1")
        self.send_header("Content-Length", "0")
        self.end_headers()

    def _redirect(self, file: str, revision: str, data: bytes) -> None:
        self._log(file, 302)
        self.send_response(302)
        self.send_header("Location", f"http://localhost:{self.server.server_address[1]}/cdn{self.path}")
        self.send_header("X-Linked-Size", str(len(data)))
        self.send_header("X-Linked-ETag", f'"{sha256(data)}"')
        self.send_header("X-Repo-Commit", revision)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def _headers(
        self, file: str, status: int, revision: str, data: bytes, length: int, start: int = 0
    ) -> None:
        self._log(file, status)
        self.send_response(status)
        self.send_header("ETag", f'"{sha256(data) if file in self.server.lfs else git_blob_id(data)}"')
        self.send_header("X-Repo-Commit", revision)
        self.send_header("Accept-Ranges", "bytes")
        self.send_header("Content-Length", str(length))
        if status == 206:
            self.send_header("Content-Range", f"bytes {start}-{len(data) - 1}/{len(data)}")
        self.end_headers()

    def _body(self, file: str, revision: str, data: bytes) -> None:
        due = self.server.faults[file]
        kind, _, number = (due.pop(0) if due else "ok").partition(":")
        if kind.isdigit():
            return self._refuse(file, int(kind), "")
        wanted = self.headers.get("Range", "")
        start = int(wanted.removeprefix("bytes=").rstrip("-")) if wanted else 0
        if start > len(data):
            return self._refuse(file, 416, "")
        if kind == "flip":
            data = data[:-9] + bytes([data[-9] ^ 1]) + data[-8:]
        if kind == "cut":
            data = data[: -int(number)]
        if kind == "norange":
            start, wanted = 0, ""
        body = data[start:]
        self._headers(file, 206 if wanted else 200, revision, data, len(body), start)
        with contextlib.suppress(ConnectionError):
            self._send(kind, body, int(number or 0))

    def _send(self, kind: str, body: bytes, number: int) -> None:
        if kind in ("drop", "reset"):
            self.wfile.write(body[:number])
            self.close_connection = True
        elif kind == "drip":
            for offset in range(len(body)):
                self.wfile.write(body[offset : offset + 1])
                time.sleep(0.25)
        elif kind == "norange":
            size = -(-len(body) // max(number, 1))
            for offset in range(0, len(body), size):
                time.sleep(0.1)
                self.wfile.write(body[offset : offset + size])
        else:
            self.wfile.write(body)
        if kind == "reset":
            time.sleep(0.2)  # let the client read what was sent, before RST throws it away
            self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            self.rfile.close()
            self.connection.close()

    def _tree(self, parts: list[str]) -> None:
        kind, repo, revision = parts[0].removesuffix("s"), "/".join(parts[1:3]), parts[4]
        revision = self.server.branches.get(revision, revision)
        files = self.server.repos.get((kind, repo, revision))
        if files is None:
            return self._refuse("tree", 404, "RevisionNotFound")
        entries = []
        for path, data in sorted(files.items()):
            entry = {"type": "file", "path": path, "size": len(data), "oid": git_blob_id(data)}
            if path in self.server.lfs:
                entry["lfs"] = {"oid": sha256(data), "size": len(data), "pointerSize": 134}
            entries.append(entry)
        body = json.dumps(entries).encode()
        self._log("tree", 200)
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
