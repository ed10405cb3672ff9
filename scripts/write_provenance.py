"""Write the record that ties the checkpoint to its data, its base model, its config and its programs."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from shardwright.errors import run_cli
from shardwright.files import sole_writer, write_json
from shardwright.provenance import make_provenance


def main(argv: list[str] | None = None) -> None:
    """Parse the command line and write the record."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--config", type=json.loads, required=True, help="the checked config, JSON")
    parser.add_argument("--model", required=True, help="name of the model")
    parser.add_argument("--run", required=True, help="name of the training run")
    parser.add_argument("--provenance", type=Path, required=True, help="file to write, at the build's root")
    args = parser.parse_args(argv)
    with sole_writer(args.provenance, root=args.provenance.parent):
        record = make_provenance(args.provenance.parent, args.config, args.model, args.run)
        write_json(args.provenance, record)
    print(f"build {record['sha256']}")


if __name__ == "__main__":
    run_cli(main)
