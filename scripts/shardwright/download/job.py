"""What the supervisor tells a worker, as a JSON file. Standard library only."""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass
from pathlib import Path

from shardwright.download.settings import Content, Fetching
from shardwright.files import read_json

OOM_SHARD_COUNT = 8
WRITE_FAILED = 74  # exit status of a worker that could not write


@dataclass(frozen=True)
class Job:
    """One run of a worker: the rows of `table` become `{shard_id:08d}.tar`, `.parquet`, `_stats.json`.

    `row_numbers` gives the place in the shard of each row of the table, where it is not 0, 1, 2…
    `announced` tells that the table has the column ANNOUNCED.
    """

    shard_id: int
    rows_per_shard: int
    table: str
    folder: str
    content: Content
    fetching: Fetching
    row_numbers: list[int] | None = None
    announced: bool = False

    @property
    def stem(self) -> str:
        """The shard id as img2dataset writes it in file names."""
        return f"{self.shard_id:0{OOM_SHARD_COUNT}d}"

    def save(self, path: Path) -> None:
        """Write the job to `path`."""
        path.write_text(json.dumps(dataclasses.asdict(self)), encoding="utf-8")

    @staticmethod
    def load(path: Path) -> Job:
        """Read what `save` wrote."""
        values = read_json(path)
        values["content"] = Content(**values["content"])
        values["fetching"] = Fetching(**values["fetching"])
        return Job(**values)
