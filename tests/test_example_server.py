"""The example's web: faults that are what they claim, and the program that runs a command beside it."""

from __future__ import annotations

import http.client
import signal
import socket
import subprocess
import sys
import threading
import urllib.error
import urllib.request

import pytest

from helpers import SCRIPTS, child_env
from shardwright.example_rows import START
from shardwright.example_server import ExampleServer, picture_at

TAIL = "large-red-circle-on-white/64x48-rgb-1.jpg"


@pytest.fixture
def server():
    with ExampleServer() as running:
        threading.Thread(target=running.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()
        yield running
        running.shutdown()


def opener(server: ExampleServer) -> urllib.request.OpenerDirector:
    return urllib.request.build_opener(urllib.request.ProxyHandler({"http": server.url}))


def get(server: ExampleServer, behaviour: str, tail: str = TAIL, timeout: float = 5) -> bytes:
    with opener(server).open(f"{START}/{behaviour}/{tail}", timeout=timeout) as answer:
        return answer.read()


@pytest.mark.parametrize("code", [404, 403, 410, 500, 429])
def test_refusals(server, code):
    for _ in range(3):
        with pytest.raises(urllib.error.HTTPError) as error:
            get(server, str(code))
        assert error.value.code == code


@pytest.mark.parametrize(
    ("behaviour", "num_faults"), [("500-once", 1), ("503-twice", 2), ("429-once", 1), ("reset-once", 1)]
)
def test_transient_faults_pass_and_come_back_with_a_new_server(behaviour, num_faults):
    for _ in range(2):
        with ExampleServer() as server:
            threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
            for _ in range(num_faults):
                with pytest.raises((urllib.error.HTTPError, ConnectionResetError)):
                    get(server, behaviour)
            assert get(server, behaviour) == picture_at(f"/{behaviour}/{TAIL}")
            server.shutdown()


@pytest.mark.parametrize(
    ("behaviour", "error"),
    [
        ("hang", TimeoutError),
        ("reset", ConnectionResetError),
        ("short", http.client.IncompleteRead),
        ("loop", urllib.error.HTTPError),
        ("to-file", urllib.error.HTTPError),
    ],
)
def test_broken_answers(server, behaviour, error):
    with pytest.raises(error):
        get(server, behaviour, timeout=0.5)


def test_slow_answers_keep_the_connection_alive(server):
    for behaviour in ("drip", "endless"):
        with opener(server).open(f"{START}/{behaviour}/{TAIL}", timeout=5) as answer:
            assert answer.read(1)


def test_odd_but_whole_answers(server):
    good = picture_at(f"/ok/{TAIL}")
    for behaviour in ("ok", "redirect", "wrong-type", "chunked", "noai"):
        assert get(server, behaviour) == good
    assert get(server, "truncated") == good[: len(good) * 3 // 5]
    assert get(server, "empty") == b""
    assert b"<html>" in get(server, "html") and b"<svg" in get(server, "svg")
    with opener(server).open(f"{START}/noai/{TAIL}") as answer:
        assert answer.headers["X-Robots-Tag"] == "noai, noimageai"
    assert get(server, "ok", "large-red-circle-on-white/caf%C3%A9%20noir/64x48-rgb-1.jpg") == good


def test_a_host_that_the_proxy_cannot_reach_is_a_502(server):
    with pytest.raises(urllib.error.HTTPError) as error:
        opener(server).open(f"http://gone.example.invalid/ok/{TAIL}")
    assert error.value.code == 502


def beside_server(code: str, **options: object) -> subprocess.Popen[str]:
    """Start a Python child that runs `code` beside the server."""
    command = [sys.executable, SCRIPTS / "with_example_server.py", "--", sys.executable, "-c", code]
    return subprocess.Popen(
        [str(part) for part in command], env=child_env(), stdout=subprocess.PIPE, text=True, **options
    )


def test_the_wrapper_serves_its_command_and_returns_its_exit_code():
    code = (
        "import sys, urllib.request as u\n"
        f"data = u.urlopen('{START}/ok/{TAIL}').read()\n"
        "print(u.getproxies()['http'], len(data), flush=True); sys.exit(7)"
    )
    wrapper = beside_server(code)
    printed, _ = wrapper.communicate(timeout=60)
    proxy, length = printed.split()
    assert wrapper.returncode == 7
    assert int(length) == len(picture_at(f"/ok/{TAIL}"))
    with pytest.raises(ConnectionRefusedError):  # the server is gone with its command
        socket.create_connection(("127.0.0.1", int(proxy.rpartition(":")[2])), timeout=5)


WAITING = (
    "import os, signal, sys, time\n"
    "def leave(number, frame):\n"
    "    print('got', number, flush=True); sys.exit(3)\n"
    "signal.signal(signal.SIGTERM, leave); signal.signal(signal.SIGINT, leave)\n"
    "print(os.getpid(), flush=True)\n"
    "time.sleep(60)"
)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_signals_go_on_to_the_command(number):
    wrapper = beside_server(WAITING)
    wrapper.stdout.readline()
    wrapper.send_signal(number)
    printed, _ = wrapper.communicate(timeout=30)
    assert printed == f"got {number.value}\n" and wrapper.returncode == 3


def test_a_command_that_a_signal_ends_is_reported_as_shells_do():
    wrapper = beside_server("import os, signal; os.kill(os.getpid(), signal.SIGKILL)")
    wrapper.communicate(timeout=30)
    assert wrapper.returncode == 128 + signal.SIGKILL


def test_a_killed_wrapper_takes_its_command_along():
    wrapper = beside_server(WAITING)
    wrapper.stdout.readline()
    wrapper.kill()
    assert wrapper.stdout.read() == f"got {signal.SIGTERM.value}\n"  # the pipe closes when the child ends
    wrapper.wait()


def test_a_command_that_does_not_exist_is_named():
    done = subprocess.run(
        [sys.executable, SCRIPTS / "with_example_server.py", "--", "no-such-program"],
        env=child_env(),
        capture_output=True,
        text=True,
    )
    assert done.returncode == 1 and done.stderr.startswith("error: no-such-program")
