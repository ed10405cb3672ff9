"""`snakemake --lint` as a gate: it prints every hint but the two kinds this project argues with.

Waived: conda or a container for each rule (one pinned venv runs all programs), and the global
names PY and SCRIPTS in shell text (as params, their absolute paths would rerun a moved checkout).
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

CHECKOUT = Path(__file__).resolve().parents[1]
WAIVED = (
    "Specify a conda environment or container for each rule.",
    "Shell command directly uses variable PY from outside of the rule",
    "Shell command directly uses variable SCRIPTS from outside of the rule",
    # On purpose outside params (rules/download.smk, metadata.smk, fetch_model.smk and train.smk say why).
    "Shell command directly uses variable FETCHING from outside of the rule",
    "Shell command directly uses variable BESIDE_SERVER from outside of the rule",
    "Shell command directly uses variable METADATA_SOURCE from outside of the rule",
    "Shell command directly uses variable METADATA_SUBFOLDER from outside of the rule",
    "Shell command directly uses variable METADATA_ATTEMPTS from outside of the rule",
    "Shell command directly uses variable MODEL_SOURCE from outside of the rule",
    "Shell command directly uses variable MODEL_ATTEMPTS from outside of the rule",
    "Shell command directly uses variable TRAIN from outside of the rule",
    "Shell command directly uses variable TRAIN_JSON from outside of the rule",
    "Shell command directly uses variable TRAIN_GPUS from outside of the rule",
)


def hints() -> list[str]:
    """Return Snakemake's hints as `rule or file: title`, without the waived kinds.

    They are read from the printed text: the command line of 9.27.1 ignores `--lint json`.

    Raises:
        RuntimeError: Snakemake could not read the workflow.
    """
    done = subprocess.run(
        [sys.executable, "-m", "snakemake", "--lint"], cwd=CHECKOUT, capture_output=True, text=True
    )
    if done.returncode != 0 and "Lints for " not in done.stderr:
        raise RuntimeError(done.stderr)
    found, subject = [], ""
    for line in done.stderr.splitlines():
        if line.startswith("Lints for "):
            subject = line.removeprefix("Lints for ").rstrip(":")
        elif line.startswith("    * "):
            title = line.removeprefix("    * ").rstrip(":")
            if title not in WAIVED:
                found.append(f"{subject}: {title}")
    return found


if __name__ == "__main__":
    found = hints()
    print("\n".join(found) or "snakemake --lint: nothing to say")
    sys.exit(bool(found))
