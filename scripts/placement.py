"""Print what would run where, before anything is submitted: partition, nodes, GPUs, CPUs, memory, time.

    snakemake placement --workflow-profile profiles/slurm [any other options of the run]
    python scripts/placement.py --workflow-profile profiles/slurm train [the same, for one target]

Needs no cluster: it is a dry run of the same command line, read into a table. With --check as the
script's first option (on a login node) it also asks Slurm whether it would take each rule's job.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

from shardwright.errors import BuildError, run_cli
from shardwright.placement import read_dry_run, render
from shardwright.preflight import refusals, site_notes

DROPPED = ("placement", "-n", "--dry-run", "--dryrun", "-p", "--printshellcmds", "--quiet", "-q")
# Snakemake cuts threads to --cores, and a profile of a cluster gives none: without it a dry run says 1.
MANY_CORES = "--cores=1000000"


def value_of(options: list[str], *names: str) -> str:
    """Return what a command line gives for one of these options (`--name value`, `--name=value`, `-cN`)."""
    for option, following in zip(options, [*options[1:], ""], strict=False):
        for name in names:
            if option == name:
                return following
            if option.startswith(f"{name}="):
                return option.partition("=")[2]
            if not name.startswith("--") and option.startswith(name):
                return option[len(name) :]
    return ""


def submits_jobs(options: list[str], folder: Path) -> bool:
    """Tell whether the run would submit jobs: the executor of its options, else of its profile."""
    executor = value_of(options, "--executor", "-e")
    for profile in (value_of(options, "--workflow-profile"), value_of(options, "--profile")):
        path = folder / profile / "config.yaml"
        if not executor and profile and path.is_file():
            found = re.search(r"^executor:\s*([\w-]+)", path.read_text(), flags=re.MULTILINE)
            executor = found.group(1) if found else ""
    return executor not in ("", "local", "dryrun", "touch")


def dry_run(options: list[str], folder: Path) -> str:
    """Return the text of a dry run with `options`, made in `folder` (their relative paths count from it).

    Raises:
        BuildError: Snakemake refused the command.
    """
    command = [sys.executable, "-m", "snakemake", *options, "--dry-run", "--nocolor"]
    if submits_jobs(options, folder) and not value_of(options, "--cores", "-c"):
        command.append(MANY_CORES)
    done = subprocess.run(
        command,
        cwd=folder,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    if done.returncode:
        raise BuildError(
            "snakemake --dry-run",
            found=f"exit status {done.returncode}:\n{done.stdout[-3000:].strip()}\n",
            expected="a dry run of the build",
            next_step="run it by hand with the same options and --dry-run",
        )
    return done.stdout


def main(argv: list[str] | None = None) -> int:
    """Print the table for a Snakemake command line; returns the exit status."""
    options = [item for item in (sys.argv[1:] if argv is None else argv) if item not in DROPPED]
    check = options[:1] == ["--check"]
    options = options[check:]
    if options in (["-h"], ["--help"]):
        print(__doc__)
        return 0
    folder = Path(os.environ.get("SHARDWRIGHT_CALLED_IN", "."))
    places = read_dry_run(dry_run(options, folder))
    print(render(places) if places else "Nothing to be done: every target is there and up to date.")
    if check:
        refused = [f"REFUSED {rule}: {words}" for rule, words in refusals(places).items()]
        print(*site_notes(), *(refused or ["Slurm would take every rule's job."]), sep="\n")
        return 1 if refused else 0
    return 0


if __name__ == "__main__":
    run_cli(main)
