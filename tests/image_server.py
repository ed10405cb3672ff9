"""A loopback web server for download tests: each path answers as its function says."""

from __future__ import annotations

import collections
import http.server
import socket
import ssl
import struct
import threading
from collections.abc import Callable

Page = Callable[["Handler"], None]


class Handler(http.server.BaseHTTPRequestHandler):
    """Looks its path up in the server's pages; `*` answers the rest."""

    protocol_version = "HTTP/1.1"
    server: ImageServer

    def log_message(self, *args: object) -> None:
        """Stay silent."""

    def do_GET(self) -> None:
        path = self.path
        self.server.requests.append((path, dict(self.headers)))
        with self.server.lock:
            self.server.seen[path] += 1
        page = self.server.pages.get(path) or self.server.pages.get("*")
        if page is None:
            self.send(404, b"")
        else:
            page(self)

    def do_CONNECT(self) -> None:
        """Answer as a proxy: tunnel to the server's `tunnel_to` address, whatever was asked for."""
        self.server.requests.append((f"CONNECT {self.path}", dict(self.headers)))
        if self.server.tunnel_to is None:
            return self.send(403, b"")
        self.wfile.write(b"HTTP/1.1 200 OK\r\n\r\n")
        with socket.create_connection(self.server.tunnel_to) as far:
            back = threading.Thread(target=_pour, args=(far, self.connection), daemon=True)
            back.start()
            _pour(self.connection, far)
            back.join(5)
        self.close_connection = True
        return None

    def send(self, status: int, body: bytes, **headers: str) -> None:
        """Send a whole answer; header names are given with `_` for `-`."""
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()
        self.wfile.write(body)

    def begin(self, length: int | None = None) -> None:
        """Send the headers of an answer whose body follows piece by piece."""
        self.send_response(200)
        self.send_header("Connection", "close")
        if length is not None:
            self.send_header("Content-Length", str(length))
        self.end_headers()
        self.close_connection = True

    def reset(self) -> None:
        """Cut the connection with a RST."""
        self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.rfile.close()
        self.connection.close()
        self.close_connection = True


def _pour(source: socket.socket, sink: socket.socket) -> None:
    try:
        while data := source.recv(1 << 16):
            sink.sendall(data)
        sink.shutdown(socket.SHUT_WR)
    except OSError:
        pass  # either end may leave first


class ImageServer(http.server.ThreadingHTTPServer):
    """Serve `pages` on a free loopback port inside a `with` block.

    Args:
        pages: Path → function that answers; `*` for every other path.
        tls: Speak TLS with this context.
    """

    daemon_threads = True
    request_queue_size = 512

    def __init__(self, pages: dict[str, Page] | None = None, tls: ssl.SSLContext | None = None) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.pages = pages or {}
        self.requests: list[tuple[str, dict[str, str]]] = []
        self.seen: collections.Counter[str] = collections.Counter()
        self.lock = threading.Lock()
        self.released = threading.Event()
        self.tunnel_to: tuple[str, int] | None = None
        self.scheme = "https" if tls else "http"
        if tls:
            self.socket = tls.wrap_socket(self.socket, server_side=True)

    def url(self, path: str) -> str:
        """Return the address of a path."""
        return f"{self.scheme}://127.0.0.1:{self.server_address[1]}{path}"

    def handle_error(self, request: object, client_address: object) -> None:
        """Clients that leave early are what the tests are about."""

    def __enter__(self) -> ImageServer:
        threading.Thread(target=self.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.released.set()
        self.shutdown()
        self.server_close()


def body(data: bytes, status: int = 200, **headers: str) -> Page:
    """A page that always sends the same answer."""
    return lambda handler: handler.send(status, data, **headers)


def moved(to: str, status: int = 302) -> Page:
    """A redirect."""
    return lambda handler: handler.send(status, b"", Location=to)


def faulty_first(faults: int, fault: Page, then: Page) -> Page:
    """The first requests of a path get `fault`, later ones `then`."""

    def page(handler: Handler) -> None:
        (fault if handler.server.seen[handler.path] <= faults else then)(handler)

    return page


def hang(handler: Handler) -> None:
    """Say nothing until the test ends."""
    handler.server.released.wait(60)
    handler.close_connection = True


def drip(data: bytes, every_s: float = 0.2) -> Page:
    """Announce the whole body, then send a byte at a time."""

    def page(handler: Handler) -> None:
        handler.begin(len(data))
        for offset in range(len(data)):
            handler.wfile.write(data[offset : offset + 1])
            if handler.server.released.wait(every_s):
                return

    return page


def endless(handler: Handler) -> None:
    """A body without end."""
    handler.begin()
    while not handler.server.released.is_set():
        handler.wfile.write(bytes(1 << 16))
