"""Names of what the audit can say of a sample, in the order in which it looks for them.

Standard library only: several stages share these names.
"""

from __future__ import annotations

KEEP = "keep"
CAPTION_NOT_UTF8 = "caption_not_utf8"
METADATA_NOT_JSON = "metadata_not_json"
BAD_UID = "bad_uid"
KEY_MISMATCH = "key_mismatch"
BAD_STATUS = "bad_status"
CAPTION_MISMATCH = "caption_mismatch"
BAD_FACE_BBOXES = "bad_face_bboxes"
DUPLICATE_UID = "duplicate_uid"
BLANK_CAPTION = "blank_caption"
BAD_JPEG = "bad_jpeg"

# The first fault found is the one counted. DUPLICATE_UID needs the whole set: select_samples
# decides it, for samples whose audit verdict is in AFTER_DUPLICATES.
REASONS = (
    CAPTION_NOT_UTF8,
    METADATA_NOT_JSON,
    BAD_UID,
    KEY_MISMATCH,
    BAD_STATUS,
    CAPTION_MISMATCH,
    BAD_FACE_BBOXES,
    DUPLICATE_UID,
    BLANK_CAPTION,
    BAD_JPEG,
)
VERDICTS = (KEEP, *REASONS)
AUDIT_VERDICTS = tuple(verdict for verdict in VERDICTS if verdict != DUPLICATE_UID)
AFTER_DUPLICATES = (KEEP, BLANK_CAPTION, BAD_JPEG)

MEANINGS = {
    KEEP: "fit for the training set",
    CAPTION_NOT_UTF8: "the TXT member is not UTF-8",
    METADATA_NOT_JSON: "the JSON member is not a JSON object",
    BAD_UID: "the uid is not 32 lowercase hex digits",
    KEY_MISMATCH: "the key in the metadata is not the member's key",
    BAD_STATUS: "the status in the metadata is not success",
    CAPTION_MISMATCH: "the caption in the metadata is not the TXT member's text",
    BAD_FACE_BBOXES: "face_bboxes in the metadata is not a list",
    DUPLICATE_UID: "an earlier sample with this uid was kept",
    BLANK_CAPTION: "the caption is empty or white space",
    BAD_JPEG: "the JPG member is not a JPEG that decodes to its end",
}
