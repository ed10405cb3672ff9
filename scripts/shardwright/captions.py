"""One rule that makes any text of the web a caption; used wherever a caption is written or checked.

Standard library only.
"""

from __future__ import annotations

import re

MAX_CAPTION_CHARS = 8192

# C0 and C1 controls other than tab and newline; NUL breaks C string handling downstream.
_CONTROLS = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f]+")
_LINE_ENDS = re.compile("\r\n?")
_SURROGATES = re.compile("[\ud800-\udfff]")
# Control tokens of chat formats: `<|im_end|>`, `<|image_pad|>`. A space keeps tokenizers from seeing one.
_CHAT_TOKENS = re.compile(r"<(?=\|[A-Za-z0-9_.:/-]{1,64}\|>)")


def clean_caption(text: str | bytes | None, max_chars: int = MAX_CAPTION_CHARS) -> str | None:
    """Return the caption that is stored for `text`; a clean caption comes back unchanged.

    Bytes are decoded as UTF-8; what does not decode, and lone surrogates, become U+FFFD. CR and
    CRLF become LF, runs of other control characters one space. A space is put behind the `<` of
    chat-control tokens (`<|name|>`). A longer text is cut to `max_chars`, at the last white space
    of its final eighth if there is any. Null stays null. Applying the rule twice changes nothing.
    """
    if text is None:
        return None
    if isinstance(text, bytes):
        text = text.decode("utf-8", errors="replace")
    text = _SURROGATES.sub("\ufffd", text)
    text = _CONTROLS.sub(" ", _LINE_ENDS.sub("\n", text))
    text = _CHAT_TOKENS.sub("< ", text)
    if len(text) > max_chars:
        head = text[:max_chars]
        spaces = [match.start() for match in re.finditer(r"\s", head[max_chars - max_chars // 8 :])]
        text = head[: max_chars - max_chars // 8 + spaces[-1]] if spaces else head
    return text
