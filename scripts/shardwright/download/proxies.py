"""Which proxies config and environment name, and whether they can be spoken to. Standard library only."""

from __future__ import annotations

import os
import urllib.request
from urllib.parse import urlsplit

from shardwright.errors import BuildError

_SCHEMES = ("http", "https", "all")


def without_login(proxy: str) -> str:
    """Return a proxy's address without user name and password, for records."""
    scheme, mark, rest = proxy.rpartition("://")
    return f"{scheme}{mark}{rest.rpartition('@')[2]}"


def _checked(proxy: str, source: str) -> str:
    """Return the proxy with its scheme, or refuse one that is no plain HTTP proxy."""
    proxy = proxy if "://" in proxy else f"http://{proxy}"
    try:
        parts = urlsplit(proxy)
        usable = parts.scheme.lower() == "http" and bool(parts.hostname) and parts.port != 0
    except ValueError:
        usable = False
    if not usable:
        raise BuildError(
            source,
            found=without_login(proxy),
            expected="a plain HTTP proxy, http://[user:password@]host:port (for https URLs too: they go "
            "through it by tunnel); https and socks proxies are not spoken",
            next_step="name such a proxy, or unset the variable; download.proxy goes before the environment",
        )
    return proxy


def _variable(scheme: str) -> str:
    name = f"{scheme}_proxy"
    return name if name in os.environ else name.upper()


def find_proxies(configured: str) -> dict[str, str]:
    """Return scheme → proxy (`no` → the hosts without one), as urllib does.

    Args:
        configured: Config download.proxy; empty for the environment's.

    Raises:
        BuildError: A proxy that would be used is not a plain HTTP proxy.
    """
    if configured:
        proxy = _checked(configured, "config download.proxy")
        return {"http": proxy, "https": proxy}
    proxies = urllib.request.getproxies()
    if proxies.get("no") == "*":
        return {"no": "*"}
    if "http" in proxies and "https" in proxies:
        proxies.pop("all", None)  # serves the other schemes alone
    return {
        scheme: _checked(proxy, f"environment variable {_variable(scheme)}") if scheme in _SCHEMES else proxy
        for scheme, proxy in proxies.items()
    }
