"""Names become addresses once, are checked, and the checked address is the one connected to.

Public metadata may name anything: `localhost`, a router, a cloud's metadata service, or a host
name that its owner points there. Standard library only.
"""

from __future__ import annotations

import ipaddress
import socket
import threading
import time

from shardwright.download.deadline import Deadline
from shardwright.download.fetch_error import FetchError

_NAT64 = ipaddress.ip_network("64:ff9b::/96")
_KEEP_S = 300.0
_KEEP_UNKNOWN_S = 60.0
_MAX_ADDRESSES = 3


def is_public(address: str) -> bool:
    """Tell whether an IP address is one of the public internet, also when wrapped in IPv6."""
    ip = ipaddress.ip_address(address.partition("%")[0])
    if isinstance(ip, ipaddress.IPv6Address):
        inner = ip.ipv4_mapped or ip.sixtofour or (ip.teredo and ip.teredo[1])
        if ip in _NAT64:
            inner = ipaddress.ip_address(int(ip) & 0xFFFFFFFF)
        if inner:
            return is_public(str(inner))
    return ip.is_global and not ip.is_multicast


def literal_address(host: str) -> str | None:
    """Return the address that `host` spells out (`127.1` and `0x7f000001` too), or None for a name."""
    try:
        return str(ipaddress.ip_address(host.partition("%")[0]))
    except ValueError:
        pass
    try:
        return socket.inet_ntoa(socket.inet_aton(host))
    except OSError:
        return "127.0.0.1" if host.lower().rstrip(".").rpartition(".")[2] == "localhost" else None


class _Question:
    """One name, asked of the system in a thread of its own, since nothing can cut that call short."""

    def __init__(self, host: str) -> None:
        self.host = host
        self.addresses: list[tuple] = []
        self.failure: FetchError | None = None
        self.answered = threading.Event()
        self._keep_until = 0.0
        threading.Thread(target=self._ask, daemon=True).start()

    def holds(self) -> bool:
        """Tell whether its answer is to come, or is not too old."""
        return not self.answered.is_set() or time.monotonic() < self._keep_until

    def _ask(self) -> None:
        keep_s = _KEEP_S
        try:
            found = socket.getaddrinfo(self.host, None, type=socket.SOCK_STREAM, flags=socket.AI_ADDRCONFIG)
            self.addresses = [(family, address) for family, _, _, _, address in found]
        except socket.gaierror as error:
            passing = error.errno == socket.EAI_AGAIN
            keep_s = 0.0 if passing else _KEEP_UNKNOWN_S
            self.failure = FetchError("dns", error.strerror or "no address", final=not passing)
        except (OSError, UnicodeError, ValueError):
            keep_s, self.failure = _KEEP_UNKNOWN_S, FetchError("dns", "not a host name", final=True)
        finally:
            self._keep_until = time.monotonic() + keep_s
            self.answered.set()


class Resolver:
    """Resolves host names, remembers the answers, refuses private addresses.

    Args:
        allow_private: Let private, loopback and link-local addresses pass.
    """

    def __init__(self, allow_private: bool) -> None:
        self.allow_private = allow_private
        self._questions: dict[str, _Question] = {}
        self._lock = threading.Lock()

    def _lookup(self, host: str, deadline: Deadline) -> _Question:
        """Return the answered question; one at a time for a name, since thousands of URLs share a few."""
        with self._lock:
            question = self._questions.get(host)
            if question is None or not question.holds():
                question = self._questions[host] = _Question(host)
        if not question.answered.wait(deadline.left()):
            raise FetchError("dns", "no answer within the deadline of the URL", final=True)
        return question

    def resolve(self, host: str, deadline: Deadline) -> list[tuple]:
        """Return up to three `(family, address)` that may be connected to.

        Raises:
            FetchError: dns if the name has no address (in time), private_address if it has no public one.
        """
        question = self._lookup(host, deadline)
        failure = question.failure
        if failure:
            raise FetchError(failure.kind, str(failure).partition(": ")[2], final=failure.final)
        allowed = [pair for pair in question.addresses if self.allow_private or is_public(pair[1][0])]
        if not allowed:
            raise FetchError("private_address", "the host is at a private, loopback or link-local address")
        return allowed[:_MAX_ADDRESSES]
