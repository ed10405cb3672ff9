"""What to do about each class of failed download; downloads and the audit give the same advice.

Apart from failures.py, which shapes what is downloaded: an edit here fetches nothing again.
"""

from __future__ import annotations

ADVICE = {
    "dns": "the resolver may be overloaded: lower download.thread_count or the number of jobs, "
    "or use a caching resolver",
    "connect": "the network or a proxy may cut connections: probe a few of the URLs from this machine",
    "tls": "look at the machine's clock and CA certificates, or at a proxy that re-signs traffic",
    "timeout": "the network may be saturated: lower download.thread_count or the number of jobs, "
    "or raise download.timeout_s",
    "incomplete": "the network or a proxy may cut transfers: lower download.thread_count",
    "http_429": "too many requests to a few hosts: lower download.thread_count or the number of jobs",
    "http_5xx": "the servers were in trouble: retry later",
    "http_4xx 403": "the hosts refuse the client: look at download.user_agent and at a site proxy",
    "http_4xx 407": "a site proxy wants credentials: look at download.proxy",
    "http_4xx 401": "the hosts want credentials, or a site proxy answers in their place",
    "http_4xx": "the pictures are gone: nothing to mend",
    "private_address": "a proxy or a resolver may answer for every host; download.allow_private_addresses "
    "is for test servers only",
    "too_large": "download.max_bytes may be too low for this set",
    "too_many_pixels": "download.max_pixels may be too low for this set",
    "not_an_image": "hosts answer with web pages (log-in, consent, captive portal): look at some URLs",
    "hash_mismatch": "if nearly all mismatch, the column or the algorithm is the wrong one",
    "bad_face_boxes": "look at the face_bboxes column: are its boxes fractions of width and height?",
    "other": "look at error_message in the raw parquets",
}
