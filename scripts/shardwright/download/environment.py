"""The name of a download environment: which packages it holds, nothing else. Standard library only."""

from __future__ import annotations

import hashlib
from pathlib import Path

from shardwright.errors import BuildError
from shardwright.files import find_path


def read_requirements(path: Path) -> str:
    """Return the requirement lines of a file without comments and blank lines.

    Raises:
        BuildError: There is no such file.
    """
    if not path.is_file():
        raise BuildError(
            f"config download.environment {path}",
            found="no such file",
            expected="a requirements file, for example envs/download-datacomp.txt",
            next_step="correct download.environment, or leave it empty for the current environment",
        )
    lines = (line.strip() for line in path.read_text().splitlines())
    return "\n".join(line for line in lines if line and not line.startswith("#"))


def environment_names(requirements: str, python: str) -> list[str]:
    """Return the name of the configured environment: none for an empty setting, else one.

    Args:
        requirements: Config download.environment.
        python: Config download.environment_python.
    """
    if not requirements:
        return []
    path = find_path(requirements)
    digest = hashlib.sha256(f"{python}\n{read_requirements(path)}".encode()).hexdigest()
    return [f"{path.stem}-{digest[:12]}"]
