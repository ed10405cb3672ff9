"""Why a URL gave no picture: a closed set of failure classes, from our messages or img2dataset's.

Our fetcher writes messages as `<class>: <detail>`. Shards made by plain img2dataset (or with the
historic environment) carry the texts of urllib and OpenCV; `classify` understands both. Standard
library only.
"""

from __future__ import annotations

import re

# Class → what it means, in the order reports show them.
MEANING = {
    "dns": "the host name did not resolve",
    "connect": "no connection, or it was cut before an answer came",
    "tls": "the certificate or the TLS handshake was refused",
    "timeout": "no answer in time",
    "incomplete": "the body ended before its announced length",
    "http_429": "the server asked for fewer requests",
    "http_5xx": "the server failed (5xx)",
    "http_4xx": "the server refused or has lost the picture (4xx)",
    "redirect": "too many redirects, a loop, or a redirect to nowhere usable",
    "bad_url": "not a http or https URL",
    "private_address": "the host is a private, loopback or link-local address",
    "disallowed": "the owner opted out (X-Robots-Tag)",
    "too_large": "more bytes than download.max_bytes",
    "too_many_pixels": "more pixels than download.max_pixels",
    "not_an_image": "the body is no picture that the decoders know",
    "truncated": "the picture ends early or is damaged",
    "unsupported": "a picture of a kind with no defined rule (floating point, too thin)",
    "hash_mismatch": "not the bytes that the metadata announced",
    "bad_face_boxes": "face boxes that cannot be trusted, so the faces cannot be hidden",
    "other": "none of the above",
}
CLASSES = tuple(MEANING)

# Worth another try some time later; the rest would fail again.
TRANSIENT = frozenset({"dns", "connect", "timeout", "incomplete", "http_429", "http_5xx"})

_HTTP_STATUS = re.compile(r"\b(?:HTTP Error|http_[45]xx:|http_429:|redirect: HTTP) ?(\d{3})\b")
_OWN = re.compile(r"([a-z0-9_]+): ")

# First match wins; texts of urllib, ssl, http.client, img2dataset, OpenCV.
_FOREIGN = tuple(
    (re.compile(pattern, re.IGNORECASE), name)
    for pattern, name in (
        (r"infinite loop|redirect", "redirect"),
        (r"X-Robots-Tag", "disallowed"),
        (r"CERTIFICATE|\[SSL|SSL:|tlsv1|ssl3|doesn't match|unexpected_eof|violation of protocol", "tls"),
        (r"timed out|timeout", "timeout"),
        (r"Errno -[2358]\]|Name or service not known|name resolution|nodename nor servname", "dns"),
        (r"No address associated|label (too long|empty)|encoding with 'idna'", "dns"),
        (r"IncompleteRead|chunk", "incomplete"),
        (r"unknown url type|no host given|control characters|nonnumeric port|Invalid URL", "bad_url"),
        (r"codec can't encode|Invalid IPv6|urlopen error (ftp|file)", "bad_url"),
        (r"'NoneType' object has no attribute|expected string", "bad_url"),
        (
            r"refused|reset by peer|unreachable|No route|Remote end closed|Broken pipe|BadStatusLine",
            "connect",
        ),
        (r"Errno (32|10[0-9]|11[0-3])\]|Tunnel connection failed|Network is down|HTTP/", "connect"),
        (r"hash mismatch", "hash_mismatch"),
        (r"image area too large|CV_IO_MAX_IMAGE|validateInputImageSize|pixels <=", "too_many_pixels"),
        (r"image too small|aspect ratio too large|dsize|inv_scale", "unsupported"),
        (r"truncated|premature", "truncated"),
        (r"Image decoding error|buf\.empty|imdecode|cannot identify", "not_an_image"),
    )
)
# What img2dataset 1.40 and 1.47 say when a face box has too few values, a NaN or a null in it.
_BOX_TEXTS = re.compile(
    r"list index out of range|float NaN|infinity to integer|unsupported operand|not subscript"
)


def http_status(message: str | None) -> int | None:
    """Return the HTTP status code that a failure message names, if it names one."""
    found = _HTTP_STATUS.search(message or "")
    return int(found.group(1)) if found else None


def _http_class(status: int) -> str:
    if status == 429:
        return "http_429"
    if status == 408:
        return "timeout"
    if 300 <= status < 400:
        return "redirect"
    return "http_5xx" if status >= 500 else "http_4xx"


def classify(status: str, error_message: str | None) -> str:
    """Name the class of one failed row of a raw parquet.

    Args:
        status: `failed_to_download` or `failed_to_resize`.
        error_message: The message beside it; may be null.

    Returns:
        One of CLASSES.

    Raises:
        ValueError: The row is a success.
    """
    if status == "success":
        raise ValueError("a success has no failure class")
    message = error_message or ""
    own = _OWN.match(message)
    if own and own.group(1) in MEANING:
        return own.group(1)
    code = http_status(message)
    if code is not None:
        return _http_class(code)
    if status == "failed_to_resize" and _BOX_TEXTS.search(message):
        return "bad_face_boxes"
    return next((name for pattern, name in _FOREIGN if pattern.search(message)), "other")
