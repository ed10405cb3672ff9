"""Names become addresses once, are checked, and the checked address is the one connected to.

Public metadata may name anything: `localhost`, a router, a cloud's metadata service, or a host
name that its owner points there. Standard library only.
"""

from __future__ import annotations

import ipaddress
import socket
import threading
import time

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


class Resolver:
    """Resolves host names, remembers the answers, refuses private addresses.

    Args:
        allow_private: Let private, loopback and link-local addresses pass.
    """

    def __init__(self, allow_private: bool) -> None:
        self.allow_private = allow_private
        self._answers: dict[str, tuple[float, list[tuple], FetchError | None]] = {}
        self._lock = threading.Lock()
        self._asking: dict[str, threading.Lock] = {}

    def _ask(self, host: str) -> tuple[float, list[tuple], FetchError | None]:
        """Return how long the answer holds, the addresses, and the failure if there are none."""
        try:
            found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM, flags=socket.AI_ADDRCONFIG)
        except socket.gaierror as error:
            passing = error.errno == socket.EAI_AGAIN
            failure = FetchError("dns", error.strerror or "no address", final=not passing)
            return 0.0 if passing else _KEEP_UNKNOWN_S, [], failure
        except (UnicodeError, ValueError):
            return _KEEP_UNKNOWN_S, [], FetchError("dns", "not a host name", final=True)
        return _KEEP_S, [(family, address) for family, _, _, _, address in found], None

    def _known(self, host: str) -> tuple[list[tuple], FetchError | None] | None:
        with self._lock:
            until, addresses, failure = self._answers.get(host, (0.0, [], None))
            return (addresses, failure) if until > time.monotonic() else None

    def _lookup(self, host: str) -> tuple[list[tuple], FetchError | None]:
        known = self._known(host)
        if known:
            return known
        with self._lock:
            asking = self._asking.setdefault(host, threading.Lock())
        # One question for a name at a time: thousands of URLs share a few hosts.
        with asking:
            known = self._known(host)
            if known:
                return known
            keep_s, addresses, failure = self._ask(host)
            with self._lock:
                self._answers[host] = (time.monotonic() + keep_s, addresses, failure)
            return addresses, failure

    def resolve(self, host: str) -> list[tuple]:
        """Return up to three `(family, address)` that may be connected to.

        Raises:
            FetchError: dns if the name has no address, private_address if it has no public one.
        """
        addresses, failure = self._lookup(host)
        if failure:
            raise FetchError(failure.kind, str(failure).partition(": ")[2], final=failure.final)
        allowed = [pair for pair in addresses if self.allow_private or is_public(pair[1][0])]
        if not allowed:
            raise FetchError("private_address", "the host is at a private, loopback or link-local address")
        return allowed[:_MAX_ADDRESSES]
