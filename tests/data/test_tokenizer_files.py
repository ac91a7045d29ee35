"""Tokenizers of strangers: texts grow within bounds, and every failure is one line."""

import base64
import copy
import json
from contextlib import suppress

import pytest

from afield.data.tokenizer_files import MAX_SPECIAL, MAX_WORD, read_tokenizer, truncating_tokenizer
from afield.errors import DataError
from tests.texts import change_json, write_tokenizer

DOUBLING = {"type": "Replace", "pattern": {"String": "a"}, "content": "aa"}
EMPTY_MATCH = {"type": "Replace", "pattern": {"Regex": ""}, "content": "x"}
SPLIT = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
ODD = (None, -1, 10**30, float("nan"), "", "x", [], {}, 2**32 - 1)


def sequence(rules, kind="normalizers"):
    return {"type": "Sequence", kind: rules}


def charsmap(replacement):
    return base64.b64encode((4).to_bytes(4, "little") + b"\0\0\0\0" + replacement + b"\0").decode()


def refusal(file):
    with pytest.raises(DataError) as error:
        read_tokenizer(str(file))
    assert "\n" not in str(error.value)
    return str(error.value)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"normalizer": sequence([DOUBLING] * 40)}, r"make a text up to 1\.1e\+12 times as long"),
        ({"normalizer": sequence([sequence([EMPTY_MATCH] * 5)] * 2)}, "1.02e.03 times as long"),
        ({"normalizer": {**DOUBLING, "content": "a" * 1000}}, "1e.03 times as long"),
        ({"pre_tokenizer": sequence([SPLIT] * 10, "pretokenizers")}, "1.02e.03 times as long"),
        ({"normalizer": {"type": "Prepend", "prepend": "a" * 10**5}}, "adds more than 128 char"),
        ({"normalizer": sequence([{"type": "NFC"}] * 200)}, "has 202 rules"),
        (
            {"normalizer": {"type": "Precompiled", "precompiled_charsmap": charsmap(b"a" * 999)}},
            "1e.03 times as long",
        ),
        (
            {"model": {"type": "WordPiece", "max_input_chars_per_word": 10**9}},
            f"above {MAX_WORD}",
        ),
        (
            {"post_processor": {"type": "TemplateProcessing", "single": ["A"] * 1000}},
            f"more than {MAX_SPECIAL} special tokens",
        ),
    ],
)
def test_rules_that_let_a_text_grow_are_refused_before_they_are_applied(tmp_path, values, message):
    file = write_tokenizer(tmp_path)
    change_json(file, **values)
    with pytest.raises(DataError, match=message):
        read_tokenizer(str(file))


def test_rules_of_published_tokenizers_are_accepted(tmp_path):
    file = write_tokenizer(tmp_path)
    rules = [
        {"type": "Replace", "pattern": {"String": "``"}, "content": '"'},
        {"type": "NFKD"},
        {"type": "StripAccents"},
        {"type": "Lowercase"},
        {"type": "Replace", "pattern": {"Regex": " {2,}"}, "content": "\u2581"},
        {"type": "Prepend", "prepend": "\u2581"},
    ]
    change_json(file, normalizer=sequence(rules))
    assert read_tokenizer(str(file)).get_vocab_size() == 22


def test_more_special_tokens_than_a_text_may_have_are_refused(tmp_path):
    file = str(write_tokenizer(tmp_path))
    assert truncating_tokenizer(file, 3).encode("the film was great").overflowing
    with pytest.raises(DataError, match="adds 2 tokens to a text, which may have 2"):
        truncating_tokenizer(file, 2)


def places(tree, path=()):
    items = tree.items() if isinstance(tree, dict) else enumerate(tree)
    for key, inner in items:
        yield (*path, key)
        if isinstance(inner, dict | list):
            yield from places(inner, (*path, key))


def changed(tree, path, value):
    tree = copy.deepcopy(tree)
    home = tree
    for key in path[:-1]:
        home = home[key]
    home[path[-1]] = value
    return json.dumps(tree)


def test_an_odd_value_anywhere_is_accepted_or_one_line(tmp_path, capfd):
    file = write_tokenizer(tmp_path)
    original, messages = json.loads(file.read_text()), []
    for path in places(original):
        if path[0] == "added_tokens" or (path[:2] == ("model", "vocab") and path[-1] != "the"):
            continue
        for value in ODD:
            file.write_text(changed(original, path, value))
            with suppress(DataError):
                read_tokenizer(str(file))
                continue
            messages.append(refusal(file))
    assert len(messages) > 100
    assert capfd.readouterr().err == ""  # the library prints its panics


def test_what_is_no_tokenizer_at_all_is_one_line(tmp_path):
    file = tmp_path / "tokenizer.json"
    for content in (b"", b"[]", b"{", b"\xff\xfe", b"[" * 10**5, b'{"version": "1.0"}'):
        file.write_bytes(content)
        assert "not a tokenizer" in refusal(file)
