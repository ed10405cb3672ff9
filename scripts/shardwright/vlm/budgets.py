"""What a sample may cost, where the processor reads it, and by which named rule a sample is dropped."""

from __future__ import annotations

import io
from collections.abc import Sequence
from dataclasses import dataclass
from math import inf
from typing import Any

from PIL import Image

from shardwright.errors import BuildError

# Why a sample is dropped.
BAD_CONVERSATION = "bad_conversation"
UNSUPPORTED_CONTENT = "unsupported_content"
NO_IMAGE = "no_image"
TOO_MANY_IMAGES = "too_many_images"
IMAGE_COUNT_MISMATCH = "image_count_mismatch"
UNDECODABLE_IMAGE = "undecodable_image"
EXTREME_ASPECT_RATIO = "extreme_aspect_ratio"
EMPTY_ANSWER = "empty_answer"
CONTROL_TOKEN = "control_token"
ANSWER_NOT_EXACT = "answer_not_exact"
TOO_MANY_VISUAL_TOKENS = "too_many_visual_tokens"
TOO_LONG = "too_long"
LOADER_ERROR = "loader_error"

# What is changed about a sample that is kept.
NEUTRALISED_CONTROL_TOKEN = "neutralised_control_token"
SHRUNK_TO_VISUAL_BUDGET = "shrunk_to_visual_budget"
SHRUNK_TO_SEQ_LENGTH = "shrunk_to_seq_length"
THINNED_FRAMES = "thinned_frames"


class Dropped(Exception):
    """This sample cannot be trained on; the rule that says so, and what it saw."""

    def __init__(self, reason: str, detail: str) -> None:
        super().__init__(f"{reason} ({detail})")
        self.reason = reason


@dataclass(frozen=True)
class Limits:
    """The config's `data` section (see config/schema/data.yaml)."""

    seq_length: int
    min_pixels: int
    max_pixels: int
    max_num_images: int
    max_num_frames: int
    max_visual_tokens: int
    max_aspect_ratio: float
    control_tokens: str
    shuffle_buffer_size: int
    max_samples_per_sequence: int

    def __post_init__(self) -> None:
        if self.min_pixels > self.max_pixels:
            raise BuildError(
                "config key data.min_pixels",
                found=f"{self.min_pixels}, above data.max_pixels {self.max_pixels}",
                expected="min_pixels at most max_pixels",
                next_step="lower data.min_pixels or raise data.max_pixels",
            )


def num_visual_tokens(images: Any, size: tuple[int, int], min_pixels: int, max_pixels: int) -> int:
    """Tokens that an image of (width, height) becomes, by the image processor's own arithmetic."""
    limits = {"min_pixels": min_pixels, "max_pixels": max_pixels}
    return images.get_number_of_image_patches(size[1], size[0], limits) // images.merge_size**2


def set_pixel_limits(processor: Any, limits: Limits) -> None:
    """Set the pixel limits where the image processor reads them, and prove it on probe images.

    Arguments named `max_pixels` are accepted and ignored by some versions (R38): only the `size`
    keys count. One probe has twice `max_pixels`, the other a quarter of `min_pixels`.

    Raises:
        BuildError: A probe image's grid is not the one that the limits ask for.
    """
    images = processor.image_processor
    images.size = {"shortest_edge": limits.min_pixels, "longest_edge": limits.max_pixels}
    token_pixels = (images.patch_size * images.merge_size) ** 2
    most, least = max(1, limits.max_pixels // token_pixels), limits.min_pixels // token_pixels
    for area, low, high in ((2 * limits.max_pixels, 1, most), (limits.min_pixels / 4, least, inf)):
        size = (max(1, round((area * 1.5) ** 0.5)), max(1, round((area / 1.5) ** 0.5)))
        grid = images([Image.new("RGB", size)], return_tensors="pt")["image_grid_thw"]
        found = int(grid.prod()) // images.merge_size**2
        expected = num_visual_tokens(images, size, limits.min_pixels, limits.max_pixels)
        if found != expected or not low <= found <= high:
            raise BuildError(
                f"{type(images).__name__}",
                found=f"{found} tokens for a probe image of {size[0]} × {size[1]} px",
                expected=f"{expected}, and {least} to {most} tokens from data.min_pixels and data.max_pixels",
                next_step="this version of transformers reads the limits elsewhere; pin the one in envs/",
            )


def open_image(data: bytes, limits: Limits) -> Image.Image:
    """Decode an image to its last byte, as RGB.

    Raises:
        Dropped: It cannot be decoded, or is too thin a strip for the processor (R22).
    """
    try:
        with Image.open(io.BytesIO(data)) as opened:
            image = opened.convert("RGB")
    except (OSError, SyntaxError, ValueError, Image.DecompressionBombError) as error:
        raise Dropped(UNDECODABLE_IMAGE, type(error).__name__) from error
    ratio = max(image.size) / min(image.size)
    if ratio > limits.max_aspect_ratio:
        raise Dropped(EXTREME_ASPECT_RATIO, f"{image.width} × {image.height} px is {ratio:.0f} to 1")
    return image


def fit_pixels(
    images: Any, sizes: Sequence[tuple[int, int]], num_text_tokens: int, limits: Limits
) -> tuple[int, str | None]:
    """Find the pixel limit under which these images keep within both token budgets.

    Args:
        images: The image processor.
        sizes: (width, height) of each image.
        num_text_tokens: Tokens of the sample that are not an image's.
        limits: The budgets.

    Returns:
        The largest pixel limit that fits, and the name of the adjustment if it is not `max_pixels`.

    Raises:
        Dropped: Even at `min_pixels` there are too many tokens.
    """

    def total(max_pixels: int) -> int:
        return sum(num_visual_tokens(images, size, limits.min_pixels, max_pixels) for size in sizes)

    room = limits.seq_length - num_text_tokens
    by_length = room < limits.max_visual_tokens
    budget = min(room, limits.max_visual_tokens)
    if total(limits.max_pixels) <= budget:
        return limits.max_pixels, None
    least = total(limits.min_pixels)
    if least > budget:
        told = f"{least} visual tokens at min_pixels"
        if by_length:
            raise Dropped(TOO_LONG, f"{num_text_tokens} text tokens and {told}")
        raise Dropped(TOO_MANY_VISUAL_TOKENS, told)
    fits, breaks = limits.min_pixels, limits.max_pixels
    while breaks - fits > 1:
        middle = (fits + breaks) // 2
        fits, breaks = (middle, breaks) if total(middle) <= budget else (fits, middle)
    return fits, SHRUNK_TO_SEQ_LENGTH if by_length else SHRUNK_TO_VISUAL_BUDGET
