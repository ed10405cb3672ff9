"""What fetch_metadata accepts: rows, columns, mirrors in the hub's place; what it keeps (R01–R03)."""

from __future__ import annotations

import pyarrow as pa
import pytest

from fetch_helpers import COLUMNS, GOOD, NUM_ROWS, REPO, REVISION, fetch, parquet_bytes, refused, table
from hub_server import HubServer, sha256


@pytest.fixture
def hub():
    with HubServer() as server:
        server.add("dataset", REPO, REVISION, {"a.parquet": GOOD}, lfs=True)
        yield server


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (table(2999), "found 2999 rows; expected 3000 rows (pinned)"),
        (table(text=None), "found no column 'text'; it has uid, url, face_bboxes"),
        (table(uid=pa.array(range(NUM_ROWS))), "found column 'uid' of type int64; expected the uid"),
        (
            table(face_bboxes=pa.array([[0.1]] * NUM_ROWS)),
            "found column 'face_bboxes' of type list<element: double>; expected the face_bboxes",
        ),
        (
            table(face_bboxes=pa.array([[[1]]] * NUM_ROWS)),
            "type list of lists of floating-point numbers",
        ),
    ],
)
def test_rows_and_columns_are_checked(tmp_path, data, message):
    """R02: the right bytes of a parquet that the build cannot use."""
    mirror = tmp_path / "mirror"
    mirror.mkdir()
    (mirror / "a.parquet").write_bytes(parquet_bytes(data))
    printed = refused(tmp_path, None, data=parquet_bytes(data), source=mirror)
    assert message in printed


def test_a_corrected_config_needs_no_second_transfer(tmp_path, hub):
    """A typo in metadata.columns, found after 130 MB, does not cost another 130 MB."""
    assert "no column 'URL'" in refused(tmp_path, hub, columns=COLUMNS.replace("url=url", "url=URL"))
    assert "already here" in fetch(tmp_path, hub)
    assert len(hub.gets("a.parquet")) == 1


def test_a_damaged_copy_is_noticed_and_replaced(tmp_path, hub):
    fetch(tmp_path, hub)
    path = tmp_path / "fetched/metadata/a.parquet"
    path.write_bytes(GOOD[:-1] + b"?")
    fetch(tmp_path, hub)
    assert (tmp_path / "metadata/a.parquet").read_bytes() == GOOD
    assert len(hub.gets("a.parquet")) == 2


def test_files_in_a_folder_of_the_repository(tmp_path, hub):
    hub.add("dataset", REPO, REVISION, {"data/train/a.parquet": GOOD}, lfs=True)
    fetch(tmp_path, hub, subfolder="data/train")
    assert [request.file for request in hub.gets("data/train/a.parquet")] == ["data/train/a.parquet"]
    assert (tmp_path / "metadata/a.parquet").read_bytes() == GOOD


@pytest.mark.parametrize("form", ["folder", "file URL"])
def test_a_mirror_takes_the_hubs_place(tmp_path, form):
    mirror = tmp_path / "a mirror"
    mirror.mkdir()
    (mirror / "a.parquet").write_bytes(GOOD)
    fetch(tmp_path, None, source=mirror if form == "folder" else mirror.as_uri())
    assert (tmp_path / "metadata/a.parquet").read_bytes() == GOOD
    assert not (tmp_path / "metadata/a.parquet").samefile(mirror / "a.parquet")


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (None, "a.parquet: found no such file; expected the pinned file in the mirror folder"),
        (GOOD[:-1], f"found {len(GOOD) - 1} bytes; expected {len(GOOD)} bytes (pinned)"),
        (GOOD[:-1] + b"?", f"expected sha256 {sha256(GOOD)} (pinned)"),
    ],
)
def test_a_wrong_mirror_is_refused(tmp_path, data, message):
    mirror = tmp_path / "mirror"
    mirror.mkdir()
    if data:
        (mirror / "a.parquet").write_bytes(data)
    assert message in refused(tmp_path, None, source=mirror)
