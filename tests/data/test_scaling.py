"""Scaling of stored values to the input of a network."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from sklearn.compose import make_column_transformer
from sklearn.impute import SimpleImputer
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler

from afield.data.domains import Domain
from afield.data.frames import Column
from afield.data.samples import MAX_BYTES_CPU, Rows
from afield.data.scaling import FittedColumn, Scaling, TableScaling, extreme_value_warnings
from afield.errors import SpecError


def test_bytes_of_pictures_go_from_minus_one_to_one():
    x = torch.arange(256, dtype=torch.uint8).view(1, 1, 16, 16)
    scaling = Scaling.fit(Rows([x[..., :3]]))
    torch.testing.assert_close(scaling(x).flatten(), torch.linspace(-1, 1, 256))


@pytest.mark.parametrize("max_bytes", [MAX_BYTES_CPU, 0])
@pytest.mark.parametrize("shape", [(3,), (3, 4, 5)])
def test_numbers_are_standardised_per_feature_or_channel_over_all_that_is_given(shape, max_bytes):
    torch.manual_seed(0)
    scale = torch.tensor([1.0, 10.0, 0.01]).view(3, *[1] * (len(shape) - 1))
    x = [scale * torch.randn(n, *shape) + 5 * scale for n in (40, 60)]
    scaled = Scaling.fit(Rows(x, max_bytes=max_bytes))(torch.cat(x))
    by_feature = scaled.transpose(0, 1).flatten(1).double()
    torch.testing.assert_close(by_feature.mean(1), torch.zeros(3).double(), atol=1e-5, rtol=0)
    torch.testing.assert_close(by_feature.std(1, correction=0), torch.ones(3).double())


def test_scaling_changes_nothing_but_scale_and_origin_of_what_it_was_not_fitted_to():
    scaling = Scaling.fit(Rows([torch.tensor([[0.0, 2.0], [2.0, 6.0]])]))
    scaled = scaling(torch.tensor([[1.0, 4.0], [11.0, 4.0], [1.0, -16.0]]))
    torch.testing.assert_close(scaled, torch.tensor([[0.0, 0.0], [10.0, 0.0], [0.0, -10.0]]))


@pytest.mark.parametrize("value", [0.0, 0.1, -12345.678])
def test_a_constant_feature_does_not_divide_by_zero(value):
    x = torch.stack([torch.full((1000,), value), torch.arange(1000.0)], dim=1)
    scaling = Scaling.fit(Rows([x]))
    assert (scaling(x)[:, 0].abs() < 1e-2).all()
    # Where it is not constant, it is not blown up either.
    assert scaling(x + 1)[:, 0].sub(1).abs().max() < 1e-2


def test_scaled_pictures_keep_their_values_in_the_layout_of_convolutions():
    x = torch.randn(2, 3, 4, 5, generator=torch.Generator().manual_seed(0))
    scaled = Scaling(torch.tensor(0.5), torch.tensor(2.0))(x)
    assert scaled.is_contiguous(memory_format=torch.channels_last)
    assert torch.equal(scaled, (x - 0.5) / 2)


def test_the_scaling_of_a_network_is_given_for_pictures_from_zero_to_one():
    mean, std = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
    scaling = Scaling.for_images(mean, std, channels=3, device=torch.device("cpu"))
    x = torch.randint(256, (5, 3, 4, 6), dtype=torch.uint8, generator=torch.Generator())
    column = (torch.tensor(part)[:, None, None] for part in (mean, std))
    torch.testing.assert_close(scaling(x), (x / 255 - next(column)) / next(column))
    grey = Scaling.for_images(mean, std, channels=1, device=torch.device("cpu"))
    expected = (x[:, :1] / 255 - sum(mean) / 3) / (sum(std) / 3)
    torch.testing.assert_close(grey(x[:, :1]), expected)


def test_a_value_that_would_decide_the_scaling_is_reported_with_its_sample():
    generator = torch.Generator().manual_seed(0)
    domains = {
        name: Domain(torch.randn(50, 3, generator=generator), y=torch.zeros(50).long())
        for name in ("one", "two")
    }
    assert extreme_value_warnings(domains) == []
    domains["two"].x[7, 1] = 3e38
    (warning,) = extreme_value_warnings(domains)
    assert "sample 7 of domain 'two' has the value 3e+38" in warning


def test_rare_and_large_features_are_not_extreme():
    x = torch.zeros(100, 2)
    x[3, 0] = 1.0
    x[:, 1] = 1e7
    assert extreme_value_warnings({"one": Domain(x, y=torch.zeros(100).long())}) == []


COLUMNS = (Column("age"), Column("sex", ("f", "m", "x")), Column("dose"))


def table(rows: int = 40) -> torch.Tensor:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(rows, 3, generator=generator) * torch.tensor([10.0, 0, 3]) + 5
    x[:, 1] = torch.randint(0, 2, (rows,), generator=generator).float()
    x[3, 0] = x[4, 1] = x[5, 2] = torch.nan
    return x


def test_it_equals_a_pipeline_of_scikit_learn():
    x = table()
    new = table()[:6].clone()
    new[0, 1] = 2.0  # a category that the sources do not have
    numbers = make_pipeline(SimpleImputer(strategy="median"), StandardScaler())
    categories = make_pipeline(
        SimpleImputer(strategy="most_frequent"), OneHotEncoder(handle_unknown="ignore")
    )
    theirs = make_column_transformer((numbers, [0]), (categories, [1]), (numbers, [2]))
    theirs.fit(x.double().numpy())
    scaling = TableScaling.fit(Rows([x]), COLUMNS)
    expected = np.asarray(theirs.transform(new.double().numpy()), dtype=np.float32)
    np.testing.assert_allclose(scaling(new).numpy(), expected, atol=1e-5)
    assert scaling.network_shape((3,)) == (4,)
    assert scaling(new)[0, 1:3].tolist() == [0.0, 0.0]


def test_it_is_the_same_after_it_was_stored():
    scaling = TableScaling.fit(Rows([table()]), COLUMNS)
    assert TableScaling.from_dict(scaling.to_dict()) == scaling


def test_constant_and_empty_columns_give_finite_inputs():
    x = table()
    x[:, 0], x[:, 2] = 7.0, torch.nan
    assert TableScaling.fit(Rows([x]), COLUMNS)(x).isfinite().all()


def test_stored_numbers_that_make_no_sense_are_refused():
    for wrong in ({"std": 0.0}, {"fill": float("nan")}, {"known": (1,)}, {"tail": -1.0}):
        with pytest.raises(SpecError, match="column 'a'"):
            FittedColumn("a", **wrong)


PRESSURE = Column("pressure", ("120", "140", "n/d"), (120.0, 140.0, math.nan))


def by_sources(codes, *columns, robust=False):
    x = torch.tensor(codes, dtype=torch.float32).view(-1, len(columns))
    return TableScaling.fit(Rows([x]), columns, by_sources=True, robust=robust)


def test_texts_are_numbers_if_all_those_of_the_sources_are():
    scaling = by_sources([0, 1, 0, 1], PRESSURE)
    assert scaling.columns == (FittedColumn("pressure", None, 130, 130, 10, lenient=True),)
    x = torch.tensor([[0.0], [1.0], [2.0], [math.nan]])
    torch.testing.assert_close(scaling(x), torch.tensor([[-1.0], [1.0], [0.0], [0.0]]))
    assert scaling.misfits({"va": Domain(x, torch.zeros(4, dtype=torch.long))}) == [
        "column 'pressure': in 'va', 1 of 4 cells are not numbers and count as missing, such as "
        "'n/d'"
    ]


def test_more_than_a_tenth_of_texts_in_the_sources_makes_categories():
    assert by_sources([0, 1, 2], PRESSURE).columns[0].known == (0, 1, 2)
    rare = by_sources([*[0, 1] * 10, 2], PRESSURE).columns[0]
    assert (rare.categories, rare.indicator) == (None, True)
    assert by_sources([*[0, 1] * 4, 2], PRESSURE).columns[0].known == (0, 1, 2)
    assert by_sources([0, 1, 1], replace(PRESSURE, declared="category")).columns[0].known == (0, 1)
    assert by_sources([0, 1, 2], replace(PRESSURE, declared="number")).columns[0].indicator


def test_a_missing_value_of_the_sources_is_an_input_of_its_own():
    scaling = by_sources([1.0, 3.0, math.nan], Column("age"))
    assert scaling.network_shape((1,)) == (2,)
    expected = torch.tensor([[-1.0, 0.0], [0.0, 1.0]])
    shown = scaling(torch.tensor([[1.0], [math.nan]]))
    torch.testing.assert_close(shown[:, 1], expected[:, 1])
    assert shown[0, 0] < shown[1, 0]


def test_one_large_number_hardly_changes_the_robust_scaling_and_is_scaled_to_a_short_tail():
    numbers = torch.linspace(-1, 1, 101).tolist()
    plain = by_sources(numbers, Column("dose"), robust=True)
    spoiled = by_sources([*numbers, 1e6], Column("dose"), robust=True)
    x = torch.tensor([[-1.0], [0.0], [1.0]])
    torch.testing.assert_close(spoiled(x), plain(x), rtol=0.05, atol=0.05)
    # Quartiles at -0.5 and 0.5 are those of a normal distribution with this deviation.
    torch.testing.assert_close(plain(x)[2, 0], torch.tensor(1.349))
    far = plain(torch.tensor([[3 / 1.349], [4 / 1.349], [1e6], [-1e6]]))[:, 0]
    torch.testing.assert_close(far[:2], torch.tensor([3.0, 3 + math.log(2)]))
    assert 10 < far[2] < 20
    assert far[3] == -far[2]
    again = TableScaling.from_dict(plain.to_dict())
    torch.testing.assert_close(again(x), plain(x))


def test_a_column_of_few_different_numbers_has_a_robust_scaling():
    rare = by_sources([*[0.0] * 9, 5.0], Column("visits"), robust=True)
    assert rare.columns[0].std == pytest.approx(1.5)
    assert by_sources([7.0, 7.0], Column("year"), robust=True)(torch.tensor([[7.0]])) == 0.0


def test_a_missing_category_is_in_no_category_if_the_sources_have_missing_cells():
    column = Column("thal", ("fixed", "normal"), (math.nan, math.nan))
    scaling = by_sources([0, 1, 1, math.nan], column, robust=True)
    x = torch.tensor([[math.nan], [1.0], [-1.0]])
    assert scaling(x).tolist() == [[0, 0, 1], [0, 1, 0], [0, 0, 0]]
    # Otherwise no input would tell, and the most frequent category is the best guess.
    complete = by_sources([0, 1, 1], column, robust=True)
    assert complete(x).tolist() == [[0, 1], [0, 1], [0, 0]]


@pytest.mark.parametrize("name", ["id", "ID", "patient_id", "PatientID", "row_number", "uuid"])
def test_names_of_rows_are_not_features_unless_they_are_declared(name):
    scaling = by_sources([[1.0, 2.0], [3.0, 4.0]], Column(name), Column("age"))
    assert [column.name for column in scaling.columns] == ["age"]
    assert scaling(torch.tensor([[9.0, 2.0]])).shape == (1, 1)
    declared = by_sources([[1.0, 2.0]], Column(name, declared="number"), Column("age"))
    assert len(declared.columns) == 2


@pytest.mark.parametrize("name", ["grid", "humid", "width", "fluid"])
def test_words_that_end_like_a_name_of_rows_are_features(name):
    assert len(by_sources([[1.0]], Column(name)).columns) == 1


def test_more_texts_than_categories_can_have_are_refused():
    texts = tuple(f"name{i:03}" for i in range(300))
    column = Column("name", texts, (math.nan,) * 300)
    assert len(by_sources([0, 1], column).columns[0].known) == 2
    with pytest.raises(SpecError, match="300 different texts in the sources, too many"):
        by_sources(list(range(300)), column)


def test_a_restored_preprocessing_reads_rows_as_they_are_stored():
    scaling = by_sources([0, 1, 0, 1], PRESSURE)
    again = scaling.restored(scaling.to_dict())
    x = torch.tensor([[0.0], [2.0]])
    torch.testing.assert_close(again(x), scaling(x))
    # A model in use reads numbers.
    in_use = TableScaling.from_dict(scaling.to_dict())
    torch.testing.assert_close(in_use(torch.tensor([[120.0]])), torch.tensor([[-1.0]]))
