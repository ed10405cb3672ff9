"""What a person reads while a shard runs and when it is done (R13, R15)."""

from __future__ import annotations

from shardwright.download.people import LiveLine, dominant_advice, summarise


def counted(rows: int, successes: int, transient: int = 0, http_status=None, **classes: int) -> dict:
    return {
        "rows": rows,
        "successes": successes,
        "transient": transient,
        "http_status": http_status or {},
        "failure_classes": classes,
    }


def test_the_live_line_says_how_far_how_well_how_fast_and_why_not():
    line = LiveLine("00000003", 10_000, 10)
    text = line.text({"success": 2630, "http_4xx": 812, "dns": 410, "timeout": 358}, 54.0)
    assert text == (
        "00000003: 4,210/10,000 done, 2,630 good (62.5 %), 78 rows/s, 1 min left"
        " | http_4xx 812, dns 410, timeout 358"
    )
    assert line.text({}, 0.0) == "00000003: 0/10,000 done, 0 good (0 %), 0 rows/s"


def test_the_live_line_is_printed_no_more_often_than_asked(capsys):
    line = LiveLine("00000000", 10, 3600)
    for done in range(10):
        line({"success": done})
    assert capsys.readouterr().out == ""


def test_the_summary_counts_and_leaves_the_verdict_to_the_audit():
    """Whether a rate is usual depends on the set; audit.usual_percent of the config says it."""
    good = summarise("00000000", counted(10_000, 6220, http_4xx=3780), 262e6, 128.0)
    assert good.startswith("00000000: 6,220 of 10,000 pictures (62.2 %); 262.0 MB in 128 s (78 rows/s)\n")


def test_the_summary_names_each_class_its_codes_and_what_may_yet_come():
    text = summarise(
        "0", counted(100, 80, 5, {"403": 4, "404": 11, "503": 5}, http_5xx=5, http_4xx=15), 1000, 1.0
    )
    assert "    15  http_4xx: the server refused or has lost the picture (4xx) (404 11, 403 4)" in text
    assert "     5  http_5xx: the server failed (5xx) (503 5)" in text
    assert "5 of these may pass; `snakemake retry_failed -R retry_shard` asks for them again" in text


def test_advice_only_where_one_class_stands_out():
    assert "resolver" in dominant_advice(counted(1000, 500, dns=400, http_4xx=100))
    codes = {"403": 800, "404": 100, "503": 0}
    refused = dominant_advice(counted(1000, 100, http_4xx=900, http_status=codes))
    assert refused.startswith("900 http_4xx: ") and "user_agent" in refused
    gone = dominant_advice(counted(1000, 100, http_4xx=900, http_status={"404": 900}))
    assert gone == "900 http_4xx: the pictures are gone: nothing to mend"
    assert "CA certificates" in dominant_advice(counted(1000, 100, tls=900))
    assert dominant_advice(counted(1000, 620, http_4xx=300, dns=80)) == ""
