"""Build a venv from a hash-pinned requirements file; its `pip freeze` appears last, as the ready file."""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

from shardwright.errors import BuildError, run_cli
from shardwright.files import find_path, replacing, sole_writer


def _candidates(version: str) -> Iterator[Path]:
    for name in (f"python{version}", "python3", "python"):
        found = shutil.which(name)
        if found:
            yield Path(found)
    versions = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    yield from sorted(versions.glob(f"{version}.*/bin/python"))


def find_python(version: str) -> Path:
    """Return an interpreter of the given minor version, from PATH or pyenv.

    Raises:
        BuildError: There is none.
    """
    for candidate in _candidates(version):
        code = "import sys; print('%d.%d' % sys.version_info[:2])"
        said = subprocess.run([str(candidate), "-c", code], capture_output=True, text=True, check=False)
        if said.stdout.strip() == version:
            return candidate
    raise BuildError(
        f"Python {version}",
        found="none on PATH or in pyenv",
        expected=f"python{version}, for config download.environment",
        next_step=f"install it (for example `pyenv install {version}`), or leave download.environment empty",
    )


def build_environment(requirements: Path, version: str, freeze: Path) -> None:
    """Make the venv beside `freeze` (its name without suffix), then write `freeze`.

    Raises:
        BuildError: No such Python, or a package could not be installed.
    """
    folder = freeze.with_suffix("")
    python = find_python(version)
    freeze.unlink(missing_ok=True)
    shutil.rmtree(folder, ignore_errors=True)
    pip = [str(folder / "bin/python"), "-m", "pip", "--disable-pip-version-check"]
    install = ["install", "--quiet", "--no-deps", "--no-compile", "--require-hashes", "-r", str(requirements)]
    for command in ([str(python), "-m", "venv", str(folder)], [*pip, *install]):
        if subprocess.run(command, check=False).returncode:
            raise BuildError(
                str(folder),
                found=f"a failure of `{' '.join(command)}`",
                expected=f"an environment as {requirements} pins it",
                next_step="read the lines above; the package index must be reachable from this machine",
            )
    frozen = subprocess.run([*pip, "freeze"], capture_output=True, text=True, check=True).stdout
    with replacing(freeze) as scratch:
        scratch.write_text(frozen)


def main(argv: list[str] | None = None) -> None:
    """Parse the command line and build the environment."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--requirements", required=True, help="hash-pinned requirements file")
    parser.add_argument("--python", required=True, help="minor version of Python, for example 3.10")
    parser.add_argument("--freeze", type=Path, required=True, help="output: <root>/envs/<name>.txt")
    args = parser.parse_args(argv)
    with sole_writer(args.freeze):
        build_environment(find_path(args.requirements), args.python, args.freeze)


if __name__ == "__main__":
    run_cli(main)
