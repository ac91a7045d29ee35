"""Texts as samples: from tables and folders to token ids, once."""

import json

import pandas as pd
import pytest
import torch

from afield.data.domains import ReadOptions
from afield.data.lookup import find_dataset
from afield.data.modalities.text import Text, tokenize
from afield.errors import AfieldError, DataError
from tests.messages import message_of
from tests.texts import reviews, write_reviews, write_text_tree, write_tokenizer

pytestmark = pytest.mark.usefixtures("own_cache")


def load(path, **options):
    return find_dataset(path).load(ReadOptions(path.parent, **options))


def texts_of(domain):
    """The texts of bytes."""
    return [bytes(row[row >= 0].tolist()).decode() for row in domain.x]


def refusal(path, **options):
    return message_of(AfieldError, load, path, **options)


@pytest.mark.parametrize("name", ["reviews.csv", "reviews.csv.gz", "reviews.parquet", "a.jsonl"])
def test_a_table_of_texts_is_read_in_every_format(tmp_path, name):
    frame = reviews(4)
    path = write_reviews(tmp_path, frame, name)
    assert find_dataset(path).modality == Text()
    domains = load(path)
    assert list(domains) == ["films", "food", "hotels"]
    for name, domain in domains.items():
        assert texts_of(domain) == frame.text[frame.domain == name].tolist()
        assert domain.y.tolist() == (frame.label[frame.domain == name] == "good").tolist()
        assert domain.truncated == 0


def test_a_folder_of_text_files_is_read_like_a_table(tmp_path):
    frame = reviews(3)
    for name, domain in load(write_text_tree(tmp_path / "tree", frame)).items():
        mine = frame[frame.domain == name].sort_values("label", kind="stable")
        assert texts_of(domain) == mine.text.tolist()


def test_split_lists_of_a_text_folder_are_not_taken_for_texts(tmp_path):
    root = write_text_tree(tmp_path / "tree", reviews(3))
    for folder in sorted(path for path in root.iterdir() if path.is_dir()):
        files = sorted(str(file.relative_to(root)) for file in folder.rglob("*.txt"))
        (root / f"{folder.name}_train.txt").write_text("\n".join(files[:4]))
        (root / f"{folder.name}_test.txt").write_text("\n".join(files[4:]))
    assert load(root)["food"].test.tolist() == [False] * 4 + [True] * 2


def test_notes_beside_images_do_not_make_a_folder_of_texts(tmp_path):
    (tmp_path / "data" / "a" / "x").mkdir(parents=True)
    (tmp_path / "data" / "b" / "x").mkdir(parents=True)
    (tmp_path / "data" / "a" / "x" / "a.txt").write_text("notes")
    (tmp_path / "data" / "b" / "x" / "b.jpg").write_bytes(b"")
    with pytest.raises(DataError, match=r"a\.txt: not an image"):
        find_dataset(tmp_path / "data")


def test_the_column_is_chosen_by_its_name_or_by_the_user(tmp_path):
    frame = reviews(2).rename(columns={"text": "opinion"}).assign(text="always the same")
    path = write_reviews(tmp_path, frame)
    assert set(texts_of(load(path)["food"])) == {"always the same"}
    chosen = find_dataset(f"{path}?text=opinion").load(ReadOptions(tmp_path))
    assert texts_of(chosen["food"]) == frame.opinion[frame.domain == "food"].tolist()
    with pytest.raises(DataError, match=r"no column 'opinions' \(text\); it has opinion, label"):
        find_dataset(f"{path}?text=opinions")


def test_another_domain_column_gives_other_domains_from_the_same_file(tmp_path):
    frame = reviews(2).assign(site=["x", "y"] * 6)
    path = write_reviews(tmp_path, frame)
    load(path)
    by_site = find_dataset(f"{path}?domain=site").load(ReadOptions(tmp_path))
    assert texts_of(by_site["y"]) == frame.text[frame.site == "y"].tolist()


def test_a_tokenizer_cuts_long_texts_and_keeps_its_special_tokens(tmp_path):
    tokenizer = str(write_tokenizer(tmp_path))
    row = tokenize("good food was bad", tokenizer, 8)
    assert row.tolist() == [0, 2, 4, 14, 16, 8, 3, -1, -1]
    assert tokenize("good food was bad", tokenizer, 4).tolist() == [1, 2, 4, 14, 3]
    assert tokenize("good xyz", tokenizer, 4).tolist() == [0, 2, 4, 1, 3]


def test_bytes_are_cut_at_the_number_of_tokens():
    assert tokenize("aé", "", 3).tolist() == [0, 97, 195, 169]
    assert tokenize("aéb", "", 3).tolist() == [1, 97, 195, 169]


def test_truncated_texts_are_counted_by_domain(tmp_path):
    frame = reviews(3)
    path = write_reviews(tmp_path, frame)
    for tokens in (20, 40):
        for name, domain in load(path, tokens=tokens).items():
            long = frame.text[frame.domain == name].str.len() > tokens
            assert domain.truncated == long.sum()
            assert domain.x.shape == (6, tokens)
            assert domain.x.dtype == torch.int32


def test_tokenizer_and_length_are_part_of_the_cache_key(tmp_path):
    path, folder = write_reviews(tmp_path), tmp_path / "encoder"
    tokenizer = write_tokenizer(folder)
    entries = [{"tokens": 20}, {"tokens": 30}, {"tokens": 20, "tokenizer": str(tokenizer)}]
    first = [load(path, **each)["food"].x for each in entries]
    content = json.loads(tokenizer.read_text())
    content["model"]["vocab"] |= {"food": 15, "hotel": 14}
    tokenizer.write_text(json.dumps(content))
    again = [load(path, **each)["food"].x for each in entries]
    assert torch.equal(first[0], again[0])
    assert torch.equal(first[1], again[1])
    assert not torch.equal(first[2], again[2])


def test_texts_are_tokenized_once(tmp_path, monkeypatch):
    path = write_reviews(tmp_path)
    before = load(path)
    monkeypatch.setattr(Text, "tokenize", lambda *_: pytest.fail("tokenized again"))
    assert torch.equal(load(path)["food"].x, before["food"].x)


def test_bad_texts_of_a_table_are_refused_in_one_line_that_names_the_rows(tmp_path):
    frame = reviews(3)
    bad = frame.assign(text=[" ", None, "x" * 2**21, *frame.text[3:]])
    path = write_reviews(tmp_path, bad, "bad.jsonl")
    message = refusal(path)
    assert "3 broken file(s), or not texts: row 0 (no text); row 1 (no text)" in message
    assert "row 2 (2.0 MB of text, above 1.0 MB" in message
    assert [len(domain.y) for domain in load(path, skip_broken=True).values()] == [3, 6, 6]
    number = write_reviews(tmp_path, frame.assign(text=7), "number.csv")
    with pytest.raises(DataError, match=r"row 0 \(no text\)"):
        find_dataset(f"{number}?text=text").load(ReadOptions(tmp_path))


def test_bad_tables_and_files_are_refused_in_one_line(tmp_path):
    latin = tmp_path / "latin.csv"
    latin.write_bytes("text,label,domain\ncafé,a,x\ntea,b,y\n".encode("latin-1"))
    assert "not a readable table" in refusal(latin)
    no_label = write_reviews(
        tmp_path, reviews(2).assign(label=[None] * 3 + ["a"] * 9), "nolabel.csv"
    )
    assert "row 0 has no label" in refusal(no_label)
    root = write_text_tree(tmp_path / "tree", reviews(2))
    (root / "food" / "bad" / "a.txt").write_bytes(b"caf\xe9")
    (root / "food" / "bad" / "b.txt").write_bytes(b"")
    assert "food/bad/a.txt (not UTF-8: byte 3); food/bad/b.txt (no text)" in refusal(root)


def test_a_broken_tokenizer_is_refused_in_one_line(tmp_path):
    path, tokenizer = write_reviews(tmp_path), tmp_path / "tokenizer.json"
    tokenizer.write_text("{}")
    assert "not a tokenizer" in refusal(path, tokenizer=str(tokenizer))


def test_columns_other_than_the_text_can_group_scores(tmp_path):
    frame = reviews(2).assign(stars=pd.Series(range(12)))
    domains = load(write_reviews(tmp_path, frame))
    assert domains["food"].columns["stars"] == ["4", "5", "6", "7"]
    assert "text" not in domains["food"].columns
