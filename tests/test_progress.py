"""The lines of a long transfer, and the end of one that does not get on."""

from __future__ import annotations

import time

import pytest

from shardwright import progress


def test_a_long_transfer_prints_how_it_gets_on(monkeypatch, capsys):
    monkeypatch.setattr(progress, "PRINT_EVERY_S", 0.0)
    shown = progress.Progress("a.parquet", 130_506_429, done=65_000_000)
    time.sleep(0.01)
    shown.advance(253_214)
    line = capsys.readouterr().out
    assert line.startswith("a.parquet: 65.3 of 130.5 MB (50 %), ")
    assert " MB/s, " in line and line.endswith(" s left\n")


def test_a_short_transfer_prints_nothing(capsys):
    progress.Progress("a.parquet", 1000).advance(1000)
    assert capsys.readouterr().out == ""


def test_a_sender_of_next_to_nothing_is_left_but_a_slow_one_is_not():
    slow = progress.Progress("a.parquet", 10**9, window_s=0.02)
    for _ in range(3):
        time.sleep(0.025)
        slow.advance(1000)
    time.sleep(0.025)
    with pytest.raises(progress.Stalled, match="only 1 bytes in 0 s"):
        slow.advance(1)


def test_a_sender_that_begins_again_is_counted_from_zero():
    """A server without Range sends the whole file on a resume; bytes flow, so it has not stalled."""
    shown = progress.Progress("a.parquet", 10**9, done=900_000_000, window_s=0.02)
    shown.restart()
    time.sleep(0.025)
    shown.advance(1_000_000)
    assert shown.done == 1_000_000
    assert ": 1.0 of 1000.0 MB" in shown.line(time.monotonic()).replace(",", "")
    assert " -" not in shown.line(time.monotonic())
