"""A large file that is on the disk soon after its last byte is written."""

from __future__ import annotations

import os
import queue
import threading
from pathlib import Path

SYNC_BYTES = 32 << 20


class DiskWriter:
    """Writes a file while a thread syncs what was written before.

    One sync at the end would leave the disk idle while the file is made, and the program idle while
    the disk works: for 400 MB, half a second of each.

    Args:
        path: The file to write; what it held is lost.
    """

    def __init__(self, path: Path) -> None:
        self._handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o666)
        self._unsynced = 0
        self._is_open = True
        self._error: OSError | None = None
        self._orders: queue.SimpleQueue[bool] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._sync, daemon=True)
        self._thread.start()

    def write(self, data: bytes) -> None:
        """Append all of `data`.

        Raises:
            OSError: The disk is full, or failed now or in a sync before.
        """
        if self._error:
            raise self._error
        left = memoryview(data)
        while left:
            left = left[os.write(self._handle, left) :]
        self._unsynced += len(data)
        if self._unsynced >= SYNC_BYTES:
            self._orders.put(True)
            self._unsynced = 0

    def finish(self) -> None:
        """Close the file; the last bytes are not synced yet.

        Raises:
            OSError: A sync failed.
        """
        self.close()
        if self._error:
            raise self._error

    def close(self) -> None:
        """Close the file, finished or not."""
        if self._is_open:
            self._is_open = False
            self._orders.put(False)
            self._thread.join()
            os.close(self._handle)

    def _sync(self) -> None:
        try:
            while self._orders.get():
                os.fdatasync(self._handle)
        except OSError as error:
            self._error = error
