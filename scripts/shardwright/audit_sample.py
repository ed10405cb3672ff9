"""One sample of a raw tar: its verdict, and what the audit records of it."""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from shardwright import verdicts
from shardwright.captions import clean_caption
from shardwright.errors import BuildError
from shardwright.jpeg import BadJpeg, JpegFacts, probe_jpegs
from shardwright.rawshard import RawSample

_UID = re.compile(r"[0-9a-f]{32}", re.ASCII)
_UPRIGHT = '"Image Orientation": "Horizontal (normal)"'
_ORIENTATION = '"Image Orientation": "'
_TURNED_BACK = "exif_orientation_"


@dataclass(frozen=True)
class Expectations:
    """What the config says of this build's samples.

    Args:
        face_boxes: The metadata has a face_bboxes column, so every sample must have a list.
    """

    face_boxes: bool = True


class Judged(NamedTuple):
    """The audit of one sample; what could not be read is null."""

    sample: RawSample
    verdict: str
    detail: str
    uid: str | None
    jpg_sha256: str
    json_sha256: str
    caption_chars: int | None
    caption_clean: bool
    num_face_boxes: int
    adjustments: tuple[str, ...]
    sideways: bool
    stated_size: tuple[Any, Any]
    jpeg: JpegFacts | None


class _Fault(Exception):
    """The first fault of a sample's content."""

    def __init__(self, verdict: str, detail: str) -> None:
        super().__init__(detail)
        self.verdict = verdict


def _show(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."


def _parse_metadata(data: bytes) -> dict[str, Any]:
    try:
        metadata = json.loads(data.decode("utf-8"))
    except (ValueError, RecursionError) as error:
        raise _Fault(verdicts.METADATA_NOT_JSON, f"{type(error).__name__}: {error}") from None
    if not isinstance(metadata, dict):
        raise _Fault(verdicts.METADATA_NOT_JSON, f"a JSON {type(metadata).__name__}")
    return metadata


def _check_text(key: str, caption: str | None, metadata: dict[str, Any], expected: Expectations) -> None:
    """Raise the first fault of the text members; the order is that of `verdicts.REASONS`."""
    if metadata.get("key") != key:
        raise _Fault(verdicts.KEY_MISMATCH, f"key {_show(metadata.get('key'))}")
    if metadata.get("status") != "success":
        raise _Fault(verdicts.BAD_STATUS, f"status {_show(metadata.get('status'))}")
    if metadata.get("caption") != caption:
        raise _Fault(
            verdicts.CAPTION_MISMATCH, f"TXT {_show(caption)}, metadata {_show(metadata.get('caption'))}"
        )
    if not isinstance(metadata.get("face_bboxes", None if expected.face_boxes else []), list):
        raise _Fault(verdicts.BAD_FACE_BBOXES, f"face_bboxes {_show(metadata.get('face_bboxes'))}")
    if not caption or caption.isspace():
        raise _Fault(verdicts.BLANK_CAPTION, f"caption {_show(caption)}")


def _adjustments(metadata: dict[str, Any]) -> tuple[str, ...]:
    """What the download did to the picture, where it recorded that (`cmyk_to_rgb`, `faces_hidden`)."""
    names = metadata.get("adjustments")
    return tuple(map(str, names)) if isinstance(names, list) else ()


def _is_turned(exif: Any) -> bool:
    """img2dataset keeps the original's EXIF as text; its orientation says whether it lies on its side."""
    return isinstance(exif, str) and _ORIENTATION in exif and _UPRIGHT not in exif


class Payload(NamedTuple):
    """A sample and the bytes of its members."""

    sample: RawSample
    jpg: bytes
    json: bytes
    txt: bytes


class _Text(NamedTuple):
    """What the text members say, as far as they could be read; their first fault's verdict and detail."""

    caption: str | None
    metadata: dict[str, Any]
    uid: str | None
    fault: tuple[str, str] | None


def _judge_text(payload: Payload, expected: Expectations) -> _Text:
    caption, uid = None, None
    metadata: dict[str, Any] = {}
    fault = None
    try:
        try:
            caption = payload.txt.decode("utf-8")
        except UnicodeDecodeError as error:
            raise _Fault(verdicts.CAPTION_NOT_UTF8, str(error)) from None
        metadata = _parse_metadata(payload.json)
        uid = metadata.get("uid")
        if not isinstance(uid, str) or not _UID.fullmatch(uid):
            uid, bad_uid = None, uid
            raise _Fault(verdicts.BAD_UID, f"uid {_show(bad_uid)}")
        _check_text(payload.sample.key, caption, metadata, expected)
    except _Fault as found:
        # The exception itself, if it were kept, would keep the bytes of all samples beside this one.
        fault = found.verdict, str(found)
    return _Text(caption, metadata, uid, fault)


def _judge(payload: Payload, text: _Text, probed: JpegFacts | BadJpeg | None) -> Judged:
    caption, metadata, uid, fault = text
    if isinstance(probed, BadJpeg):
        fault, probed = (verdicts.BAD_JPEG, str(probed)), None
    boxes = metadata.get("face_bboxes")
    adjustments = _adjustments(metadata)
    return Judged(
        payload.sample,
        *(fault or (verdicts.KEEP, "")),
        uid,
        hashlib.sha256(payload.jpg).hexdigest(),
        hashlib.sha256(payload.json).hexdigest(),
        None if caption is None else len(caption),
        caption is None or clean_caption(caption, max_chars=len(caption)) == caption,
        len(boxes) if isinstance(boxes, list) else 0,
        adjustments,
        _is_turned(metadata.get("exif")) and not any(name.startswith(_TURNED_BACK) for name in adjustments),
        (metadata.get("width"), metadata.get("height")),
        probed,
    )


def judge(payloads: Sequence[Payload], expected: Expectations) -> list[Judged]:
    """Look for the faults of samples, in the order that decides the reason counted.

    Args:
        payloads: The samples; their JPEGs are decoded together.
        expected: What the config says of this build.
    """
    texts = [_judge_text(payload, expected) for payload in payloads]
    probed = iter(
        probe_jpegs([payload.jpg for payload, text in zip(payloads, texts, strict=True) if not text.fault])
    )
    return [
        _judge(payload, text, None if text.fault else next(probed))
        for payload, text in zip(payloads, texts, strict=True)
    ]


def read_payload(descriptor: int, sample: RawSample) -> Payload:
    """Read a sample from the open tar, in one system call.

    Raises:
        BuildError: The tar became shorter while it was read.
    """
    start, end = sample.span
    data = os.pread(descriptor, end - start, start)
    if len(data) != end - start:
        raise BuildError(
            f"sample {sample.key}",
            found=f"{len(data)} bytes at byte {start} of the tar",
            expected=f"{end - start}, as its headers say",
            next_step="something changed the tar while it was read: run the same command again",
        )
    return Payload(sample, *(data[at - start : at - start + size] for _, at, size in sample[1:]))


def judge_samples(descriptor: int, samples: Iterable[RawSample], expected: Expectations) -> list[Judged]:
    """Read samples from the open tar and judge them.

    Raises:
        BuildError: The tar became shorter while it was read.
    """
    return judge([read_payload(descriptor, sample) for sample in samples], expected)
