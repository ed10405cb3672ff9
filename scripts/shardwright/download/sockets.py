"""Sockets on which nothing outlasts a deadline, directly or through a proxy. Standard library only."""

from __future__ import annotations

import base64
import io
import socket
import ssl
from http.client import HTTPException, HTTPResponse
from urllib.parse import SplitResult, unquote

from shardwright.download.addresses import Resolver
from shardwright.download.deadline import Deadline
from shardwright.download.fetch_error import FetchError

_BUFFER_BYTES = 1 << 16


class TimedSocket:
    """What http.client needs of a socket; each wait is bounded by `timeout_s` and by the deadline."""

    def __init__(self, raw: socket.socket, deadline: Deadline, timeout_s: float) -> None:
        self.raw, self.deadline, self.timeout_s = raw, deadline, timeout_s

    def arm(self) -> None:
        """Bound the next wait on the raw socket."""
        self.raw.settimeout(min(self.timeout_s, self.deadline.left()))

    def sendall(self, data: bytes) -> None:
        """Send all of `data`."""
        self.arm()
        self.raw.sendall(data)

    def makefile(self, mode: str = "rb", *_: object) -> io.BufferedReader:
        """Return a reader; closing it leaves the socket open."""
        return io.BufferedReader(_TimedReader(self), _BUFFER_BYTES)

    def close(self) -> None:
        """Close the raw socket."""
        self.raw.close()


class _TimedReader(io.RawIOBase):
    def __init__(self, timed: TimedSocket) -> None:
        self.timed = timed

    def readable(self) -> bool:
        return True

    def readinto(self, buffer) -> int:
        self.timed.arm()
        return self.timed.raw.recv_into(buffer)


def _connect(addresses: list[tuple], port: int, deadline: Deadline, timeout_s: float) -> TimedSocket:
    problem: OSError = OSError("no address")
    for family, address in addresses:
        raw = socket.socket(family, socket.SOCK_STREAM)
        timed = TimedSocket(raw, deadline, timeout_s)
        try:
            timed.arm()
            raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            raw.connect((address[0], port, *address[2:]))
            return timed
        except OSError as error:
            problem = error
            raw.close()
        except BaseException:
            raw.close()
            raise
    raise problem


def _tunnel(timed: TimedSocket, host: str, port: int, authorization: str) -> None:
    target = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    timed.sendall(f"CONNECT {target} HTTP/1.1\r\nHost: {target}\r\n{authorization}\r\n".encode("ascii"))
    response = HTTPResponse(timed, method="CONNECT")
    try:
        response.begin()
    except HTTPException as error:
        raise FetchError("connect", f"the proxy gave no answer ({type(error).__name__})") from None
    finally:
        response.close()
    if response.status == 407:
        raise FetchError("http_4xx", "407 from the proxy: it asks for a user name and password")
    if response.status != 200:
        raise FetchError("connect", f"the proxy refused the tunnel ({response.status})")


def proxy_authorization(proxy: SplitResult) -> str:
    """Return the header line that logs in at `proxy`, or nothing."""
    if proxy.username is None:
        return ""
    login = f"{unquote(proxy.username)}:{unquote(proxy.password or '')}".encode()
    return f"Proxy-Authorization: Basic {base64.b64encode(login).decode()}\r\n"


class Connector:
    """Opens sockets to checked addresses.

    Args:
        resolver: Checks the addresses of hosts.
        timeout_s: Longest single wait.
        verify_tls: Check certificates.
    """

    def __init__(self, resolver: Resolver, timeout_s: float, verify_tls: bool) -> None:
        self.resolver = resolver
        self.proxy_resolver = Resolver(allow_private=True)
        self.timeout_s = timeout_s
        self.tls = ssl.create_default_context()
        if not verify_tls:
            self.tls.check_hostname = False
            self.tls.verify_mode = ssl.CERT_NONE

    def open(
        self, scheme: str, host: str, port: int, proxy: SplitResult | None, deadline: Deadline
    ) -> TimedSocket:
        """Return a connected socket, with TLS done for https.

        Raises:
            FetchError: dns, private_address, connect, tls or timeout.
            OSError: As the socket module raises it.
        """
        if proxy is None:
            timed = _connect(self.resolver.resolve(host, deadline), port, deadline, self.timeout_s)
        else:
            try:
                addresses = self.proxy_resolver.resolve(proxy.hostname or "", deadline)
                timed = _connect(addresses, proxy.port or 80, deadline, self.timeout_s)
            except (FetchError, OSError) as error:
                raise FetchError("connect", f"the proxy is not reachable ({error})") from None
        try:
            if scheme == "https":
                if proxy is not None:
                    _tunnel(timed, host, port, proxy_authorization(proxy))
                timed.arm()
                timed.raw = self.tls.wrap_socket(timed.raw, server_hostname=host)
        except BaseException:
            timed.close()
            raise
        return timed
