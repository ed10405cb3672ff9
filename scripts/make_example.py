"""Write the example's metadata: parquets of URLs for the loopback server, and their pin table.

    make_example.py                                   rewrites config/example/metadata and its pins
    make_example.py --folder F --pins P --rows 50 50  another set, of other size
    make_example.py --scenes solid --rows 96 --folder config/example/solid --pins config/pins/solid.tsv
                                                      solid colours that all download (config/solid.yaml)

The same seed gives the same rows. The columns are DataComp-1B's: uid (32 hex digits), url, text,
original_width, original_height, two CLIP scores, face_bboxes (lists of x0, y0, x1, y1 in [0, 1], in
the frame of the file as it is stored), sha256 of the file. The outputs are committed; run this only
to change them.

About a third of the `web` URLs fail at first, in the ways and numbers that BEHAVIOURS lists
(scripts/shardwright/example_rows.py); some of those come right on a retry. FORMS says how the good
pictures are stored. Beside them stand rows whose *metadata* is at fault: blank captions, one uid
twice, chat-control tokens, bad face boxes. A set needs about 100 rows to hold one of each.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from shardwright.errors import run_cli
from shardwright.example_rows import solid_rows, web_rows
from shardwright.file_pins import write_table
from shardwright.files import CHECKOUT, replacing, sha256_file
from shardwright.layout import PIN_COLUMNS


def write_parquet(rows: list[dict], path: Path) -> None:
    """Write rows with DataComp's column types, in row groups smaller than a shard."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    schema = pa.schema(
        [
            *[("uid", pa.string()), ("url", pa.string()), ("text", pa.string())],
            *[("original_width", pa.int64()), ("original_height", pa.int64())],
            *[("clip_b32_similarity_score", pa.float64()), ("clip_l14_similarity_score", pa.float64())],
            *[("face_bboxes", pa.list_(pa.list_(pa.float64()))), ("sha256", pa.string())],
        ]
    )
    with replacing(path) as scratch:
        pq.write_table(pa.Table.from_pylist(rows, schema=schema), scratch, row_group_size=50)


def make_example(folder: Path, pins: Path, num_rows: list[int], scenes: str, seed: int) -> None:
    """Write the parquets below `folder` and the table that pins them."""
    rows = {"web": web_rows, "solid": solid_rows}[scenes](seed, sum(num_rows))
    pinned: list[tuple[object, ...]] = []
    for number, count in enumerate(num_rows):
        start = sum(num_rows[:number])
        path = folder / f"{scenes}-{number:03d}.parquet"
        write_parquet(rows[start : start + count], path)
        pinned.append((path.name, count, path.stat().st_size, sha256_file(path)))
    write_table(pins, PIN_COLUMNS, pinned)


def main(argv: list[str] | None = None) -> None:
    """Parse the options and write the files."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--folder", type=Path, default=CHECKOUT / "config/example/metadata")
    parser.add_argument("--pins", type=Path, default=CHECKOUT / "config/pins/example.tsv")
    parser.add_argument("--rows", type=int, nargs="+", default=[200, 160], help="rows of each parquet")
    parser.add_argument("--scenes", choices=["web", "solid"], default="web")
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args(argv)
    make_example(args.folder, args.pins, args.rows, args.scenes, args.seed)


if __name__ == "__main__":
    run_cli(main)
