"""CivilComments: official splits, and the worst of groups that overlap."""

import numpy as np
import pandas as pd
import pytest
import torch

from afield.data.datasets.civilcomments import WILDS, civilcomments
from afield.data.domains import ReadOptions
from afield.training.evaluation import Outputs, compute_scores
from tests.data.datasets.trees import needs_wilds

pytestmark = needs_wilds
IDENTITIES = ["male", "female", "LGBTQ", "christian", "muslim", "other_religions", "black", "white"]
AUXILIARY = ["identity_any", "severe_toxicity", "obscene", "threat", "insult", "identity_attack"]
ROWS = 120


@pytest.fixture
def root(tmp_path, own_cache):
    """Comments that mention identities at random; the first one is empty."""
    draw = np.random.default_rng(0)
    columns = [*IDENTITIES, *AUXILIARY, "sexual_explicit"]
    frame = pd.DataFrame(draw.random((ROWS, len(columns))), columns=columns)
    frame["toxicity"] = draw.random(ROWS)
    frame["comment_text"] = ["  ", *(f"comment {number}" for number in range(1, ROWS))]
    frame["split"] = ["train", "val", "test"] * (ROWS // 3)
    folder = tmp_path / "civilcomments_v1.0"
    folder.mkdir()
    frame.to_csv(folder / "all_data_with_identities.csv")
    (folder / "RELEASE_v1.0.txt").touch()
    return tmp_path


def test_the_official_splits_are_domains_and_training_comments_are_divided(root):
    domains = civilcomments.load(ReadOptions(root, tokens=16))
    official = WILDS._open(root)
    for name in ("val", "test"):
        in_split = official.split_array == official.split_dict[name]
        assert torch.equal(domains[name].y, official.y_array[in_split.astype(bool)])
    black = official.metadata_array[:, official.metadata_fields.index("black")]
    train = torch.from_numpy((official.split_array == 0).astype(bool))
    for value in (0, 1):
        domain = domains[f"black_{value}"]
        assert torch.equal(domain.y, official.y_array[train & (black == value)])
        assert domain.test is None
    assert domains["test"].names[0] == "row 2"
    texts = [bytes(row[row >= 0].tolist()).decode() for row in domains["test"].x]
    assert texts[:2] == ["comment 2", "comment 5"]


def test_the_metric_is_the_accuracy_on_the_worst_of_groups_that_overlap(root):
    test = civilcomments.load(ReadOptions(root, tokens=16))["test"]
    official = WILDS._open(root)
    inside = torch.from_numpy((official.split_array == official.split_dict["test"]).astype(bool))
    y, size = test.y.numpy(), len(test.y)
    predicted = np.random.default_rng(1).integers(0, 2, size)
    outputs = Outputs(np.zeros(size, dtype=int), y, predicted, 2, np.zeros(size))
    groups = np.unique(test.columns["identity"], return_inverse=True)
    (score,) = compute_scores(outputs, [groups], plain=[False])
    mentions = official.metadata_array[inside].numpy()
    expected = {
        f"{name}, {'toxic' if label else 'not toxic'}": (y == predicted)[chosen].mean()
        for i, name in enumerate(IDENTITIES)
        for label in (0, 1)
        for chosen in [(mentions[:, i] == 1) & (y == label)]
    }
    assert {name: hits / n for name, (hits, n) in score.groups.items()} == pytest.approx(expected)
    assert score.metrics["worst_group"] == pytest.approx(min(expected.values()))
