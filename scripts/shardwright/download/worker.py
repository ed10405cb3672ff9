"""The process that downloads one shard: `python -m shardwright.download.worker JOB PIPE`.

It runs in the environment that config download.environment names (img2dataset 1.40 to 1.47, Python
3.10 and newer). It ends when its standard input ends, so it never outlives its supervisor.
"""

from __future__ import annotations

import functools
import json
import os
import platform
import sys
import threading
import types
import urllib.request
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path

from shardwright.download.fetch import Fetcher
from shardwright.download.hashes import ANNOUNCED, OUTCOMES
from shardwright.download.job import OOM_SHARD_COUNT, WRITE_FAILED, Job
from shardwright.download.proxies import without_login
from shardwright.hidden import hide_packages

_PACKAGES = ("img2dataset", "opencv-python-headless", "numpy", "pillow", "webdataset", "pyarrow")
_SUPERVISOR_GONE = 70


def _end_with_supervisor() -> None:
    def wait() -> None:
        while os.read(0, 4096):
            pass
        os._exit(_SUPERVISOR_GONE)

    threading.Thread(target=wait, daemon=True).start()


def _leave_out_unused_imports() -> None:
    """Keep img2dataset and pyarrow from importing what a shard never uses: most of a cold start.

    img2dataset's `__init__` imports its whole command line, and pandas with it, which pyarrow would
    then use, too; webdataset imports torch if it is there; wandb and albumentations (which also asks
    the network for its newest version) serve the parts of img2dataset that ours replace.
    """
    hide_packages("pandas")
    sys.modules["torch"] = None
    for name in ("wandb", "albumentations"):
        sys.modules[name] = types.ModuleType(name)
    if "img2dataset" not in sys.modules:
        package = types.ModuleType("img2dataset")
        package.__path__ = find_spec("img2dataset").submodule_search_locations
        sys.modules["img2dataset"] = package


def run(job: Job, pipe: int) -> dict[str, object]:
    """Download the rows of `job`; return what the stats should say about how.

    Raises:
        OSError: The disk refused a write.
    """
    _leave_out_unused_imports()
    import cv2
    from img2dataset.downloader import Downloader

    from shardwright.download.resizer import PictureResizer
    from shardwright.download.writer import Progress, SampleWriter

    cv2.setNumThreads(1)
    fetcher = Fetcher(job.content, job.fetching)
    urllib.request.install_opener(fetcher)
    resizer, progress = PictureResizer(job.content), Progress(pipe)
    options = {
        "sample_writer_class": functools.partial(
            SampleWriter, resizer, progress, job.rows_per_shard, job.row_numbers
        ),
        "resizer": resizer,
        "thread_count": job.fetching.thread_count,
        "save_caption": True,
        "extract_exif": True,
        "output_folder": job.folder,
        "column_list": ["uid", "face_bboxes", "caption", "url", *([ANNOUNCED] if job.announced else [])],
        "timeout": job.fetching.timeout_s,
        "number_sample_per_shard": job.rows_per_shard,
        "oom_shard_count": OOM_SHARD_COUNT,
        "compute_hash": "sha256",
        "encode_format": "jpg",
        "retries": 0,  # Fetcher tries again where that can help
        "user_agent_token": None,
        "disallowed_header_directives": None,  # Fetcher reads them
        "blurring_bbox_col": ANNOUNCED if job.announced else "face_bboxes",
    }
    if "verify_hash_type" in Downloader.__init__.__code__.co_varnames:  # not in 1.40
        options["verify_hash_type"] = None
    Downloader(**options).download_shard((job.shard_id, job.table))
    progress.finish()
    told = {"pictures": dict(sorted(resizer.counts.items())), "provenance": provenance(fetcher)}
    if job.announced:
        counts = {name: resizer.hashes[name] for name in OUTCOMES}
        told["sha256"] = {"policy": job.content.sha256_policy, **counts}
    return told


def provenance(fetcher: Fetcher) -> dict[str, object]:
    """Return versions and what the servers saw of us; a proxy without its password."""
    return {
        "python": platform.python_version(),
        **{name: version(name) for name in _PACKAGES},
        "user_agent": fetcher.fetching.user_agent,
        "proxies": {
            scheme: without_login(url) for scheme, url in sorted(fetcher.proxies.items()) if scheme != "no"
        },
    }


def main() -> None:
    """Run the job that the command line names."""
    _end_with_supervisor()
    job_file, pipe = Path(sys.argv[1]), int(sys.argv[2])
    job = Job.load(job_file)
    try:
        told = run(job, pipe)
        (Path(job.folder) / "told.json").write_text(json.dumps(told))
    except OSError as error:
        print(f"writing failed: {error}", file=sys.stderr, flush=True)
        os._exit(WRITE_FAILED)


if __name__ == "__main__":
    main()
