"""The command line that download_shard and retry_shard share."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from shardwright.download.settings import load_content, load_fetching
from shardwright.download.shard import Plan
from shardwright.download.triple import Triple


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of both programs."""
    parser.add_argument("--metadata", type=Path, required=True, help="parquet of URLs")
    parser.add_argument("--columns", required=True, help="role=column pairs (config metadata.columns)")
    parser.add_argument("--shard", required=True, help="shard id, eight digits")
    parser.add_argument("--start", type=int, required=True, help="first row of the shard")
    parser.add_argument("--stop", type=int, required=True, help="row after its last one")
    parser.add_argument("--rows-per-shard", type=int, required=True, help="decides the width of the keys")
    parser.add_argument(
        "--content", required=True, help="JSON of the settings that decide samples and pixels"
    )
    parser.add_argument("--fetching", required=True, help="JSON of deadlines, retries, proxy and the like")
    parser.add_argument(
        "--environment", nargs="?", type=Path, help="ready file of another environment (download.environment)"
    )
    parser.add_argument("--tar", type=Path, required=True, help="output: <root>/raw/<shard>.tar")
    parser.add_argument("--parquet", type=Path, required=True, help="output: <root>/raw/<shard>.parquet")
    parser.add_argument("--stats", type=Path, required=True, help="output: <root>/raw/<shard>_stats.json")


def plan_of(args: argparse.Namespace) -> Plan:
    """Return the plan that the parsed command line asks for."""
    python = sys.executable
    if args.environment is not None:
        python = str(args.environment.resolve().with_suffix("") / "bin" / "python")
    return Plan(
        shard=args.shard,
        rows_per_shard=args.rows_per_shard,
        target=Triple(args.tar, args.parquet, args.stats),
        content=load_content(args.content),
        fetching=load_fetching(args.fetching),
        python=(python,),
    )
