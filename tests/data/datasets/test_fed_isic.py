import re
from dataclasses import replace

import pytest

from afield.data.datasets.fed_isic import CLASSES, SIZES, fed_isic
from afield.errors import DataError
from tests.data.datasets.trees import assert_labels_fit, loaded, painted
from tests.messages import message_of

HEADER = "image,MEL,NV,BCC,AK,BKL,DF,VASC,SCC,UNK,target,center,fold,fold2\n"
MADE_UP = replace(fed_isic, sizes=dict.fromkeys(SIZES, 2 * len(CLASSES)))


def line(image: str, target: object, centre: object, fold: str) -> str:
    return f"{image},{'0.0,' * 9}{target},{centre},{fold},{fold}_{centre}\n"


@pytest.fixture
def root(tmp_path, own_cache):
    """A training and a test picture of each class and centre, mixed as in the real table."""
    folder, lines = tmp_path / "fed_isic" / "ISIC_2019_Training_Input", []
    for target in range(len(CLASSES)):
        for centre in range(len(SIZES)):
            for fold in ("train", "test"):
                image = f"ISIC_{target}_{centre}_{fold}"
                painted(folder / f"{image}.jpg", label=target, domain=centre)
                lines.append(line(image, target, centre, fold))
    painted(folder / "ISIC_without_lesion.jpg", label=0, domain=99)
    (tmp_path / "fed_isic" / "train_test_split").write_text(HEADER + "".join(lines))
    return tmp_path


def test_centre_class_and_part_are_those_of_the_table(root):
    domains = loaded(MADE_UP, root)
    assert tuple(domains) == fed_isic.domains
    assert_labels_fit(domains)
    for domain in domains.values():
        assert domain.y.bincount().tolist() == [2] * len(CLASSES)
        assert [name.endswith("_test.jpg") for name in domain.names] == domain.test.tolist()


def test_a_wrong_count_is_reported(root):
    with pytest.raises(DataError, match="'BCN' has 16 samples, not 12413"):
        loaded(fed_isic, root)


@pytest.mark.parametrize(
    "wrong",
    [
        line("ISIC_0_0_train", 8, 0, "train"),
        line("ISIC_0_0_train", -1, 0, "train"),
        line("ISIC_0_0_train", 0, 6, "train"),
        line("ISIC_0_0_train", 0, "BCN", "train"),
        line("ISIC_0_0_train", 0, 0, "validation"),
        "<html>\n",
    ],
)
def test_a_line_that_is_not_of_the_table_is_reported(root, wrong):
    (root / "fed_isic" / "train_test_split").write_text(
        HEADER + line("ISIC_0_0_test", 0, 0, "test") + wrong
    )
    with pytest.raises(DataError, match="train_test_split, line 3: not a line of FLamby's table"):
        loaded(MADE_UP, root)


def test_a_picture_or_the_table_that_is_not_there_is_named(root):
    (root / "fed_isic" / "ISIC_2019_Training_Input" / "ISIC_3_2_test.jpg").unlink()
    message = message_of(DataError, loaded, MADE_UP, root)
    assert "ISIC_3_2_test.jpg: listed in the table, but missing" in message
    (root / "fed_isic" / "train_test_split").unlink()
    message = message_of(DataError, loaded, MADE_UP, root)
    assert re.search(r"train_test_split is missing; .*owkin/FLamby", message)
