"""Choose the samples of the training set and plan every tar.

Reads the audits of all shards in order, keeps the first `--total` sound samples whose uid was not
kept before, and writes one plan a tar beside `--summary`, then the summary.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from shardwright.errors import run_cli
from shardwright.files import sole_writer
from shardwright.lean import start_lean


def main(argv: list[str] | None = None) -> None:
    """Parse the options, write the plan, print what became of the samples."""
    # These import NumPy: here, behind start_lean.
    from shardwright.plan import Budget, write_plan
    from shardwright.selection import read_exclusions

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--audit", type=Path, required=True, help="folder of the shards' audits")
    parser.add_argument("--num-shards", type=int, required=True)
    parser.add_argument("--total", type=int, required=True, help="samples to keep")
    parser.add_argument("--validation-fraction", type=float, required=True)
    parser.add_argument("--per-tar", type=int, required=True)
    parser.add_argument("--exclude", default="", help="file of uids and JPEG digests to leave out")
    parser.add_argument("--num-train", type=int, required=True, help="train tars the build declares")
    parser.add_argument("--num-val", type=int, required=True, help="val tars the build declares")
    parser.add_argument("--summary", type=Path, required=True)
    args = parser.parse_args(argv)
    tars = {"train": args.num_train, "val": args.num_val}
    budget = Budget(args.total, args.validation_fraction, args.per_tar, tars)
    with sole_writer(args.summary):
        exclusions = read_exclusions(args.exclude)
        found = write_plan(args.audit, args.num_shards, budget, exclusions, args.summary)
    print(f"read {found['num_read']} samples of {args.num_shards} shards")
    print(f"kept {found['num_kept']}")
    for reason, count in found["dropped"].items():
        print(f"{reason} {count}")
    for split, realised in found["splits"].items():
        print(f"{split}: {realised['samples']} samples in {realised['tars']} tars")
    unmatched = found["exclude"]["num_unmatched"]
    if unmatched:
        print(f"note: {unmatched} of {found['exclude']['num_listed']} entries of --exclude matched no sample")


if __name__ == "__main__":
    start_lean("pandas")
    run_cli(main)
