"""Fetching under guard, against loopback servers that misbehave (R08, R13, R14, R15)."""

from __future__ import annotations

import gzip
import socket
import time

import pytest

from download_helpers import PRIVATE, failure, fetched, fetcher, photo
from image_server import ImageServer, body, drip, endless, faulty_first, hang, moved
from shardwright.download.addresses import is_public, literal_address
from shardwright.download.fetch import split_url
from shardwright.download.fetch_error import FetchError

PICTURE = photo(1)


@pytest.fixture(autouse=True)
def no_proxy(monkeypatch):
    for name in ("http_proxy", "https_proxy", "all_proxy", "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)


def test_a_byte_at_a_time_for_ever_ends_at_the_deadline():
    """R08: urllib's timeout starts anew with each byte; the deadline here is for the whole URL."""
    with ImageServer({"*": drip(PICTURE)}) as server:
        began = time.monotonic()
        message = failure(server.url("/a.jpg"), url_deadline_s=1)
    assert message == "timeout: not finished after 1 s"
    assert time.monotonic() - began < 3


def test_dripped_headers_end_at_the_deadline_too():
    def page(handler):
        for piece in b"HTTP/1.1 200 OK\r\nX-Filler: " + b"a" * 100:
            handler.wfile.write(bytes([piece]))
            if handler.server.released.wait(0.2):
                return

    with ImageServer({"*": page}) as server:
        assert failure(server.url("/"), url_deadline_s=1).startswith("timeout: ")


def test_an_endless_stream_ends_at_the_byte_cap():
    """R08."""
    with ImageServer({"*": endless}) as server:
        assert failure(server.url("/"), max_bytes=200_000) == "too_large: more than 200000 bytes"


def test_an_announced_length_beyond_the_cap_is_refused_unread():
    with ImageServer({"*": body(b"x" * 5000)}) as server:
        assert failure(server.url("/"), max_bytes=4000) == "too_large: more than 4000 bytes"


def test_a_server_that_never_answers_is_asked_again_and_given_up():
    with ImageServer({"*": hang}) as server:
        assert failure(server.url("/"), timeout_s=0.2, retries=2) == "timeout: no byte in time"
        assert server.seen["/"] == 3


@pytest.mark.parametrize(
    ("fault", "faults"),
    [(body(b"", 503), 2), (body(b"", 429, Retry_After="0"), 1), (lambda handler: handler.reset(), 1)],
)
def test_a_passing_fault_is_outlasted(fault, faults):
    with ImageServer({"*": faulty_first(faults, fault, body(PICTURE))}) as server:
        assert fetcher().fetch(server.url("/")).read() == PICTURE


def test_retry_after_is_waited_for():
    with ImageServer({"*": faulty_first(1, body(b"", 429, Retry_After="1"), body(PICTURE))}) as server:
        began = time.monotonic()
        fetcher().fetch(server.url("/"))
        assert time.monotonic() - began >= 1


def test_a_retry_after_beyond_the_deadline_is_not_waited_for():
    with ImageServer({"*": body(b"", 429, Retry_After="3600")}) as server:
        assert failure(server.url("/")) == "http_429: 429 Too Many Requests"
        assert server.seen["/"] == 1


@pytest.mark.parametrize(
    ("page", "message", "requests"),
    [
        (body(b"", 404), "http_4xx: 404 Not Found", 1),
        (body(b"", 403), "http_4xx: 403 Forbidden", 1),
        (body(b"", 500), "http_5xx: 500 Internal Server Error", 2),
        (lambda handler: handler.reset(), "connect: Connection reset by peer", 2),
        (
            lambda handler: (handler.begin(1000), handler.wfile.write(b"x")),
            "incomplete: the body ends early",
            2,
        ),
        (
            lambda handler: handler.wfile.write(b"nonsense\r\n\r\n"),
            "connect: no valid HTTP answer (BadStatusLine)",
            2,
        ),
        (body(PICTURE, Content_Encoding="br"), "unsupported: Content-Encoding br", 1),
    ],
)
def test_failures_carry_their_class_and_only_passing_ones_are_tried_again(page, message, requests):
    with ImageServer({"*": page}) as server:
        assert failure(server.url("/"), retries=1) == message
        assert server.seen["/"] == requests


def test_a_closed_port_and_an_unknown_name_are_told_apart():
    """R13."""
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        port = unused.getsockname()[1]
        assert failure(f"http://127.0.0.1:{port}/").startswith("connect: ")
    assert failure("http://no-such-host.invalid/a.jpg").startswith("dns: ")


@pytest.mark.parametrize(
    "url",
    ["", "nonsense", "//host/a.jpg", "file:///etc/passwd", "ftp://host/a.jpg", "data:image/png;base64,AA==",
     "http://", "http:///a.jpg", "http://host:port/a.jpg", "http://[::1/a.jpg"],
)  # fmt: skip
def test_only_http_and_https_are_fetched(url):
    """R14: urllib alone reads file:// URLs, which copies local pictures into the set."""
    assert failure(url).startswith("bad_url: ")


@pytest.mark.parametrize(
    ("given", "path"),
    [
        ("http://host/a picture.jpg", "/a%20picture.jpg"),
        ("http://host/é/日.jpg", "/%C3%A9/%E6%97%A5.jpg"),
        ("http://host/a%20b.jpg?x=ü&y=1#part", "/a%20b.jpg?x=%C3%BC&y=1"),
        ("  http://host/a.jpg\n", "/a.jpg"),
        ("http://host", "/"),
    ],
)
def test_spaces_and_non_ascii_paths_are_percent_encoded(given, path):
    parts = split_url(given)
    assert parts.path + (f"?{parts.query}" if parts.query else "") == path


def test_a_path_with_spaces_reaches_the_server():
    with ImageServer({"/a%20b%C3%A9.jpg": body(PICTURE)}) as server:
        assert fetcher().fetch(server.url("/a bé.jpg")).read() == PICTURE


def test_a_unicode_host_becomes_its_ascii_form():
    assert split_url("http://bücher.example/a.jpg").hostname == "xn--bcher-kva.example"


# Redirects


def test_redirects_are_followed_up_to_the_limit():
    """R14."""
    chain = {f"/{n}": moved(f"/{n + 1}") for n in range(3)}
    with ImageServer({**chain, "/3": body(PICTURE)}) as server:
        assert fetcher(max_redirects=3).fetch(server.url("/0")).read() == PICTURE
        assert failure(server.url("/0"), max_redirects=2) == "redirect: more than 2"


@pytest.mark.parametrize(
    ("to", "message"),
    [
        ("/a.jpg", "redirect: a loop"),
        ("file:///etc/hostname", "redirect: scheme file, only http and https are fetched"),
        ("ftp://host/", "redirect: scheme ftp, only http and https are fetched"),
        ("", "redirect: HTTP 302 without a place to go"),
    ],
)
def test_redirects_that_lead_nowhere_usable(to, message):
    with ImageServer({"*": moved(to)}) as server:
        assert failure(server.url("/a.jpg")) == message


def with_dns(monkeypatch, **hosts: list[str]) -> list[str]:
    """Stand in for the world's DNS, which tests cannot reach: host (dots as `_`) → answers in turn."""
    asked: list[str] = []
    names = {name.replace("_", "."): answers for name, answers in hosts.items()}

    def getaddrinfo(host, port, *args, **kwargs):
        asked.append(host)
        answers = names.get(host, [host])
        address = answers[min(asked.count(host), len(answers)) - 1]
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (address, port or 0))]

    monkeypatch.setattr(socket, "getaddrinfo", getaddrinfo)
    return asked


def test_private_addresses_are_refused_however_they_are_written():
    with ImageServer({"*": body(PICTURE)}) as server:
        port = server.server_address[1]
        for host in ("127.0.0.1", "localhost", "127.1", "0x7f000001", "2130706433", "[::ffff:127.0.0.1]"):
            assert failure(f"http://{host}:{port}/", allow_private_addresses=False) == PRIVATE, host
        assert not server.requests


def test_a_redirect_to_a_private_address_is_refused(monkeypatch):
    """The first host passes as public (its name is answered with a public address in the guard)."""
    with ImageServer({"/public.jpg": moved("http://inner.example/secret.jpg")}) as server:
        with_dns(monkeypatch, public_example=["93.184.215.14"], inner_example=["10.0.0.7"])
        guarded = fetcher(allow_private_addresses=False)
        connect = socket.socket.connect
        port = server.server_address[1]

        def to_loopback(sock, address):
            assert address[0] == "93.184.215.14"  # nothing else may be connected to
            connect(sock, ("127.0.0.1", port))

        monkeypatch.setattr(socket.socket, "connect", to_loopback)
        with pytest.raises(FetchError, match="private_address"):
            guarded.fetch("http://public.example/public.jpg")
        assert [path for path, _ in server.requests] == ["/public.jpg"]


def test_a_name_is_resolved_once_so_it_cannot_change_its_address_after_the_check(monkeypatch):
    """DNS rebinding: a public address for the check, loopback for the connection."""
    asked = with_dns(monkeypatch, rebind_example=["93.184.215.14", "127.0.0.1"])
    connected = []
    monkeypatch.setattr(
        socket.socket, "connect", lambda sock, address: connected.append(address[0]) or sock.close()
    )
    failure("http://rebind.example/a.jpg", allow_private_addresses=False, retries=0)
    assert asked == ["rebind.example"] and connected == ["93.184.215.14"]


@pytest.mark.parametrize(
    ("address", "public"),
    [
        ("93.184.215.14", True), ("2606:2800:220:1::1", True), ("10.1.2.3", False), ("172.16.0.1", False),
        ("192.168.0.1", False), ("169.254.169.254", False), ("100.64.0.1", False), ("0.0.0.0", False),
        ("224.0.0.1", False), ("::1", False), ("fe80::1%eth0", False), ("fc00::1", False),
        ("::ffff:10.0.0.1", False), ("64:ff9b::7f00:1", False), ("2002:7f00:1::", False),
    ],
)  # fmt: skip
def test_which_addresses_are_public(address, public):
    assert is_public(address) is public


def test_names_are_not_literal_addresses():
    assert literal_address("images.example.com") is None and literal_address("a.localhost") == "127.0.0.1"


# Bodies


@pytest.mark.parametrize("encoding", ["gzip", "x-gzip", "GZIP"])
def test_a_gzip_body_nobody_asked_for_is_decoded(encoding):
    assert fetched(body(gzip.compress(PICTURE), Content_Encoding=encoding)) == PICTURE


def test_a_gzip_bomb_ends_at_the_byte_cap():
    bomb = gzip.compress(bytes(50_000_000))
    with ImageServer({"*": body(bomb, Content_Encoding="gzip")}) as server:
        message = failure(server.url("/"), max_bytes=100_000)
    assert message == "too_large: more than 100000 bytes"


def test_a_gzip_body_cut_short_or_not_gzip_at_all():
    with ImageServer({"*": body(gzip.compress(PICTURE)[:-20], Content_Encoding="gzip")}) as server:
        assert failure(server.url("/"), retries=0) == "incomplete: the compressed body ends early"
    with ImageServer({"*": body(PICTURE, Content_Encoding="gzip")}) as server:
        assert failure(server.url("/")).startswith("not_an_image: ")
