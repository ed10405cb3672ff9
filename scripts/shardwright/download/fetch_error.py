"""The failure of one URL, with its class."""

from __future__ import annotations

from shardwright.failures import TRANSIENT


class FetchError(Exception):
    """`str()` gives `<class>: <detail>`, the message that the raw parquet carries.

    Args:
        kind: One of `shardwright.failures.CLASSES`.
        detail: Without host names or numbers of its own, so that equal faults count together.
        retry_after_s: How long the server asked us to wait, if it did.
        final: Asking again at once would give the same answer.
    """

    def __init__(self, kind: str, detail: str, retry_after_s: float = 0.0, final: bool = False) -> None:
        super().__init__(f"{kind}: {detail}")
        self.kind = kind
        self.retry_after_s = retry_after_s
        self.final = final or kind not in TRANSIENT
