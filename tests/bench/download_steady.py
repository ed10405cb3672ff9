"""CPU time an image once everything is imported: img2dataset's Downloader and Resizer against ours.

    python tests/bench/download_steady.py [--rows 160] [--rounds 3]

Both run in this process, in turn, from the same loopback server, so the ratio holds on a busy
machine too; round 1 warms up. Import and start-up, where ours gains most, are left out:
tests/bench/download.py has them.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
import types
import urllib.request
from pathlib import Path

TESTS = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(TESTS.parent / "scripts"), str(TESTS), str(TESTS / "bench")]


def official(folder: Path, table: Path, rows: int) -> None:
    """Download the shard with img2dataset's own parts."""
    from img2dataset.blurrer import BoundingBoxBlurrer
    from img2dataset.downloader import Downloader
    from img2dataset.resizer import Resizer
    from img2dataset.writer import WebDatasetSampleWriter

    urllib.request.install_opener(None)
    Downloader(
        sample_writer_class=WebDatasetSampleWriter,
        resizer=Resizer(512, "keep_ratio_largest", True, encode_quality=95, blurrer=BoundingBoxBlurrer()),
        thread_count=128,
        save_caption=True,
        extract_exif=True,
        output_folder=str(folder),
        column_list=["uid", "face_bboxes", "caption", "url"],
        timeout=10,
        number_sample_per_shard=rows,
        oom_shard_count=8,
        compute_hash="sha256",
        verify_hash_type=None,
        encode_format="jpg",
        retries=2,
        user_agent_token=None,
        disallowed_header_directives=["noai", "noimageai", "noindex", "noimageindex"],
        blurring_bbox_col="face_bboxes",
    ).download_shard((0, str(table)))


def ours(folder: Path, table: Path, rows: int) -> None:
    """Download the shard as our worker does."""
    from download_helpers import settings
    from shardwright.download.job import Job
    from shardwright.download.worker import run

    content, fetching = settings(thread_count=128, timeout_s=10, url_deadline_s=30, stall_s=100)
    _, pipe = os.pipe()
    run(Job(0, rows, str(table), str(folder), content, fetching), pipe)


def compare(folder: Path, url: str, args: argparse.Namespace) -> None:
    """Run both in turn and print CPU milliseconds an image."""
    import cv2

    from download_helpers import make_parquet
    from shardwright.download.rows import clean_rows, read_rows, write_table

    cv2.setNumThreads(1)
    columns = {role: role for role in ("url", "text", "uid", "face_bboxes")}
    parquet = make_parquet(folder / "urls.parquet", [f"{url}/{n % args.pictures}" for n in range(args.rows)])
    table, _ = clean_rows(read_rows(parquet, 0, args.rows, columns))
    for number in range(1, args.rounds + 1):
        cpu = {}
        for flow in (official, ours):
            target = folder / f"{flow.__name__}-{number}"
            target.mkdir()
            write_table(table, folder / "rows.arrow")
            began = time.process_time()
            flow(target, folder / "rows.arrow", args.rows)
            cpu[flow.__name__] = 1000 * (time.process_time() - began) / args.rows
        both = ", ".join(f"{name} {value:.2f}" for name, value in cpu.items())
        print(f"round {number}: {both} CPU ms/image, {cpu['ours'] / cpu['official']:.2f} x")


def main() -> None:
    """Make the corpus, serve it, compare."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=160)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--pictures", type=int, default=40, help="different pictures")
    args = parser.parse_args()
    from download import corpus

    os.environ.update(no_proxy="*", NO_ALBUMENTATIONS_UPDATE="1")
    sys.modules["torch"] = None
    sys.modules["wandb"] = types.ModuleType("wandb")
    with tempfile.TemporaryDirectory(prefix="bench-download-") as name:
        folder = Path(name)
        (folder / "pictures").mkdir()
        for number, data in enumerate(corpus(args.pictures)):
            (folder / f"pictures/{number}").write_bytes(data)
        command = [sys.executable, str(TESTS / "bench/download.py"), "--serve", name]
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as server:
            try:
                compare(folder, server.stdout.readline().strip(), args)
            finally:
                server.stdin.close()


if __name__ == "__main__":
    main()
