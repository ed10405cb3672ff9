"""What img2dataset's Downloader calls for each body: the picture rules in their order."""

from __future__ import annotations

import io
from collections import Counter
from dataclasses import dataclass

import cv2

from shardwright.download import pictures
from shardwright.download.blur import blur_boxes, fill_boxes
from shardwright.download.boxes import BadBoxes, Box, clean_boxes, turn_boxes
from shardwright.download.fetch_error import FetchError
from shardwright.download.hashes import compare
from shardwright.download.settings import Content

_HIDE = {"strong": blur_boxes, "fill": fill_boxes}


@dataclass(frozen=True)
class Stored:
    """The picture that is stored, and the rules it took to get there."""

    jpeg: bytes
    size: tuple[int, int]
    original_size: tuple[int, int]
    boxes: list[Box]
    adjustments: list[str]


class PictureResizer:
    """Stands where img2dataset has its Resizer.

    Args:
        content: The picture settings.
    """

    def __init__(self, content: Content) -> None:
        self.content = content
        self.counts: Counter[str] = Counter()
        self.hashes: Counter[str] = Counter()
        self.last: Stored | None = None

    def __call__(self, stream: io.BytesIO, boxes: object = None) -> tuple:
        """Return jpeg, width, height, original width, original height, error message.

        `boxes` are face boxes, or a row of the column ANNOUNCED: face boxes and a hash.
        """
        self.last, announced = None, None
        try:
            if isinstance(boxes, dict):
                announced = compare(
                    stream.getvalue(), boxes["sha256"], self.content.sha256_policy == "strict"
                )
                boxes = boxes["face_bboxes"]
            self.last = self.store(stream.getvalue(), boxes)
        except (FetchError, BadBoxes, cv2.error) as error:
            self.hashes["mismatch"] += getattr(error, "kind", "") == "hash_mismatch"
            return None, None, None, None, None, _message(error)
        self.counts.update(self.last.adjustments)
        if announced:
            self.hashes[announced] += 1
        return (self.last.jpeg, *self.last.size, *self.last.original_size, None)

    def store(self, data: bytes, boxes: object) -> Stored:
        """Apply the rules to one file.

        Raises:
            FetchError: The picture is refused.
            BadBoxes: Its face boxes are.
        """
        content = self.content
        faces = clean_boxes(boxes)
        header = pictures.read_header(data)
        if header.width * header.height > content.max_pixels:
            raise FetchError("too_many_pixels", f"more than {content.max_pixels}")
        pixels = pictures.decode(data, header, content.image_size_px if content.decode == "reduced" else 0)
        adjustments = ["first_frame"] if header.animated else []
        if header.mode in ("CMYK", "YCCK"):
            adjustments.append("cmyk_to_rgb")
        if pixels.dtype != "uint8":
            pixels = pictures.to_8_bit(pixels)
            adjustments.append("16_bit_scaled")
        if pixels.ndim == 3 and pixels.shape[2] == 4:
            pixels = pictures.matte_on_white(pixels)
            adjustments.append("alpha_on_white")
        original = (header.width, header.height)
        if header.orientation != 1:
            pixels = pictures.orient(pixels, header.orientation)
            adjustments.append(f"exif_orientation_{header.orientation}")
            original = original[::-1] if header.orientation >= 5 else original
            if content.face_boxes_frame == "stored":
                faces = turn_boxes(faces, header.orientation)
        size = pictures.target_size(
            *original, content.image_size_px, content.resize_mode, content.resize_only_if_bigger
        )
        pixels = pictures.resize(pixels, *size)
        if faces:
            pixels = _HIDE[content.blur](pixels, faces)
            adjustments.append("faces_hidden")
        return Stored(
            pictures.encode_jpeg(pixels, content.encode_quality), size, original, faces, adjustments
        )


def _message(error: Exception) -> str:
    if isinstance(error, BadBoxes):
        return f"bad_face_boxes: {error}"
    if isinstance(error, cv2.error):
        return f"other: OpenCV, {error.err or 'no reason given'}"
    return str(error)
