"""Fetch a URL under guard: deadlines, byte caps, public addresses, bounded redirects, opt-outs.

`Fetcher` has the one method that `urllib.request.install_opener` asks for, so img2dataset's own
`urlopen` runs through it unpatched. Standard library only; runs under Python 3.10 too.
"""

from __future__ import annotations

import http.client
import io
import socket
import ssl
import time
import urllib.request
import zlib
from collections.abc import Iterator
from email.message import Message
from urllib.parse import SplitResult, quote, urljoin, urlsplit, urlunsplit

from shardwright.download.addresses import Resolver, is_public, literal_address
from shardwright.download.deadline import Deadline
from shardwright.download.fetch_error import FetchError
from shardwright.download.proxies import find_proxies
from shardwright.download.settings import Content, Fetching
from shardwright.download.sockets import Connector, TimedSocket, proxy_authorization

_REDIRECTS = (301, 302, 303, 307, 308)
_OPT_OUTS = frozenset({"noai", "noimageai", "noindex", "noimageindex", "none"})
_PIECE_BYTES = 1 << 16
_FIRST_PAUSE_S = 0.25
_KEEP_IN_PATH = "/%:@!$&'()*+,;=~-._"
_KEEP_IN_QUERY = _KEEP_IN_PATH + "?"


class Answer(io.BytesIO):
    """A whole body, with the headers it came with."""

    def __init__(self, body: bytes, headers: Message) -> None:
        super().__init__(body)
        self.headers = headers


def split_url(url: str, kind: str = "bad_url") -> SplitResult:
    """Return a usable http or https URL, percent-encoded where its author forgot to.

    Raises:
        FetchError: Of class `kind` when there is no such URL in `url`.
    """
    try:
        parts = urlsplit(url.strip())
        port = parts.port
    except ValueError as error:
        raise FetchError(kind, str(error).partition(":")[0]) from None
    if parts.scheme.lower() not in ("http", "https"):
        raise FetchError(
            kind, f"scheme {parts.scheme[:16].lower() or 'missing'}, only http and https are fetched"
        )
    if not parts.hostname:
        raise FetchError(kind, "no host")
    host = parts.hostname
    if not host.isascii():
        try:
            host = host.encode("idna").decode("ascii")
        except UnicodeError:
            raise FetchError("dns", "not a host name") from None
    place = f"[{host}]" if ":" in host else host
    return SplitResult(
        parts.scheme.lower(),
        place if port is None else f"{place}:{port}",
        quote(parts.path or "/", safe=_KEEP_IN_PATH),
        quote(parts.query, safe=_KEEP_IN_QUERY),
        "",
    )


def opted_out(headers: Message, user_agent: str) -> bool:
    """Tell whether an X-Robots-Tag asks that the picture is not used.

    A directive for a named agent counts when our user agent contains that name.
    """
    for line in headers.get_all("X-Robots-Tag", []):
        agent = ""
        for directive in line.split(","):
            name, colon, rest = directive.partition(":")
            if colon and name.strip().lower() not in (
                "max-snippet",
                "max-image-preview",
                "max-video-preview",
                "unavailable_after",
            ):
                agent, directive = name.strip().lower(), rest
            if directive.strip().lower() in _OPT_OUTS and agent in user_agent.lower():
                return True
    return False


def _inflate(pieces: Iterator[bytes], encoding: str, max_bytes: int) -> bytes:
    """Decode a body that came compressed, within the byte cap."""
    if encoding not in ("", "identity", "gzip", "x-gzip", "deflate"):
        raise FetchError("unsupported", f"Content-Encoding {encoding[:16]}")
    inflater = zlib.decompressobj(47) if encoding not in ("", "identity") else None
    body = bytearray()
    try:
        for piece in pieces:
            if inflater is None:
                body += piece
            else:
                body += inflater.decompress(piece, max_bytes + 1 - len(body))
            if len(body) > max_bytes or (inflater and inflater.unconsumed_tail):
                raise FetchError("too_large", f"more than {max_bytes} bytes")
        if inflater is not None and not inflater.eof:
            raise FetchError("incomplete", "the compressed body ends early")
    except zlib.error:
        raise FetchError("not_an_image", f"Content-Encoding {encoding}, but the body is not") from None
    return bytes(body)


def _pieces(response: http.client.HTTPResponse, announced: int | None) -> Iterator[bytes]:
    received = 0
    while True:
        try:
            piece = response.read(_PIECE_BYTES)
        except http.client.IncompleteRead:
            raise FetchError("incomplete", "the body ends early") from None
        if not piece:
            break
        received += len(piece)
        yield piece
    if announced is not None and received < announced:
        raise FetchError("incomplete", "the body ends early")


def _retry_after(headers: Message) -> float:
    value = headers.get("Retry-After", "").strip()
    return float(value) if value.isdigit() else 0.0


def _explained(error: Exception) -> FetchError:
    """Give an exception of the network libraries its class."""
    if isinstance(error, (socket.timeout, TimeoutError)):
        return FetchError("timeout", "no byte in time")
    if isinstance(error, ssl.SSLCertVerificationError):
        return FetchError("tls", f"certificate refused ({error.verify_message})")
    if isinstance(error, ssl.SSLError):
        return FetchError("tls", error.reason or "handshake failed")
    if isinstance(error, http.client.HTTPException):
        return FetchError("connect", f"no valid HTTP answer ({type(error).__name__})")
    if isinstance(error, OSError):
        return FetchError("connect", error.strerror or type(error).__name__)
    return FetchError("bad_url", type(error).__name__)


class Fetcher:
    """Fetches pictures for img2dataset.

    Args:
        content: Byte cap, address guard, opt-outs.
        fetching: Deadlines, redirects, retries, proxy, user agent.

    Raises:
        BuildError: A proxy of a kind that is not spoken here.
    """

    def __init__(self, content: Content, fetching: Fetching) -> None:
        self.content, self.fetching = content, fetching
        resolver = Resolver(content.allow_private_addresses)
        self.connector = Connector(resolver, fetching.timeout_s, fetching.verify_tls)
        self.proxies = find_proxies(fetching.proxy)

    def open(self, request: urllib.request.Request, data: object = None, timeout: object = None) -> Answer:
        """Fetch the URL of `request`; raises FetchError."""
        return self.fetch(request.full_url)

    def fetch(self, url: str) -> Answer:
        """Fetch `url`, again if the failure may pass, all within one deadline.

        Raises:
            FetchError: The last failure.
        """
        deadline = Deadline(self.fetching.url_deadline_s)
        attempt = 0
        while True:
            try:
                return self._follow(url, deadline)
            except FetchError as error:
                failure = error
            except (OSError, http.client.HTTPException, ValueError) as error:
                failure = _explained(error) if deadline.remaining() > 0 else deadline.passed()
            pause = max(_FIRST_PAUSE_S * 2**attempt, failure.retry_after_s)
            attempt += 1
            if failure.final or attempt > self.fetching.retries or pause >= deadline.remaining():
                raise failure
            time.sleep(pause)

    def reach(self, url: str, deadline: Deadline) -> None:
        """Connect as for `url` (name, proxy, TLS) and leave again; nothing is asked for.

        Raises:
            FetchError: There is no way there.
        """
        try:
            self._connect(split_url(url), deadline)[0].close()
        except (OSError, http.client.HTTPException, ValueError) as error:
            raise _explained(error) if deadline.remaining() > 0 else deadline.passed() from None

    def _follow(self, url: str, deadline: Deadline) -> Answer:
        target = split_url(url)
        seen = set()
        while True:
            place = urlunsplit(target)
            if place in seen:
                raise FetchError("redirect", "a loop")
            if len(seen) > self.fetching.max_redirects:
                raise FetchError("redirect", f"more than {self.fetching.max_redirects}")
            seen.add(place)
            answer = self._get(target, deadline)
            if isinstance(answer, Answer):
                return answer
            target = split_url(urljoin(place, answer), "redirect")

    def _proxy_for(self, target: SplitResult) -> SplitResult | None:
        proxy = self.proxies.get(target.scheme) or self.proxies.get("all")
        host = target.hostname or ""
        if not proxy or (not self.fetching.proxy and urllib.request.proxy_bypass(host)):
            return None
        # The proxy resolves names, so only addresses that the URL spells out can be checked here.
        address = literal_address(host)
        if address and not self.content.allow_private_addresses and not is_public(address):
            raise FetchError("private_address", "the host is at a private, loopback or link-local address")
        return urlsplit(proxy)

    def _connect(self, target: SplitResult, deadline: Deadline) -> tuple[TimedSocket, SplitResult | None]:
        """Return a socket to the host or its proxy, and the proxy."""
        proxy = self._proxy_for(target)
        port = target.port or (443 if target.scheme == "https" else 80)
        return self.connector.open(target.scheme, target.hostname or "", port, proxy, deadline), proxy

    def _get(self, target: SplitResult, deadline: Deadline) -> Answer | str:
        """Return the body, or the place that the server redirects to."""
        timed, proxy = self._connect(target, deadline)
        try:
            timed.sendall(self._request(target, proxy))
            response = http.client.HTTPResponse(timed, method="GET")
            try:
                response.begin()
                return self._read(response)
            finally:
                response.close()
        finally:
            timed.close()

    def _request(self, target: SplitResult, proxy: SplitResult | None) -> bytes:
        path = target.path + (f"?{target.query}" if target.query else "")
        login = ""
        if proxy is not None and target.scheme == "http":
            path, login = f"http://{target.netloc}{path}", proxy_authorization(proxy)
        agent = self.fetching.user_agent
        return (
            f"GET {path} HTTP/1.1\r\nHost: {target.netloc}\r\nUser-Agent: {agent}\r\n"
            f"Accept-Encoding: identity\r\n{login}Connection: close\r\n\r\n"
        ).encode("latin-1")

    def _read(self, response: http.client.HTTPResponse) -> Answer | str:
        status, headers = response.status, response.headers
        if status in _REDIRECTS:
            location = headers.get("Location")
            if not location:
                raise FetchError("redirect", f"HTTP {status} without a place to go")
            return location.encode("latin-1", "replace").decode("utf-8", "replace")
        if not 200 <= status < 300:
            raise self._refused(status, response)
        if self.content.respect_robots_tag and opted_out(headers, self.fetching.user_agent):
            raise FetchError("disallowed", "X-Robots-Tag")
        max_bytes = self.content.max_bytes
        announced = response.length
        if announced is not None and announced > max_bytes:
            raise FetchError("too_large", f"more than {max_bytes} bytes")
        encoding = headers.get("Content-Encoding", "").strip().lower()
        return Answer(_inflate(_pieces(response, announced), encoding, max_bytes), headers)

    def _refused(self, status: int, response: http.client.HTTPResponse) -> FetchError:
        reason = http.client.responses.get(status, "")
        kind = "http_5xx" if status >= 500 else "http_429" if status == 429 else "http_4xx"
        if status == 408:
            return FetchError("timeout", "the server gave up waiting (408)")
        return FetchError(kind, f"{status} {reason}".strip(), _retry_after(response.headers))
