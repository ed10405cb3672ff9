"""Where pinned files come from: the hub, or a folder that mirrors a repository.

Standard library only.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from urllib.parse import unquote, urlsplit

from shardwright.files import find_path

HUB = "hub"


class TransientFault(Exception):
    """A fault that another try may not meet: a dropped connection, a 5xx, a full queue.

    Args:
        text: What happened.
        wait_s: How long the sender asked us to stay away, if it did.
    """

    def __init__(self, text: str, wait_s: float = 0.0) -> None:
        super().__init__(text)
        self.wait_s = wait_s


@dataclass(frozen=True)
class Source:
    """Where files come from.

    Args:
        place: `hub`, or a local folder or file:// URL that mirrors the repository's files.
        repo: owner/name on the hub.
        revision: 40 hex digits.
        repo_type: `dataset` or `model`.
        subfolder: Folder inside the repository (or mirror) that holds the files; empty for none.
    """

    place: str
    repo: str
    revision: str
    repo_type: str
    subfolder: str = ""

    @property
    def is_hub(self) -> bool:
        """Whether the hub is asked (and not a folder)."""
        return self.place == HUB

    @property
    def folder(self) -> Path:
        """The mirror folder."""
        if self.place.startswith("file://"):
            return Path(unquote(urlsplit(self.place).path))
        return find_path(self.place)

    def path_of(self, file: str) -> str:
        """The path of one file inside the repository or the mirror."""
        return str(PurePosixPath(self.subfolder, file))

    def describe(self, file: str) -> str:
        """Name one file of this source for a message."""
        path = self.path_of(file)
        return f"{self.repo}@{self.revision}/{path}" if self.is_hub else str(self.folder / path)
