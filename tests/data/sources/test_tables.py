"""Tables as data: CSV, Parquet and JSON lines with images, paths of files, or numbers."""

import gzip
import io
import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from PIL import Image

from afield.data.domains import ReadOptions
from afield.data.frames import name_columns
from afield.data.inspection import inspect_dataset
from afield.data.lookup import find_dataset
from afield.data.sources.tables import _with_split
from afield.errors import AfieldError, SpecError
from afield.runs.run_data import RunData
from afield.studies.planning import plan_run
from tests.files import arrays, npz
from tests.messages import message_of

ROWS = 24


def numbers(**changes):
    """Patients of three hospitals, with numbers, a category, and gaps in both."""
    generator = np.random.default_rng(0)
    frame = pd.DataFrame(
        {
            "id": np.arange(ROWS),
            "age": generator.normal(60, 10, ROWS).round(1),
            "sex": np.array(["f", "m", "x"])[np.arange(ROWS) % 3],
            "smoker": np.arange(ROWS) % 2 == 0,
            "label": np.array(["ill", "well"])[np.arange(ROWS) // 2 % 2],
            "domain": np.repeat(["north", "south", "west"], ROWS // 3),
        }
    )
    frame.loc[3, "age"] = np.nan
    frame.loc[5, "sex"] = None
    return frame.assign(**changes)


def write(folder: Path, frame: pd.DataFrame, name: str = "patients.csv") -> Path:
    path = folder / name
    if name.endswith(".parquet"):
        frame.to_parquet(path)
    elif name.endswith((".jsonl", ".jsonl.gz")):
        frame.to_json(path, orient="records", lines=True)
    else:
        frame.to_csv(path, index=False)
    return path


def picture(shade: int) -> bytes:
    content = io.BytesIO()
    Image.new("RGB", (16, 12), (shade, 0, 255 - shade)).save(content, "PNG")
    return content.getvalue()


def pictures(folder: Path, count: int = 12) -> pd.DataFrame:
    (folder / "images").mkdir(exist_ok=True)
    for i in range(count):
        (folder / "images" / f"{i}.png").write_bytes(picture(10 * i))
    return pd.DataFrame(
        {
            "path": [f"images/{i}.png" for i in range(count)],
            "label": ["cup", "jug"] * (count // 2),
            "domain": ["sketch"] * (count // 2) + ["photo"] * (count // 2),
            "slide": [f"s{i % 4}" for i in range(count)],
        }
    )


def refusal(path, **columns) -> str:
    def read():
        find_dataset(name_columns(str(path), **columns)).load(ReadOptions(Path()))

    return message_of(AfieldError, read)


def test_every_format_gives_the_same_domains(tmp_path):
    expected = None
    for name in ("a.csv", "a.csv.gz", "a.parquet", "a.jsonl", "a.jsonl.gz"):
        dataset = find_dataset(write(tmp_path, numbers(), name))
        assert dataset.domains == ("north", "south", "west"), name
        assert dataset.classes == ("ill", "well")
        loaded = dataset.load()
        x = torch.cat([domain.x for domain in loaded.values()])
        y = torch.cat([domain.y for domain in loaded.values()])
        assert [column.name for column in dataset.modality.columns] == ["age", "sex", "smoker"]
        expected = (x, y) if expected is None else expected
        torch.testing.assert_close(x, expected[0], equal_nan=True, msg=name)
        assert torch.equal(y, expected[1])
    x = expected[0]
    assert x.isnan().nonzero().tolist() == [[3, 0], [5, 1]]
    assert x[:3, 1].tolist() == [0.0, 1.0, 2.0]
    assert x[0, 2] == 1.0


def test_columns_are_named_or_found(tmp_path):
    frame = numbers().rename(columns={"label": "diagnosis", "domain": "hospital"})
    path = write(tmp_path, frame)
    dataset = find_dataset(name_columns(str(path), label="diagnosis"))
    assert dataset.classes == ("ill", "well")
    assert dataset.spec == f"{path}?label=diagnosis"
    assert find_dataset(dataset.spec).fingerprint == dataset.fingerprint
    assert len(dataset.fingerprint) == 16
    other = find_dataset(name_columns(str(path), label="smoker", domain="diagnosis"))
    assert other.fingerprint != dataset.fingerprint


def test_a_choice_survives_names_with_special_characters(tmp_path):
    frame = numbers().rename(columns={"label": "a&b=c? d", "domain": "größe"})
    spec = name_columns(str(write(tmp_path, frame)), label="a&b=c? d", domain="größe")
    dataset = find_dataset(spec)
    assert dataset.classes == ("ill", "well")
    assert find_dataset(dataset.spec).spec == dataset.spec


def test_splits_and_groups_are_read(tmp_path):
    split = np.tile(["train", "train", "Validation", "test"], ROWS // 4)
    frame = numbers(split=split, group=np.tile(["a", "b"], ROWS // 2))
    domains = find_dataset(write(tmp_path, frame)).load()
    assert domains["north"].test.tolist() == [False, False, False, True] * 2
    assert domains["north"].validation.tolist() == [False, False, True, False] * 2
    assert list(domains["north"].columns["group"]) == ["a", "b"] * 4
    assert domains["north"].columns["sex"][0] == "f"


def test_paths_are_decoded_like_a_folder(tmp_path):
    frame = pictures(tmp_path)
    dataset = find_dataset(write(tmp_path, frame, "list.csv"))
    assert (dataset.domains, dataset.classes) == (("photo", "sketch"), ("cup", "jug"))
    domain = dataset.load()["sketch"]
    assert domain.x.shape == (6, 3, 73, 73)
    assert domain.x[:, 0, 0, 0].tolist() == [0, 10, 20, 30, 40, 50]
    assert domain.names[1] == "images/1.png"
    assert list(domain.columns["slide"]) == ["s0", "s1", "s2", "s3", "s0", "s1"]
    fewer = find_dataset(write(tmp_path, frame.iloc[[0, 1, 2, 6, 7]], "fewer.csv"))
    assert fewer.load()["sketch"].x[:, 0, 0, 0].tolist() == [0, 10, 20]
    assert dataset.load()["sketch"].x[:, 0, 0, 0].tolist() == [0, 10, 20, 30, 40, 50]
    before = dataset.fingerprint
    (tmp_path / "images" / "3.png").write_bytes(picture(99))
    assert find_dataset(tmp_path / "list.csv").fingerprint != before


def test_another_domain_column_gives_other_images_from_the_same_file(tmp_path):
    cells = [picture(10 * number) for number in range(8)]
    frame = pd.DataFrame({"image": cells, "label": ["a", "b"] * 4, "domain": ["x"] * 4 + ["y"] * 4})
    path = write(tmp_path, frame.assign(site=list("yyxxyyxx")), "images.parquet")
    find_dataset(path).load(ReadOptions(tmp_path))
    by_site = find_dataset(f"{path}?domain=site").load(ReadOptions(tmp_path))
    assert by_site["x"].x[:, 0, 0, 0].tolist() == [20, 30, 60, 70]


def test_image_bytes_are_decoded_and_broken_ones_can_be_skipped(tmp_path):
    frame = pictures(tmp_path).drop(columns="path")
    cells = [{"bytes": picture(10 * i), "path": f"{i}.png"} for i in range(len(frame))]
    plain = [cell["bytes"] for cell in cells]
    for number, column in enumerate((cells, plain)):
        path = write(tmp_path, frame.assign(image=column), f"images{number}.parquet")
        domain = find_dataset(path).load()["photo"]
        assert domain.x[:, 0, 0, 0].tolist() == [60, 70, 80, 90, 100, 110]
    broken = write(tmp_path, frame.assign(image=[b"no image", *plain[1:]]), "broken.parquet")
    assert "1 broken file(s)" in refusal(broken)
    domain = find_dataset(broken).load(ReadOptions(Path(), skip_broken=True))["sketch"]
    assert domain.x[:, 0, 0, 0].tolist() == [10, 20, 30, 40, 50]
    assert list(domain.columns["slide"]) == ["s1", "s2", "s3", "s0", "s1"]


def test_the_name_of_a_file_of_the_hub_states_the_split_of_its_rows():
    frame, train = numbers(), Path("train-00000-of-00002.parquet")
    assert set(_with_split(frame, train)["split"]) == {"train"}
    assert "split" not in _with_split(frame, Path("part-00000.parquet"))
    own = frame.assign(Split="test")
    assert _with_split(own, train) is own


def test_class_names_of_the_hub_replace_their_indices(tmp_path):
    import pyarrow as pa
    import pyarrow.parquet as pq

    frame = numbers(label=np.arange(ROWS) % 2)
    features = {"label": {"names": ["dog", "ant"], "_type": "ClassLabel"}}
    metadata = {b"huggingface": json.dumps({"info": {"features": features}}).encode()}
    path = tmp_path / "hub.parquet"
    pq.write_table(pa.Table.from_pandas(frame).replace_schema_metadata(metadata), path)
    dataset = find_dataset(path)
    assert dataset.classes == ("ant", "dog")
    assert dataset.load()["north"].y.tolist()[:2] == [1, 0]
    too_few = {"label": {"names": ["dog"], "_type": "ClassLabel"}}
    metadata = {b"huggingface": json.dumps({"info": {"features": too_few}}).encode()}
    pq.write_table(pa.Table.from_pandas(frame).replace_schema_metadata(metadata), path)
    assert "names only 1 classes" in refusal(path)


def test_bad_tables_are_refused_in_one_line(tmp_path):
    plain = numbers()
    cases = {
        "no column 'diagnosis' (label)": (plain, {"label": "diagnosis"}),
        "no column with the label; name it with --label": (plain.drop(columns="label"), {}),
        "no column with the domain": (plain.drop(columns="domain"), {}),
        "holds fractions such as 0.0": (numbers(label=np.arange(ROWS) / 2), {}),
        "row 2 has no label": (numbers(label=["a", "b", None] * 8), {}),
        "only domain 'here'": (numbers(domain="here"), {}),
        "only class 'one'": (numbers(label="one"), {}),
        "holds 'tomorrow'; write train, val or test": (numbers(split="tomorrow"), {}),
        "row 0 of column 'age' is infinite": (numbers(age=np.inf), {}),
        "no column with samples": (plain[["id", "label", "domain"]], {}),
    }
    for number, (message, (frame, columns)) in enumerate(cases.items()):
        path = write(tmp_path, frame, f"case{number}.csv")
        assert message in refusal(path, **columns)
    many = numbers(note=[f"note {i}" for i in range(ROWS)])
    many = pd.concat([many] * 20).assign(note=[f"note {i}" for i in range(20 * ROWS)])
    path = write(tmp_path, many, "many.csv")
    with pytest.raises(SpecError, match=r"different texts in the sources, too many.*--drop note"):
        plan_run(path, "erm")
    assert any("too many" in remark for remark in inspect_dataset(path).remarks)
    assert "note" not in {c.name for c in find_dataset(f"{path}?drop=note").modality.columns}
    lists = numbers(note=[[1, 2]] * ROWS)
    assert "neither numbers nor categories" in refusal(write(tmp_path, lists, "lists.jsonl"))


def test_dates_are_numbers(tmp_path):
    dates = numbers(when=pd.date_range("2020", periods=ROWS))
    for name in ("dates.parquet", "dates.csv"):
        run = plan_run(write(tmp_path, dates, name), "erm")
        scaling = RunData.of(
            run,
            dataset := find_dataset(run.dataset),
            dataset.load(),
            torch.device("cpu"),
        ).scaling
        (when,) = (column for column in scaling.columns if column.name == "when")
        assert when.categories is None
        assert 18_262 <= when.mean <= 18_262 + ROWS


def test_bad_paths_are_refused_in_one_line(tmp_path):
    good = pictures(tmp_path)
    for path, message in {
        "../secret.png": "leaves the folder",
        "/etc/secret.png": "leaves the folder",
        "images/../../a.png": "leaves the folder",
        "images/none.png": "does not exist",
        "images/1.png": "in two rows",
        "list.csv": "is not an image",
    }.items():
        frame = good.assign(path=[*good.path[:-1], path])
        assert message in refusal(write(tmp_path, frame, "list.csv"))


def test_broken_files_are_refused_in_one_line(tmp_path):
    for name, content, message in (
        ("empty.csv", b"", "the first line must name the columns"),
        ("header.csv", b"label,domain,x\n", "no rows"),
        ("twice.csv", b"a,b\n1,2,3,4\n1,2\n1\n", ""),
        ("broken.parquet", b"PAR1 no", "not a readable table"),
        ("broken.jsonl", b'{"label": 1}\nno\n', "line 2 is not JSON"),
        ("list.jsonl", b"[1, 2]\n", "line 1 is not an object"),
        ("broken.csv.gz", gzip.compress(b"a,b\n")[:-9], ""),
        ("latin.csv", "label,domain\nü,ö\n".encode("latin-1"), "not a readable table"),
    ):
        (tmp_path / name).write_bytes(content)
        assert message in refusal(tmp_path / name)


def test_only_tables_have_columns_to_name(tmp_path):
    assert "only the columns of a table" in refusal(f"{npz(tmp_path, **arrays())}?label=y")
    path = write(tmp_path, numbers())
    assert "no kind of column 'lable'; did you mean 'label'?" in refusal(f"{path}?lable=y")


def test_a_validation_list_is_the_test_list_only_if_there_is_no_other(tmp_path):
    def lists(*words):
        frame = numbers(split=np.tile(words, ROWS // len(words)))
        domain = find_dataset(write(tmp_path, frame)).load()["north"]
        marks = (domain.test, domain.validation)
        return [None if mark is None else mark.tolist()[: len(words)] for mark in marks]

    no, yes = False, True
    assert lists("train", "val", "train", "val") == [[no, yes, no, yes], None]
    assert lists("train", "val", "test", "train") == [[no, no, yes, no], [no, yes, no, no]]
    assert lists("train", "test", "test", "train") == [[no, yes, yes, no], None]
    assert lists("train", "train") == [None, None]
    assert lists("test", "test") == [None, None]
    frame = pictures(tmp_path).assign(split=["train", "val", "test"] * 4)
    sketch = find_dataset(write(tmp_path, frame, "list.csv")).load()["sketch"]
    assert sketch.test.tolist() == [no, no, yes] * 2
    assert sketch.validation.tolist() == [no, yes, no] * 2
