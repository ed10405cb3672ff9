"""Write one tar of the dataset from its plan: pictures and conversations, in the plan's order."""

from __future__ import annotations

import argparse
from pathlib import Path

from shardwright.conversation import ConversationMaker
from shardwright.errors import run_cli
from shardwright.files import sole_writer
from shardwright.lean import start_lean


def main(argv: list[str] | None = None) -> None:
    """Parse the options, write the tar, print its receipt in a line."""
    from shardwright.convert import Outputs, convert  # imports pyarrow: here, behind start_lean

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--plan", type=Path, required=True)
    parser.add_argument("--raw", type=Path, required=True, help="folder of the raw shards")
    parser.add_argument("--repo", required=True, help="repository of the metadata")
    parser.add_argument("--revision", required=True, help="its revision")
    parser.add_argument("--prompt", required=True, help="the user's turn of every conversation")
    parser.add_argument("--tar", type=Path, required=True, help="written with its .tar.idx beside it")
    parser.add_argument("--members", type=Path, required=True, help="table of the tar's members")
    parser.add_argument("--receipt", type=Path, required=True)
    args = parser.parse_args(argv)
    maker = ConversationMaker(args.repo, args.revision, args.prompt)
    with sole_writer(args.tar):
        receipt = convert(args.plan, args.raw, maker, Outputs(args.tar, args.members, args.receipt))
    print(f"{receipt['tar']}: {receipt['samples']} samples, {receipt['bytes']} bytes, {receipt['sha256']}")


if __name__ == "__main__":
    start_lean("numpy", "pandas")
    run_cli(main)
