"""Check Energon's metadata against the index's receipt and describe the dataset in one JSON."""

from __future__ import annotations

import argparse
from pathlib import Path

from shardwright.errors import run_cli
from shardwright.files import read_json, sole_writer, write_json
from shardwright.manifest import check_meta_files, make_manifest

SOURCE_FIELDS = ("file", "rows", "bytes", "sha256")


def main(argv: list[str] | None = None) -> None:
    """Parse the options, check, write the manifest."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--metadata", type=Path, nargs="+", required=True, help="receipts of the parquets")
    parser.add_argument("--audit", type=Path, required=True, help="summary of the audit")
    parser.add_argument("--plan", type=Path, required=True, help="summary of the plan")
    parser.add_argument("--index", type=Path, required=True, help="receipt of the index")
    parser.add_argument("--repo", required=True)
    parser.add_argument("--revision", required=True)
    parser.add_argument("--prompt", required=True)
    parser.add_argument("--validation-fraction", type=float, required=True)
    parser.add_argument("--manifest", type=Path, required=True)
    args = parser.parse_args(argv)
    files = [{name: receipt[name] for name in SOURCE_FIELDS} for receipt in map(read_json, args.metadata)]
    source = {"repo": args.repo, "revision": args.revision, "files": files}
    samples = {"prompt": args.prompt, "validation_fraction": args.validation_fraction}
    with sole_writer(args.manifest):
        index = read_json(args.index)
        check_meta_files(args.manifest.parent / ".nv-meta", index["files"])
        manifest = make_manifest(source, samples, read_json(args.audit), read_json(args.plan), index)
        write_json(args.manifest, manifest)
    print(f"{args.manifest}: {manifest['counts']['kept']} samples in {len(manifest['tars'])} tars")


if __name__ == "__main__":
    run_cli(main)
