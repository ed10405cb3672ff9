"""img2dataset's sample writer, made honest: it counts, names failures, and stops on a full disk.

Only the worker imports this module (img2dataset at the top).
"""

from __future__ import annotations

import json
import math
import os
import sys
import threading
from collections import Counter
from typing import Any

import pyarrow as pa
from img2dataset.writer import WebDatasetSampleWriter

from shardwright.download.hashes import ANNOUNCED
from shardwright.download.job import WRITE_FAILED
from shardwright.download.resizer import PictureResizer
from shardwright.failures import MEANING, classify


class Progress:
    """Counts rows by outcome and sends the counts to the supervisor, a line of JSON at a time.

    Args:
        handle: The writing end of the supervisor's pipe.
    """

    _EVERY_S = 0.5

    def __init__(self, handle: int) -> None:
        self._handle = handle
        self._counts: Counter[str] = Counter()
        self._sent: dict[str, int] | None = None
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def add(self, outcome: str) -> None:
        """Count one row."""
        self._counts[outcome] += 1

    def finish(self) -> None:
        """Send the last counts."""
        self._ended.set()
        self._thread.join()

    def _run(self) -> None:
        self._send()  # tells the supervisor that the imports are done
        while not self._ended.wait(self._EVERY_S):
            self._send()
        self._send()

    def _send(self) -> None:
        counts = dict(self._counts.copy())
        if counts != self._sent:
            os.write(self._handle, json.dumps(counts).encode() + b"\n")
            self._sent = counts


class SampleWriter(WebDatasetSampleWriter):
    """Writes the triple's tar and parquet; the first four arguments are ours, the rest img2dataset's."""

    def __init__(
        self,
        resizer: PictureResizer,
        progress: Progress,
        rows_per_shard: int,
        row_numbers: list[int] | None,
        shard_id: int,
        folder: str,
        save_caption: bool,
        oom_shard_count: int,
        schema: pa.Schema,
        encode_format: str,
    ) -> None:
        if ANNOUNCED in schema.names:
            schema = schema.remove(schema.get_field_index(ANNOUNCED))
        super().__init__(shard_id, folder, save_caption, oom_shard_count, schema, encode_format)
        # A whole number needs no pax header, which would add 1,536 bytes to each of three members.
        self.tarwriter.mtime = 0
        self.resizer, self.progress, self.row_numbers = resizer, progress, row_numbers
        self.first_key = shard_id * 10 ** math.ceil(math.log10(rows_per_shard))

    def write(self, img_str: bytes | None, key: str, caption: str | None, meta: dict[str, Any]) -> None:
        """Write one row; the process ends at once when the disk refuses it (img2dataset would go on)."""
        if self.row_numbers is not None:
            row = self.row_numbers[int(key) - self.first_key]
            key = meta["key"] = f"{self.first_key + row:0{len(key)}d}"
        meta.pop(ANNOUNCED, None)
        outcome = "success"
        if meta["status"] == "success":
            meta["face_bboxes"] = self.resizer.last.boxes
            meta["adjustments"] = self.resizer.last.adjustments
        else:
            outcome = classify(meta["status"], meta["error_message"])
            if not str(meta["error_message"]).startswith(f"{outcome}: "):
                meta["error_message"] = f"{outcome}: {meta['error_message'] or MEANING[outcome]}"
        try:
            super().write(img_str, key, caption, meta)
        except OSError as error:
            print(f"writing failed: {error}", file=sys.stderr, flush=True)
            os._exit(WRITE_FAILED)
        self.progress.add(outcome)
