"""The training example of one sample: its conversation and where it came from, as JSON."""

from __future__ import annotations

import json
from typing import Any

_encode = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"), allow_nan=False).encode


def _to_json(value: Any) -> str:
    return str(value) if type(value) is int else _encode(value)  # quick for whole numbers as for text


class ConversationMaker:
    """Turns the raw metadata of a sample into the bytes of its `.conversation.json`.

    Args:
        repo: Repository of the metadata.
        revision: Its immutable revision.
        prompt: The user's turn, the same for every sample.
    """

    def __init__(self, repo: str, revision: str, prompt: str) -> None:
        self.settings = {"repo": repo, "revision": revision, "prompt": prompt}
        prompt, repo, revision = (_encode(text).replace("%", "%%") for text in (prompt, repo, revision))
        self._format = (
            '{"conversation":[{"role":"user","content":[{"type":"image"},{"type":"text","text":'
            f"{prompt}}}]}},"
            '{"role":"assistant","content":[{"type":"text","text":%s}]}],'
            f'"source":{{"dataset":{repo},"revision":{revision},'
            '"uid":%s,"url":%s,"source_key":%s,"download_status":%s,"original_download_sha256":%s,'
            '"face_bbox_count":%s,"width":%s,"height":%s,"original_width":%s,"original_height":%s}}'
        )

    def make(self, metadata: dict[str, Any]) -> bytes:
        """Return the JSON of one sample.

        A lone surrogate, which UTF-8 cannot carry, is written as the JSON escape it was read from.

        Raises:
            ValueError: The metadata holds NaN or an infinity.
        """
        boxes = metadata.get("face_bboxes")
        values = (
            metadata["caption"],
            metadata["uid"],
            *map(metadata.get, ("url", "key", "status", "sha256")),
            None if boxes is None else len(boxes),
            *map(metadata.get, ("width", "height", "original_width", "original_height")),
        )
        text = self._format % tuple(map(_to_json, values))
        return text.encode("utf-8", errors="backslashreplace")
