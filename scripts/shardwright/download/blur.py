"""Hide faces at least as well as DataComp did (img2dataset 1.40.0); later versions hide far less."""

from __future__ import annotations

import cv2
import numpy as np

from shardwright.download.boxes import Box

_SIGMA_PER_SIDE = 0.1
_MIN_SIGMA = 1.0
# From this strength on the blur runs on a smaller copy; averaging only adds to it.
_SHRINK_FROM_SIGMA = 8.0
_SIGMA_WHEN_SHRUNK = 4.0


def _pixel_boxes(boxes: list[Box], width: int, height: int) -> np.ndarray:
    scaled = np.asarray(boxes, np.float64) * (width, height, width, height)
    return np.concatenate([np.floor(scaled[:, :2]), np.ceil(scaled[:, 2:])], axis=1).astype(int)


def _blurred(pixels: np.ndarray, sigma: float) -> np.ndarray:
    if sigma < _SHRINK_FROM_SIGMA:
        return cv2.GaussianBlur(pixels, (0, 0), sigma)
    height, width = pixels.shape[:2]
    divisor = int(sigma / _SIGMA_WHEN_SHRUNK)
    small = (max(1, width // divisor), max(1, height // divisor))
    shrunk = cv2.resize(pixels, small, interpolation=cv2.INTER_AREA)
    shrunk = cv2.GaussianBlur(shrunk, (0, 0), sigma / divisor)
    return cv2.resize(shrunk, (width, height), interpolation=cv2.INTER_LINEAR)


def blur_boxes(pixels: np.ndarray, boxes: list[Box]) -> np.ndarray:
    """Return the picture with every box blurred; pixels well outside the boxes keep their values.

    Sigma is a tenth of the longest side of all boxes, as in img2dataset 1.40.0. The mask reaches
    two tenths of a box's side beyond it and is soft at its edge, so that the box itself is blurred
    in full.

    Args:
        pixels: 8-bit, one or three channels.
        boxes: Fractions of this picture's width and height, corners in order.
    """
    if not boxes:
        return pixels
    height, width = pixels.shape[:2]
    corners = _pixel_boxes(boxes, width, height)
    sides = np.maximum(corners[:, 2] - corners[:, 0], corners[:, 3] - corners[:, 1])
    sigma = max(_MIN_SIGMA, _SIGMA_PER_SIDE * float(sides.max()))
    margins = np.ceil(_SIGMA_PER_SIDE * sides + sigma).astype(int)
    pad = int(np.ceil(3 * sigma))
    low = np.maximum(corners[:, :2] - margins[:, None], 0)
    high = np.minimum(corners[:, 2:] + margins[:, None], (width, height))
    left, top = np.maximum(low.min(axis=0) - pad, 0)
    right, bottom = np.minimum(high.max(axis=0) + pad, (width, height))
    mask = np.zeros((bottom - top, right - left), np.float32)
    for (x0, y0), (x1, y1) in zip(low - (left, top), high - (left, top), strict=True):
        mask[y0:y1, x0:x1] = 1
    mask = _blurred(mask, sigma)
    region = pixels[top:bottom, left:right].astype(np.float32)
    if region.ndim == 3:
        mask = mask[:, :, None]
    mixed = region + (_blurred(region, sigma) - region) * mask
    result = pixels.copy()
    result[top:bottom, left:right] = np.rint(mixed).clip(0, 255).astype(np.uint8)
    return result


def fill_boxes(pixels: np.ndarray, boxes: list[Box]) -> np.ndarray:
    """Return the picture with every box, and a tenth of its side around it, in its mean colour."""
    height, width = pixels.shape[:2]
    result = pixels.copy()
    for x0, y0, x1, y1 in _pixel_boxes(boxes, width, height) if boxes else ():
        margin = int(np.ceil(_SIGMA_PER_SIDE * max(x1 - x0, y1 - y0)))
        area = result[max(0, y0 - margin) : y1 + margin, max(0, x0 - margin) : x1 + margin]
        if area.size:
            area[...] = np.rint(area.mean(axis=(0, 1))).astype(np.uint8)
    return result
