"""The preprocessing of tables: what scikit-learn computes, as plain numbers."""

import numpy as np
import pytest
import torch
from sklearn.compose import make_column_transformer
from sklearn.impute import SimpleImputer
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler

from afield.data.frames import Column
from afield.data.samples import Rows
from afield.data.scaling import FittedColumn, TableScaling
from afield.errors import SpecError

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
    for wrong in ({"std": 0.0}, {"fill": float("nan")}, {"known": (1,)}):
        with pytest.raises(SpecError, match="column 'a'"):
            FittedColumn("a", **wrong)
