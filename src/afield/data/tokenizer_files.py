"""Tokenizers from files of strangers: texts cannot grow without bounds, and failures are one line.

A file ``tokenizer.json`` has rules that rewrite texts before they become tokens. A few rules that
each double a text need more memory than any machine has, so the growth of a text is computed from
the rules, before one is applied.
"""

import base64
import binascii
import json
import math
import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import lru_cache
from pathlib import Path
from typing import Any

from afield.errors import DataError, SpecError
from afield.files import check_regular_file, file_digest

# Larger files are no tokenizers; those of published encoders have up to 35 MB.
MAX_FILE_BYTES = 128 * 2**20
# How many times as long a text may become, and how long a rule's own text may be.
MAX_GROWTH, MAX_RULE_TEXT = 64, 128
# Words of more characters are compared piece by piece, which takes time with their square.
MAX_WORD = 1000
# A tokenizer has fewer rules, and adds fewer special tokens to a text.
MAX_RULES, MAX_DEPTH, MAX_SPECIAL = 100, 20, 64
# Every byte of a text becomes a character of up to two bytes.
BYTE_GROWTH = 2.0
# Texts that a sound tokenizer takes.
PROBES = ("a", "The film, 3.5 of 5!", "\u00e9\u4e2d\U0001f600\u0301\n\t ", "x" * 300)
REWRITING = ("normalizer", "pre_tokenizer")


def read_tokenizer(path: str) -> Any:
    """The tokenizer of a file, without padding and truncation."""
    return _cached_tokenizer(path, file_digest(path))


def truncating_tokenizer(path: str, tokens: int) -> Any:
    """A tokenizer that cuts texts, and keeps the special tokens at their ends."""
    return _cached_truncating(path, file_digest(path), tokens)


def largest_id(path: str) -> int:
    """The largest token id that a tokenizer gives, which need not be one of its words."""
    tokenizer = read_tokenizer(path)
    ids = [id_ for text in PROBES for id_ in encode(tokenizer, text).ids]
    return int(max([*tokenizer.get_vocab().values(), *ids], default=0))


def encode(tokenizer: Any, text: str) -> Any:
    """The encoding of a text; raises ValueError if the tokenizer fails on it."""
    try:
        return tokenizer.encode(text)
    except BaseException as error:
        if not _is_of_library(error):
            raise
        raise ValueError(f"the tokenizer fails on this text ({_reason(error)})") from None


@lru_cache(maxsize=4)
def _cached_truncating(path: str, digest: str, tokens: int) -> Any:
    del digest  # part of the key of the cache, so that a changed file is read again
    tokenizer = _load(path)
    special = tokenizer.num_special_tokens_to_add(is_pair=False)
    if special >= tokens:
        raise DataError(f"{path}: adds {special} tokens to a text, which may have {tokens}")
    tokenizer.enable_truncation(tokens)
    return tokenizer


@lru_cache(maxsize=4)
def _cached_tokenizer(path: str, digest: str) -> Any:
    del digest
    return _load(path)


def _load(path: str) -> Any:
    try:
        from tokenizers import Tokenizer
    except ImportError:
        raise SpecError(
            f"{path}: needs the package tokenizers; try: pip install 'afield[text]'"
        ) from None
    _check_rules(Path(path))
    try:
        with _quiet():
            tokenizer = Tokenizer.from_file(path)
            tokenizer.no_padding()
            tokenizer.no_truncation()
            for text in PROBES:
                tokenizer.encode(text)
    except BaseException as error:
        if not _is_of_library(error):
            raise
        raise DataError(f"{path}: not a tokenizer ({_reason(error)})") from None
    return tokenizer


def _is_of_library(error: BaseException) -> bool:
    """Whether an exception is one of the library, which panics with a BaseException."""
    return isinstance(error, Exception) or type(error).__name__ == "PanicException"


def _reason(error: BaseException) -> str:
    return " ".join(str(error).split())[:120] or type(error).__name__


@contextmanager
def _quiet() -> Iterator[None]:
    """Silence the standard error of the process, on which the library prints its panics."""
    with suppress(AttributeError, OSError, ValueError):  # there may be no standard error
        sys.stderr.flush()
    try:
        kept = os.dup(2)
    except OSError:
        yield
        return
    nowhere = os.open(os.devnull, os.O_WRONLY)
    try:
        os.dup2(nowhere, 2)
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)
        os.close(nowhere)


def _check_rules(path: Path) -> None:
    """Raise an error if the rules of a file could make a text, or the time for it, very long."""
    try:
        check_regular_file(path)
        if path.stat().st_size > MAX_FILE_BYTES:
            raise DataError(f"{path}: too large for a tokenizer")
        content = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError) as error:
        raise DataError(f"{path}: not a tokenizer ({_reason(error)})") from None
    if not isinstance(content, Mapping):
        raise DataError(f"{path}: not a tokenizer (not a JSON object)")
    problem = _problem(content)
    if problem:
        raise DataError(f"{path}: {problem}; get the tokenizer again")


def _problem(content: Mapping[str, Any]) -> str:
    model = content.get("model")
    word = model.get("max_input_chars_per_word", 0) if isinstance(model, Mapping) else 0
    if isinstance(word, int | float) and word > MAX_WORD:
        return f"max_input_chars_per_word is {word}, above {MAX_WORD}"
    rules = [rule for part in REWRITING for rule in _rules(content.get(part))]
    if len(rules) > MAX_RULES:
        return f"has {len(rules)} rules, above {MAX_RULES}"
    growth = math.prod(map(_growth, rules))
    if growth > MAX_GROWTH:
        return f"its rules make a text up to {growth:.3g} times as long"
    if any(len(str(rule.get("prepend", ""))) > MAX_RULE_TEXT for rule in rules):
        return f"a rule adds more than {MAX_RULE_TEXT} characters"
    if _special_pieces(content.get("post_processor")) > MAX_SPECIAL:
        return f"adds more than {MAX_SPECIAL} special tokens to a text"
    return ""


def _rules(tree: Any, depth: int = 0) -> Iterator[Mapping[str, Any]]:
    """All rules in a tree of sequences; a deeper tree is refused by the number of its rules."""
    if isinstance(tree, list):
        for inner in tree:
            yield from _rules(inner, depth)
    elif isinstance(tree, Mapping):
        if depth > MAX_DEPTH:
            yield from [tree] * (MAX_RULES + 1)
            return
        yield tree
        for name in ("normalizers", "pretokenizers", "processors"):
            yield from _rules(tree.get(name), depth + 1)


def _growth(rule: Mapping[str, Any]) -> float:
    """How many times as long a rule makes a text, at most."""
    kind = rule.get("type")
    if kind == "ByteLevel":
        return BYTE_GROWTH
    if kind == "Precompiled":
        return _longest_replacement(rule.get("precompiled_charsmap"))
    if kind != "Replace":
        return 1.0
    content = len(str(rule.get("content", "")).encode(errors="replace"))
    pattern = rule.get("pattern")
    if isinstance(pattern, Mapping) and isinstance(pattern.get("String"), str):
        length = len(pattern["String"].encode(errors="replace"))
        return max(1.0, content / length) if length else 1.0 + content
    # An expression may match the empty text between any two characters.
    return 1.0 + content


def _longest_replacement(charsmap: Any) -> float:
    """1 if a table of characters has only short replacements, as Unicode's, else too much."""
    with suppress(ValueError, binascii.Error):
        table = base64.b64decode(charsmap or "") if isinstance(charsmap, str) else b""
        replacements = table[4 + int.from_bytes(table[:4], "little") :].split(b"\0")
        return 1.0 if max(map(len, replacements)) <= MAX_RULE_TEXT else float(len(table))
    return math.inf


def _special_pieces(processor: Any) -> int:
    """Number of pieces and special tokens in the templates of a post-processor."""
    pieces = 0
    for rule in _rules(processor):
        special = rule.get("special_tokens")
        tokens = special.values() if isinstance(special, Mapping) else ()
        ids = [each.get("ids") for each in tokens if isinstance(each, Mapping)]
        lists = [rule.get("single"), *ids]
        pieces += sum(len(each) for each in lists if isinstance(each, list))
    return pieces
