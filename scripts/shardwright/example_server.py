"""The example's web: a loopback forward proxy that draws pictures and fails the way the web fails.

It listens on 127.0.0.1 on a free port and answers absolute-form requests (`GET http://host/…`, what
a client sends when `http_proxy` names this server) and plain ones. The committed parquets hold

    http://images.example.invalid/<behaviour>/<scene>/[anything/]<width>x<height>-<form>-<seed>.<suffix>

with scenes as in `example_scenes`, forms and suffixes as in `example_pictures`. Behaviours:

    ok             200 and the picture
    404 403 410 500 429   that status, always
    500-once       500 to the first request of this URL, then good
    503-twice      503 to the first two, then good
    429-once       429 with Retry-After: 0, then good
    reset-once     connection reset, then good
    reset          connection reset, always
    hang           the request is read, nothing is ever sent
    drip           headers, then one byte a second
    endless        no Content-Length; bytes without end
    short          Content-Length is right, half the body comes, then close
    empty          200 with no body
    redirect       301, then 302, then the picture
    loop           302 to itself
    to-file        302 to file:///etc/hostname
    html svg       a page, or an SVG, under a picture's name
    truncated      60 % of the file, with a Content-Length that agrees
    noai           the picture with X-Robots-Tag: noai, noimageai
    wrong-type     the picture as application/octet-stream
    chunked        the picture in chunked transfer encoding
    gzip           the picture with Content-Encoding: gzip, though nobody asked

The count behind "once" and "twice" lives in the server's process, and each download job has a
server of its own, so a rerun job meets the same faults again.

What a proxy cannot show: a name that does not resolve, a refused port and a private address are
failures of the *client's* own connection. Any other host is answered 502, as real proxies do when
they cannot reach a host (`http://gone.example.invalid/…`). URLs on 127.0.0.1 are not proxied
(`no_proxy`), so `http://127.0.0.1:9/…` is a true refused connection in the example.
"""

from __future__ import annotations

import collections
import gzip
import http.server
import select
import socket
import struct
import threading
import time
from urllib.parse import unquote, urlsplit

from shardwright.example_pictures import picture

HOST = "images.example.invalid"
UNREACHABLE_HOST = "gone.example.invalid"
REFUSED_URL_START = "http://127.0.0.1:9/"
HOLD_S = 300.0
_TYPES = {"jpg": "image/jpeg", "png": "image/png", "webp": "image/webp", "gif": "image/gif"}
_PAGE = b"<!DOCTYPE html><html><head><title>Not here</title></head><body>Moved.</body></html>"
_SVG = b'<svg xmlns="http://www.w3.org/2000/svg" width="64" height="64"><circle r="30"/></svg>'
_FAULTS_BEFORE_GOOD = {"500-once": 1, "503-twice": 2, "429-once": 1, "reset-once": 1}


def picture_at(path: str) -> bytes:
    """Return the picture that a URL path (already unquoted) describes.

    Raises:
        ValueError: The path does not describe a picture.
    """
    parts = path.strip("/").split("/")
    stem, _, suffix = parts[-1].rpartition(".")
    size, form, seed = stem.split("-")
    width, height = (int(number) for number in size.split("x"))
    return picture(parts[1], width, height, form, int(seed), suffix)


class ExampleServer(http.server.ThreadingHTTPServer):
    """The server; `requests` counts how often each path was asked for."""

    daemon_threads = True
    request_queue_size = 512

    def __init__(self, port: int = 0) -> None:
        super().__init__(("127.0.0.1", port), ExampleHandler)
        self.requests: collections.Counter[str] = collections.Counter()
        self.counting = threading.Lock()

    @property
    def url(self) -> str:
        """The proxy address for `http_proxy`."""
        return f"http://127.0.0.1:{self.server_address[1]}"

    def count(self, path: str) -> int:
        """Count a request of `path`; return which one it is, from 1."""
        with self.counting:
            self.requests[path] += 1
            return self.requests[path]

    def handle_error(self, request: object, client_address: object) -> None:
        """Clients that give up (deadlines, byte caps) are this server's trade, not an error."""


class ExampleHandler(http.server.BaseHTTPRequestHandler):
    """Answers one request as its URL says."""

    protocol_version = "HTTP/1.1"
    server: ExampleServer

    def log_message(self, *args: object) -> None:
        """Stay silent: the download's own log is what a person watches."""

    def do_GET(self) -> None:
        target = urlsplit(self.path)
        if target.netloc not in ("", HOST):
            return self._send(502, b"the proxy cannot reach this host\n", "text/plain")
        path = unquote(target.path)
        behaviour = path.strip("/").split("/")[0]
        seen = self.server.count(path)
        if behaviour in _FAULTS_BEFORE_GOOD:
            good = seen > _FAULTS_BEFORE_GOOD[behaviour]
            behaviour = "ok" if good else behaviour.partition("-")[0]
        if behaviour.isdigit():
            return self._send(int(behaviour), b"no\n", "text/plain", **{"Retry-After": "0"})
        answer = getattr(self, f"_answer_{behaviour.replace('-', '_')}", None)
        if answer is None:
            return self._send(404, b"no such behaviour\n", "text/plain")
        try:
            body = picture_at(path)
        except (ValueError, KeyError, IndexError):
            return self._send(404, b"no such picture\n", "text/plain")
        answer(body)
        return None

    def _send(self, status: int, body: bytes, content_type: str, **headers: str) -> None:
        self.send_response(status)
        self.send_header("Content-Type", content_type)
        self.send_header("Content-Length", str(len(body)))
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def _send_picture(self, body: bytes, **headers: str) -> None:
        self._send(200, body, _TYPES.get(self.path.rsplit(".", 1)[-1], "image/jpeg"), **headers)

    def _redirect(self, status: int, location: str) -> None:
        self._send(status, b"", "text/plain", Location=location)

    def _wait_until_client_leaves(self) -> None:
        select.select([self.connection], [], [], HOLD_S)
        self.close_connection = True

    def _answer_ok(self, body: bytes) -> None:
        self._send_picture(body)

    def _answer_noai(self, body: bytes) -> None:
        self._send_picture(body, **{"X-Robots-Tag": "noai, noimageai"})

    def _answer_gzip(self, body: bytes) -> None:
        self._send_picture(gzip.compress(body, mtime=0), **{"Content-Encoding": "gzip"})

    def _answer_wrong_type(self, body: bytes) -> None:
        self._send(200, body, "application/octet-stream")

    def _answer_truncated(self, body: bytes) -> None:
        self._send_picture(body[: len(body) * 3 // 5])

    def _answer_empty(self, body: bytes) -> None:
        self._send_picture(b"")

    def _answer_html(self, body: bytes) -> None:
        self._send(200, _PAGE, "text/html")

    def _answer_svg(self, body: bytes) -> None:
        self._send_picture(_SVG)

    def _answer_redirect(self, body: bytes) -> None:
        self._redirect(301, self.path.replace("/redirect/", "/redirect-again/", 1))

    def _answer_redirect_again(self, body: bytes) -> None:
        self._redirect(302, self.path.replace("/redirect-again/", "/ok/", 1))

    def _answer_loop(self, body: bytes) -> None:
        self._redirect(302, self.path)

    def _answer_to_file(self, body: bytes) -> None:
        self._redirect(302, "file:///etc/hostname")

    def _answer_hang(self, body: bytes) -> None:
        self._wait_until_client_leaves()

    def _answer_reset(self, body: bytes) -> None:
        linger_no_time = struct.pack("ii", 1, 0)  # close() then sends RST instead of FIN
        self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger_no_time)
        self.rfile.close()
        self.connection.close()
        self.close_connection = True

    def _answer_short(self, body: bytes) -> None:
        self._begin(body)
        self.wfile.write(body[: len(body) // 2])

    def _answer_drip(self, body: bytes) -> None:
        self._begin(body)
        for offset in range(min(len(body), int(HOLD_S))):
            self.wfile.write(body[offset : offset + 1])
            time.sleep(1)

    def _answer_endless(self, body: bytes) -> None:
        self._begin(None)
        stop = time.monotonic() + HOLD_S
        while time.monotonic() < stop:
            self.wfile.write(bytes(1 << 16))
            time.sleep(0.01)

    def _answer_chunked(self, body: bytes) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "image/jpeg")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        for start in range(0, len(body), 1000):
            piece = body[start : start + 1000]
            self.wfile.write(b"%x\r\n%s\r\n" % (len(piece), piece))
        self.wfile.write(b"0\r\n\r\n")

    def _begin(self, body: bytes | None) -> None:
        """Send the headers of a body that will not arrive as promised, then closes."""
        self.send_response(200)
        self.send_header("Content-Type", "image/jpeg")
        self.send_header("Connection", "close")
        if body is not None:
            self.send_header("Content-Length", str(len(body)))
        self.end_headers()
