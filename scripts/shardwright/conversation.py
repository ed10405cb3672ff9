"""The training example of one sample: its conversation and where it came from, as JSON."""

from __future__ import annotations

import json
from typing import Any

_ENCODER = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"), allow_nan=False)


class ConversationMaker:
    """Turns the raw metadata of a sample into the bytes of its `.conversation.json`.

    Args:
        repo: Repository of the metadata.
        revision: Its immutable revision.
        prompt: The user's turn, the same for every sample.
    """

    def __init__(self, repo: str, revision: str, prompt: str) -> None:
        self.settings = {"repo": repo, "revision": revision, "prompt": prompt}
        self._origin = {"dataset": repo, "revision": revision}
        self._user = {"role": "user", "content": [{"type": "image"}, {"type": "text", "text": prompt}]}

    def make(self, metadata: dict[str, Any]) -> bytes:
        """Return the JSON of one sample.

        A lone surrogate, which UTF-8 cannot carry, is written as the JSON escape it was read from.

        Raises:
            ValueError: The metadata holds NaN or an infinity.
        """
        answer = {"role": "assistant", "content": [{"type": "text", "text": metadata["caption"]}]}
        boxes = metadata.get("face_bboxes")
        source = self._origin | {
            "uid": metadata["uid"],
            "url": metadata.get("url"),
            "source_key": metadata.get("key"),
            "download_status": metadata.get("status"),
            "original_download_sha256": metadata.get("sha256"),
            "face_bbox_count": None if boxes is None else len(boxes),
            "width": metadata.get("width"),
            "height": metadata.get("height"),
            "original_width": metadata.get("original_width"),
            "original_height": metadata.get("original_height"),
        }
        example = {"conversation": [self._user, answer], "source": source}
        return _ENCODER.encode(example).encode("utf-8", errors="backslashreplace")
