"""Opt-outs, user agent, proxies and certificates (R13, R14, R15)."""

from __future__ import annotations

import json
import ssl
import subprocess

import pytest

from download_helpers import PRIVATE, download, failure, fetched, fetcher, photo, stats
from image_server import ImageServer, body

PICTURE = photo(1)


@pytest.fixture(autouse=True)
def no_proxy(monkeypatch):
    for name in ("http_proxy", "https_proxy", "all_proxy", "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)


@pytest.mark.parametrize(
    ("tag", "refused"),
    [
        ("noai", True), ("NoImageAI, nofollow", True), ("all", False), ("noarchive", False), ("none", True),
        ("googlebot: noindex", False), ("firefox: noai", True), ("max-image-preview: large, noai", True),
        ("unavailable_after: 25 Jun 2030 15:00:00 PST", False),
        ("unavailable_after: 25 Jun 2030 15:00:00 PST, noai", True),
    ],
)  # fmt: skip
def test_opt_outs_are_honoured(tag, refused):
    with ImageServer({"*": body(PICTURE, X_Robots_Tag=tag)}) as server:
        if refused:
            assert failure(server.url("/")) == "disallowed: X-Robots-Tag"
            assert server.seen["/"] == 1
        else:
            assert fetcher().fetch(server.url("/")).read() == PICTURE
        assert fetcher(respect_robots_tag=False).fetch(server.url("/")).read() == PICTURE


def test_the_user_agent_is_the_configured_one():
    """R15: hosts answer 403 to agents they do not like."""

    def page(handler):
        handler.send(200 if handler.headers["User-Agent"] == "welcome/1.0" else 403, PICTURE)

    assert fetched(page, user_agent="welcome/1.0") == PICTURE
    with ImageServer({"*": page}) as server:
        assert failure(server.url("/")) == "http_4xx: 403 Forbidden"


def test_the_configured_proxy_gets_the_whole_url_and_its_login():
    with ImageServer({"*": body(PICTURE)}) as proxy:
        address = f"http://me:secret@127.0.0.1:{proxy.server_address[1]}"
        assert fetcher(proxy=address).fetch("http://far.example/a.jpg").read() == PICTURE
        path, headers = proxy.requests[0]
    assert path == "http://far.example/a.jpg"
    assert headers["Host"] == "far.example" and headers["Proxy-Authorization"] == "Basic bWU6c2VjcmV0"


def test_user_agent_and_proxy_are_on_record_without_the_password(tmp_path):
    """R15: what the servers saw of a shard is in its stats."""
    with ImageServer({"*": body(PICTURE)}) as proxy:
        address = f"127.0.0.1:{proxy.server_address[1]}"
        url, given = "http://far.example/a.jpg", f"http://me:secret@{address}"
        done = download(tmp_path, [url], proxy=given, user_agent="welcome/1.0")
    found = stats(tmp_path)["provenance"]
    assert found["proxies"] == {"http": f"http://{address}", "https": f"http://{address}"}
    assert found["user_agent"] == "welcome/1.0" and "secret" not in json.dumps(stats(tmp_path)) + done.stdout


def test_the_proxy_of_the_environment_is_used(monkeypatch):
    with ImageServer({"*": body(PICTURE)}) as proxy:
        monkeypatch.setenv("http_proxy", proxy.url(""))
        assert fetcher().fetch("http://far.example/a.jpg").read() == PICTURE


def test_a_proxy_does_not_open_private_addresses():
    with ImageServer({"*": body(PICTURE)}) as proxy:
        message = failure("http://127.0.0.1/a.jpg", proxy=proxy.url(""), allow_private_addresses=False)
        assert message == PRIVATE and not proxy.requests


def test_a_dead_proxy_is_named():
    assert failure("http://far.example/", proxy="http://127.0.0.1:9").startswith("connect: the proxy is not")


@pytest.fixture(scope="module")
def self_signed(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tls")
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes",
         "-keyout", folder / "key.pem", "-out", folder / "cert.pem", "-days", "2", "-subj", "/CN=127.0.0.1",
         "-addext", "subjectAltName=IP:127.0.0.1,DNS:far.example"],
        check=True, capture_output=True,
    )  # fmt: skip
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(folder / "cert.pem", folder / "key.pem")
    return context, folder / "cert.pem"


def test_a_bad_certificate_is_refused_and_counted_apart(self_signed, monkeypatch):
    """R14: checks stay on; the opt-out is explicit; a known CA passes."""
    context, certificate = self_signed
    with ImageServer({"*": body(PICTURE)}, tls=context) as server:
        assert failure(server.url("/")).startswith("tls: certificate refused (self")
        assert fetcher(verify_tls=False).fetch(server.url("/")).read() == PICTURE
        monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
        assert fetcher().fetch(server.url("/")).read() == PICTURE


def test_https_goes_through_a_proxy_by_tunnel(self_signed, monkeypatch):
    context, certificate = self_signed
    monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
    with ImageServer({"/a.jpg": body(PICTURE)}, tls=context) as server, ImageServer() as proxy:
        assert failure("https://far.example/a.jpg", proxy=proxy.url("")) == (
            "connect: the proxy refused the tunnel (403)"
        )
        proxy.tunnel_to = server.server_address
        assert fetcher(proxy=proxy.url("")).fetch("https://far.example/a.jpg").read() == PICTURE
        assert proxy.requests[-1][0] == "CONNECT far.example:443"
        assert [path for path, _ in server.requests] == ["/a.jpg"]
