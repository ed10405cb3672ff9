"""`snakemake --lint` as a gate: it prints every hint but the two kinds this project argues with.

Waived: conda or a container for each rule (one pinned venv runs all programs), and the global
names PY and SCRIPTS in shell text (as params, their absolute paths would rerun a moved checkout).
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

CHECKOUT = Path(__file__).resolve().parents[1]
WAIVED = (
    "Specify a conda environment or container for each rule.",
    "Shell command directly uses variable PY from outside of the rule",
    "Shell command directly uses variable SCRIPTS from outside of the rule",
    # On purpose outside params (rules/download.smk says why).
    "Shell command directly uses variable FETCHING from outside of the rule",
    "Shell command directly uses variable BESIDE_SERVER from outside of the rule",
)


def hints() -> list[str]:
    """Return Snakemake's hints as `rule or file: title`, without the waived kinds.

    Raises:
        RuntimeError: Snakemake could not read the workflow.
    """
    done = subprocess.run(
        [sys.executable, "-m", "snakemake", "--lint", "json"], cwd=CHECKOUT, capture_output=True, text=True
    )
    if not done.stdout.strip():
        if done.returncode == 0:
            return []
        raise RuntimeError(done.stderr)
    report = json.loads(done.stdout)
    entries = [entry for kind in ("rules", "snakefiles") for entry in report.get(kind) or []]
    return [
        f"{entry['for']}: {lint['title']}"
        for entry in entries
        for lint in entry["lints"]
        if lint["title"] not in WAIVED
    ]


if __name__ == "__main__":
    found = hints()
    print("\n".join(found) or "snakemake --lint: nothing to say")
    sys.exit(bool(found))
