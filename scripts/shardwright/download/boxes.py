"""Face boxes: what is repaired, what is refused, and where a box goes when a picture is turned.

A box is `[x_min, y_min, x_max, y_max]` as fractions of the picture's width and height. Standard
library only.
"""

from __future__ import annotations

import math
from typing import Any

Box = list[float]

# Detectors place corners slightly outside the picture; coordinates beyond this are not fractions.
MAX_OVERSHOOT = 1.0

# EXIF orientation → where the point (x, y) of the stored picture is shown.
_TURN = {
    1: lambda x, y: (x, y),
    2: lambda x, y: (1 - x, y),
    3: lambda x, y: (1 - x, 1 - y),
    4: lambda x, y: (x, 1 - y),
    5: lambda x, y: (y, x),
    6: lambda x, y: (1 - y, x),
    7: lambda x, y: (1 - y, 1 - x),
    8: lambda x, y: (y, 1 - x),
}


class BadBoxes(ValueError):
    """Boxes that cannot be trusted: the sample must be dropped, since its faces cannot be hidden."""


def _clean_box(box: Any) -> Box:
    if not isinstance(box, (list, tuple)) or len(box) != 4:
        raise BadBoxes(f"{len(box) if isinstance(box, (list, tuple)) else 'no list of'} values in a box of 4")
    if not all(isinstance(v, (int, float)) and not isinstance(v, bool) for v in box):
        raise BadBoxes("a box with a value that is no number")
    values = [float(value) for value in box]
    if not all(math.isfinite(value) for value in values):
        raise BadBoxes("a box with NaN or infinity")
    if any(value < -MAX_OVERSHOOT or value > 1 + MAX_OVERSHOOT for value in values):
        raise BadBoxes("a box in pixels, not in fractions of the picture")
    x0, y0, x1, y1 = (min(max(value, 0.0), 1.0) for value in values)
    return [min(x0, x1), min(y0, y1), max(x0, x1), max(y0, y1)]


def clean_boxes(boxes: Any) -> list[Box]:
    """Return usable boxes: null is none, corners in order, clipped to the picture.

    Raises:
        BadBoxes: A box has not four finite numbers, or is in pixels.
    """
    if boxes is None:
        return []
    if not isinstance(boxes, (list, tuple)):
        raise BadBoxes("not a list of boxes")
    return [_clean_box(box) for box in boxes]


def turn_boxes(boxes: list[Box], orientation: int) -> list[Box]:
    """Return the boxes of a stored picture as they lie once its EXIF orientation is applied."""
    turned = []
    for x0, y0, x1, y1 in boxes:
        (ax, ay), (bx, by) = _TURN[orientation](x0, y0), _TURN[orientation](x1, y1)
        turned.append([min(ax, bx), min(ay, by), max(ax, bx), max(ay, by)])
    return turned
