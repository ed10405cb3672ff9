"""Run a command beside the example's loopback server: `with_example_server.py -- CMD ARG…`.

The server takes a free port and the command finds it as `http_proxy`. SIGINT, SIGTERM and SIGHUP
go on to the command; its exit code is ours (128 + n when signal n ended it). The server ends with
this process, whatever happens; if this process is killed outright (SIGKILL), the kernel sends the
command a SIGTERM, so it does not go on without its server.
"""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
import threading

from shardwright.errors import BuildError, run_cli
from shardwright.example_server import ExampleServer

_PR_SET_PDEATHSIG = 1
_FORWARDED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def _end_with_parent() -> None:
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)


def proxied_env(url: str) -> dict[str, str]:
    """Return our environment with `http_proxy` set to `url`; loopback itself is reached directly."""
    names = ("http_proxy", "https_proxy", "all_proxy", "no_proxy")
    env = {key: value for key, value in os.environ.items() if key.lower() not in names}
    return {**env, "http_proxy": url, "no_proxy": "127.0.0.1,localhost"}


def run_beside_server(command: list[str]) -> int:
    """Run `command` to its end while the server answers; return its exit code."""
    with ExampleServer() as server:
        # Its own process group: a terminal's Ctrl-C reaches us alone and is passed on once.
        child = subprocess.Popen(
            command, env=proxied_env(server.url), preexec_fn=_end_with_parent, process_group=0
        )
        for number in _FORWARDED:
            signal.signal(number, lambda received, _frame: child.send_signal(received))
        serving = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
        serving.start()
        try:
            status = child.wait()
        finally:
            server.shutdown()
    return status if status >= 0 else 128 - status


def main(argv: list[str] | None = None) -> int:
    """Parse `-- CMD ARG…` and run it."""
    args = list(sys.argv[1:] if argv is None else argv)
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
