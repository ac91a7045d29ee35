"""Texts as token ids: with the tokenizer of an encoder, or byte by byte.

A text becomes a row of whole numbers: whether it was cut at the greatest number of tokens, and its
token ids, padded with -1. Tokenizers are read from a file ``tokenizer.json`` with the package
tokenizers, which is an extra: ``pip install 'afield[text]'``.
"""

from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from afield.errors import DataError, SpecError
from afield.files import check_regular_file, file_digest, format_bytes

__all__ = ["BYTE_TOKENS", "PADDING", "read_text", "read_tokenizer", "tokenize", "tokenizer_label"]

# The number that fills the end of a row.
PADDING = -1
# Number of different tokens if every byte is one.
BYTE_TOKENS = 256
# A longer text is taken for a mistake, such as a missing quotation mark in a table.
MAX_TEXT_BYTES = 2**20


def read_text(file: Path) -> str:
    """The content of a file; raises ValueError unless it is UTF-8."""
    check_regular_file(file)
    size = file.stat().st_size
    if size > MAX_TEXT_BYTES:
        raise ValueError(_too_long(size))
    try:
        # utf-8-sig: some editors write a byte order mark, which is not part of the text.
        return file.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise ValueError(f"not UTF-8: byte {error.start}") from None


def tokenize(text: object, tokenizer: str, tokens: int) -> NDArray[np.int32]:
    """The row of a text: 1 if it has more than `tokens` tokens, else 0, and its first token ids.

    `tokenizer` is a file, or empty for bytes. Raises ValueError for what is no text.
    """
    if not isinstance(text, str) or not text.strip():
        raise ValueError("no text")
    size = len(text.encode(errors="replace"))
    if size > MAX_TEXT_BYTES:
        raise ValueError(_too_long(size))
    ids, is_cut = _encode(text, tokenizer, tokens)
    row = np.full(1 + tokens, PADDING, np.int32)
    row[0] = is_cut
    row[1 : 1 + len(ids)] = ids
    return row


def tokenizer_label(tokenizer: str) -> str:
    """What the cache calls a tokenizer: the digest of its file."""
    return f"tokenizer {file_digest(tokenizer)}" if tokenizer else "bytes"


def read_tokenizer(path: str) -> Any:
    """The tokenizer of a file, without padding and truncation."""
    try:
        from tokenizers import Tokenizer
    except ImportError:
        raise SpecError(
            f"{path}: needs the package tokenizers; try: pip install 'afield[text]'"
        ) from None
    check_regular_file(Path(path))
    try:
        tokenizer = Tokenizer.from_file(path)
    except Exception as error:  # noqa: BLE001  the library raises plain exceptions
        reason = " ".join(str(error).split())[:120]
        raise DataError(f"{path}: not a tokenizer ({reason})") from None
    tokenizer.no_padding()
    tokenizer.no_truncation()
    return tokenizer


def _encode(text: str, tokenizer: str, tokens: int) -> tuple[Any, bool]:
    """The token ids of a text, at most `tokens`, and whether there are more."""
    if not tokenizer:
        content = np.frombuffer(text.encode(errors="replace")[: tokens + 1], np.uint8)
        return content[:tokens], len(content) > tokens
    encoding = _truncating(tokenizer, file_digest(tokenizer), tokens).encode(text)
    return encoding.ids, bool(encoding.overflowing)


@lru_cache(maxsize=4)
def _truncating(path: str, digest: str, tokens: int) -> Any:
    """A tokenizer that cuts texts, and keeps the special tokens at their ends."""
    del digest  # part of the key of the cache, so that a changed file is read again
    tokenizer = read_tokenizer(path)
    tokenizer.enable_truncation(tokens)
    return tokenizer


def _too_long(size: int) -> str:
    most = format_bytes(MAX_TEXT_BYTES)
    return f"{format_bytes(size)} of text, above {most}; is a quotation mark missing?"
