"""Messages of ours, of urllib and of img2dataset 1.40 and 1.47 land in the right class (R13)."""

from __future__ import annotations

import pytest

from shardwright.failures import CLASSES, MEANING, TRANSIENT, classify, http_status

DOWNLOAD = {
    "HTTP Error 404: Not Found": "http_4xx",
    "HTTP Error 403: Forbidden": "http_4xx",
    "HTTP Error 429: Too Many Requests": "http_429",
    "HTTP Error 408: Request Timeout": "timeout",
    "HTTP Error 503: Service Unavailable": "http_5xx",
    "HTTP Error 302: The HTTP server returned a redirect error that would lead to an infinite loop."
    "\nThe last 30x error message was:\nFound": "redirect",
    "<urlopen error [Errno -2] Name or service not known>": "dns",
    "<urlopen error [Errno -3] Temporary failure in name resolution>": "dns",
    "<urlopen error [Errno -5] No address associated with hostname>": "dns",
    "<urlopen error [Errno 111] Connection refused>": "connect",
    "<urlopen error [Errno 104] Connection reset by peer>": "connect",
    "<urlopen error [Errno 113] No route to host>": "connect",
    "<urlopen error [Errno 101] Network is unreachable>": "connect",
    "<urlopen error [Errno 110] Connection timed out>": "timeout",
    "Remote end closed connection without response": "connect",
    "[Errno 104] Connection reset by peer": "connect",
    "timed out": "timeout",
    "The read operation timed out": "timeout",
    "<urlopen error timed out>": "timeout",
    "<urlopen error _ssl.c:980: The handshake operation timed out>": "timeout",
    "<urlopen error [SSL: CERTIFICATE_VERIFY_FAILED] certificate verify failed (_ssl.c:1006)>": "tls",
    "<urlopen error [SSL: SSLV3_ALERT_HANDSHAKE_FAILURE] sslv3 alert handshake failure (_ssl.c:992)>": "tls",
    "<urlopen error EOF occurred in violation of protocol (_ssl.c:997)>": "tls",
    "IncompleteRead(1024 bytes read, 512 more expected)": "incomplete",
    "unknown url type: 'www.example.com/a.jpg'": "bad_url",
    "<urlopen error unknown url type: htp>": "bad_url",
    "<urlopen error no host given>": "bad_url",
    "URL can't contain control characters. '/a b.jpg' (found at least ' ')": "bad_url",
    "'ascii' codec can't encode character '\\xe9' in position 5: ordinal not in range(128)": "bad_url",
    "expected string or bytes-like object": "bad_url",
    "Use of image disallowed by X-Robots-Tag directive": "disallowed",
    "hash mismatch": "hash_mismatch",
    "something new": "other",
    "": "other",
}
RESIZE = {
    "Image decoding error": "not_an_image",
    "OpenCV(4.14.0) /io/opencv/modules/imgcodecs/src/loadsave.cpp:1: error: (-215:Assertion failed) "
    "!buf.empty() in function 'imdecode_'\n": "not_an_image",
    "OpenCV(4.6.0) loadsave.cpp:77: error: (-215:Assertion failed) pixels <= CV_IO_MAX_IMAGE_PIXELS in "
    "function 'validateInputImageSize'\n": "too_many_pixels",
    "OpenCV(4.6.0) resize.cpp:4052: error: (-215:Assertion failed) inv_scale_x > 0": "unsupported",
    "image too small": "unsupported",
    "image area too large": "too_many_pixels",
    "aspect ratio too large": "unsupported",
    "list index out of range": "bad_face_boxes",
    "cannot convert float NaN to integer": "bad_face_boxes",
    "unsupported operand type(s) for *: 'NoneType' and 'int'": "bad_face_boxes",
}


@pytest.mark.parametrize(("message", "name"), DOWNLOAD.items())
def test_messages_of_the_download(message, name):
    assert classify("failed_to_download", message) == name


@pytest.mark.parametrize(("message", "name"), RESIZE.items())
def test_messages_of_the_resize(message, name):
    assert classify("failed_to_resize", message) == name


@pytest.mark.parametrize("name", CLASSES)
def test_our_own_messages_name_their_class(name):
    assert classify("failed_to_download", f"{name}: whatever timed out") == name


def test_http_status():
    assert http_status("HTTP Error 404: Not Found") == 404
    assert http_status("http_4xx: 403 Forbidden") == 403
    assert http_status("http_5xx: 503 Service Unavailable") == 503
    assert http_status("http_429: 429 Too Many Requests") == 429
    assert http_status("timed out") is None and http_status(None) is None


def test_the_set_is_closed_and_explained():
    assert set(MEANING) == set(CLASSES) and set(CLASSES) > TRANSIENT
    assert classify("failed_to_resize", None) == "other"
    with pytest.raises(ValueError, match="no failure class"):
        classify("success", None)
