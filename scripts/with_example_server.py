"""Run a command beside the example's loopback server: `with_example_server.py -- CMD ARG…`.

The server takes a free port and the command finds it as `http_proxy`. SIGINT, SIGTERM and SIGHUP
go on to the command; its exit code is ours (128 + n when signal n ended it). The server ends with
this process, whatever happens; if this process is killed outright (SIGKILL), Linux sends the
command a SIGTERM, so it does not go on without its server.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading

from shardwright.errors import BuildError, run_cli
from shardwright.example_server import ExampleServer
from shardwright.processes import end_with_parent

_FORWARDED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def _begin_child() -> None:
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _FORWARDED)
    end_with_parent(signal.SIGTERM)


def proxied_env(url: str) -> dict[str, str]:
    """Return our environment with `http_proxy` set to `url`; loopback itself is reached directly."""
    names = ("http_proxy", "https_proxy", "all_proxy", "no_proxy")
    env = {key: value for key, value in os.environ.items() if key.lower() not in names}
    return {**env, "http_proxy": url, "no_proxy": "127.0.0.1,localhost"}


def _start(command: list[str], url: str) -> subprocess.Popen[bytes]:
    try:
        # Its own process group: a terminal's Ctrl-C reaches us alone and is passed on once.
        return subprocess.Popen(command, env=proxied_env(url), preexec_fn=_begin_child, process_group=0)
    except OSError as error:
        raise BuildError(
            command[0],
            found=str(error.strerror),
            expected="a program that can be started",
            next_step="correct the command behind `--`",
        ) from error


def run_beside_server(command: list[str]) -> int:
    """Run `command` to its end while the server answers; return its exit code.

    Raises:
        BuildError: The command cannot be started.
    """
    with ExampleServer() as server:
        # Blocked while threads start, so that only this thread ever takes a signal, and none too early.
        signal.pthread_sigmask(signal.SIG_BLOCK, _FORWARDED)
        child = _start(command, server.url)
        for number in _FORWARDED:
            signal.signal(number, lambda received, _frame: child.send_signal(received))
        threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _FORWARDED)
        status = child.wait()
        server.shutdown()
    return status if status >= 0 else 128 - status


def main(argv: list[str] | None = None) -> int:
    """Parse `-- CMD ARG…` and run it."""
    args = list(sys.argv[1:] if argv is None else argv)
    if args[:1] in (["-h"], ["--help"]):
        print(__doc__)
        return 0
    if args[:1] == ["--"]:
        args = args[1:]
    if not args:
        raise BuildError(
            "with_example_server.py",
            found="no command",
            expected="-- CMD ARG…",
            next_step="put the command to run behind `--`",
        )
    return run_beside_server(args)


if __name__ == "__main__":
    run_cli(main)
