"""Before a shard's URLs: is there a way to the web, is the proxy one that is spoken (R13)."""

from __future__ import annotations

import json
import socket
import threading
import time

import pytest

from download_helpers import download, fetcher
from image_server import ImageServer, body
from shardwright.download.fetch_error import FetchError
from shardwright.download.network import check_network, sample_hosts
from shardwright.download.proxies import find_proxies
from shardwright.errors import BuildError

VARIABLES = ("http_proxy", "https_proxy", "all_proxy", "no_proxy")


@pytest.fixture(autouse=True)
def no_proxy(monkeypatch):
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)


def test_without_a_resolver_the_shard_fails_in_seconds_and_says_why(tmp_path):
    """R13: no worker starts, no URL is tried; the evidence makes the next attempt wait."""
    began = time.monotonic()
    done = download(tmp_path, [f"http://host-{n}.invalid/a.jpg" for n in range(80)], check=False)
    assert done.returncode == 1 and time.monotonic() - began < 30
    assert "the network of this node: found none of 27 hosts reached (27 dns; most often dns: " in done.stdout
    assert "the resolver may be overloaded" in done.stdout and "attempt 1" not in done.stdout
    evidence = json.loads((tmp_path / "logs/download_shard/00000000.attempts/001.json").read_text())
    assert evidence["reason"] == "no way to the web" and "27 dns" in evidence["found"]
    assert not (tmp_path / "raw").exists() or not any((tmp_path / "raw").iterdir())


def test_a_proxy_that_does_not_answer_is_found_before_any_url(tmp_path):
    """R13, R15."""
    done = download(
        tmp_path,
        [f"http://host-{n}.example/a.jpg" for n in range(5)],
        check=False,
        proxy="http://127.0.0.1:9",
    )
    assert done.returncode == 1 and "attempt 1" not in done.stdout
    assert "none of 5 hosts reached (5 connect; most often connect: the proxy is not reachable" in done.stdout


def test_one_host_that_is_reached_is_enough_and_is_asked_for_nothing():
    with ImageServer({"*": body(b"")}) as server:
        urls = [f"http://host-{n}.invalid/a.jpg" for n in range(20)] + ["nonsense", server.url("/a.jpg")]
        check_network(fetcher(), urls)
        assert not server.requests
    with pytest.raises(BuildError, match="none of 21 hosts reached"):
        check_network(fetcher(), urls)


def test_a_shard_without_any_usable_url_is_no_outage_of_the_network():
    check_network(fetcher(), ["nonsense", "ftp://host/a.jpg"])
    check_network(fetcher(), [])


def test_hosts_are_sampled_from_all_over_the_shard():
    urls = [f"http://host-{n // 100}.example/{n}.jpg" for n in range(10_000)]
    hosts = [url.split("/")[2] for url in sample_hosts(urls)]
    assert 20 <= len(hosts) == len(set(hosts)) <= 32
    assert hosts[0] == "host-0.example" and int(hosts[-1][5:7]) > 90
    assert len(sample_hosts(["http://one.example/a.jpg"] * 10_000)) == 1


@pytest.mark.parametrize(
    "proxy", ["socks5://me:secret@10.0.0.1:1080", "https://p:3128", "http://", "http://p:x"]
)
@pytest.mark.parametrize("variable", ["http_proxy", "HTTPS_PROXY", "all_proxy", ""])
def test_a_proxy_that_is_not_spoken_is_refused_by_its_name(monkeypatch, variable, proxy):
    """An https or socks proxy fails every URL as `connect`, and shows its password on the way."""
    if variable:
        monkeypatch.setenv(variable, proxy)
    with pytest.raises(BuildError) as caught:
        fetcher(proxy="" if variable else proxy)
    assert caught.value.subject == (
        f"environment variable {variable}" if variable else "config download.proxy"
    )
    assert "plain HTTP proxy" in caught.value.expected and "secret" not in str(caught.value)


def test_proxies_that_are_not_used_are_not_refused(monkeypatch):
    monkeypatch.setenv("all_proxy", "socks5://p:1080")
    monkeypatch.setenv("http_proxy", "p:3128")
    monkeypatch.setenv("https_proxy", "http://p:3128")
    assert find_proxies("") == {"http": "http://p:3128", "https": "http://p:3128"}
    assert find_proxies("http://q:1") == {"http": "http://q:1", "https": "http://q:1"}
    monkeypatch.setenv("https_proxy", "socks5://p:1080")
    monkeypatch.setenv("no_proxy", "*")
    assert find_proxies("") == {"no": "*"}


def test_a_socks_proxy_ends_the_program_before_any_url_is_tried(tmp_path):
    with ImageServer({"*": body(b"")}) as server:
        done = download(tmp_path, [server.url("/a.jpg")], check=False, proxy="socks5h://127.0.0.1:9")
        assert done.returncode == 1 and not server.requests
    assert "error: config download.proxy: found socks5h://127.0.0.1:9; expected a plain HTTP" in done.stdout
    assert not (tmp_path / "logs").exists()


def test_a_resolver_that_never_answers_ends_at_the_urls_deadline(monkeypatch):
    """R08, R13: getaddrinfo cannot be cut short, so it is not waited for."""
    asked, released = [], threading.Event()

    def getaddrinfo(host, *args, **kwargs):
        asked.append(host)
        released.wait(20)
        return []

    monkeypatch.setattr(socket, "getaddrinfo", getaddrinfo)
    slow = fetcher(url_deadline_s=0.4)
    began = time.monotonic()
    for _ in range(2):  # the second waits for the same question
        with pytest.raises(FetchError, match="dns: no answer within the deadline of the URL"):
            slow.fetch("http://slow.example/a.jpg")
    assert time.monotonic() - began < 3 and asked == ["slow.example"]
    released.set()
