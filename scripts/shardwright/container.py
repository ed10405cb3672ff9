"""The command line that runs a program inside a container image on the node(s) of a job.

An image is one scalar, `pyxis:IMAGE` (Slurm's enroot plugin: a registry name or a .sqsh file) or
`apptainer:IMAGE` (a .sif file or docker:// name). It has to bring python3 and our requirements.
"""

from __future__ import annotations

from pathlib import Path

from shardwright.errors import BuildError

KINDS = ("pyxis", "apptainer")


def split_image(image: str) -> tuple[str, str]:
    """Return the kind and the name of an image.

    Raises:
        BuildError: The kind is unknown, or there is no name.
    """
    kind, _, name = image.partition(":")
    if kind not in KINDS or not name:
        raise BuildError(
            f"container {image!r}",
            found="no known kind of image",
            expected="pyxis:IMAGE or apptainer:IMAGE",
            next_step="correct SHARDWRIGHT_CONTAINER, or the `container` of the rule in the profile",
        )
    return kind, name


def mounts(arguments: list[str], folders: list[Path]) -> list[str]:
    """Return the folders a program needs to see: `folders`, and those of its absolute path arguments."""
    found = {folder.resolve() for folder in folders}
    for argument in arguments:
        if argument.startswith("/"):
            path = Path(argument)
            found.add(next(folder for folder in [path, *path.parents] if folder.is_dir()))
    kept = sorted(found - {Path("/")})
    return [str(path) for path in kept if not any(other in path.parents for other in kept)]


def container_command(image: str, command: list[str], folders: list[Path]) -> tuple[list[str], list[str]]:
    """Render `command` (a Python program: interpreter first) for inside `image`.

    Args:
        image: `pyxis:IMAGE` or `apptainer:IMAGE`.
        command: What to run; its interpreter is replaced by the image's `python3`.
        folders: Folders to mount beside those of absolute paths in the command.

    Returns:
        Options for srun (pyxis acts through srun alone), and the command itself.
    """
    kind, name = split_image(image)
    inner = ["python3", *command[1:]]
    seen = mounts(inner, folders)
    if kind == "pyxis":
        options = [f"--container-image={name}", "--container-mounts=" + ",".join(f"{p}:{p}" for p in seen)]
        return [*options, f"--container-workdir={Path.cwd()}", "--no-container-mount-home"], inner
    binds = [part for path in seen for part in ("--bind", path)]
    return [], ["apptainer", "exec", "--nv", "--no-home", *binds, "--pwd", str(Path.cwd()), name, *inner]
