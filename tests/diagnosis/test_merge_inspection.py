"""A look at experts before merging: the numbers again, slowly."""

import logging

import pytest
import torch
from safetensors.torch import save_file

from afield.diagnosis.merge_inspection import inspect_experts
from afield.errors import MergeError, SpecError
from tests.merging.adapters import family as adapter_family
from tests.merging.families import family


@pytest.fixture
def written(tmp_path):
    base, experts = family(3)
    experts[2] = {name: base[name] + 5 * (value - base[name]) for name, value in experts[2].items()}
    paths = [tmp_path / f"{name}.safetensors" for name in ("base", "a", "b", "c")]
    for path, state in zip(paths, (base, *experts), strict=True):
        save_file(state, path)
    return paths, base, experts


def flat(base, expert):
    return torch.cat([(expert[name].double() - base[name]).flatten() for name in base])


def test_norms_cosines_and_signs_are_those_of_the_flat_changes(written, monkeypatch):
    monkeypatch.setattr("afield.diagnosis.merge_inspection.ENTRIES_PER_PIECE", 7)
    paths, base, experts = written
    finding = inspect_experts(paths[0], paths[1:])
    deltas = [flat(base, expert) for expert in experts]
    norms = torch.stack([delta.norm() for delta in deltas])
    table = finding.extra_tables["experts"]
    assert list(table["expert"]) == ["a.safetensors", "b.safetensors", "c.safetensors"]
    assert table["norm"].tolist() == pytest.approx(norms.tolist(), rel=1e-5)
    assert table["of_shortest"].tolist() == pytest.approx((norms / norms.min()).tolist(), rel=1e-5)
    pairs = [(0, 1), (0, 2), (1, 2)]
    cosines = [torch.cosine_similarity(deltas[i], deltas[j], dim=0).item() for i, j in pairs]
    signs = [(deltas[i].sign() == deltas[j].sign()).double().mean().item() for i, j in pairs]
    assert finding.data["cosine"].tolist() == pytest.approx(cosines, rel=1e-4)
    assert finding.data["signs"].tolist() == pytest.approx(signs, abs=1e-2)


def test_overlaps_are_of_leading_directions_and_spreads_of_each_tensor(tmp_path):
    base = {"w": 10 * torch.eye(8), "v": torch.ones(4)}
    first, second = torch.zeros(8, 8), torch.zeros(8, 8)
    first[0, 1], second[0, 2] = 1.0, 1.0
    second[5, 5] = 0.1
    experts = [base | {"w": base["w"] + delta} for delta in (first, second)]
    paths = [tmp_path / f"{i}.safetensors" for i in range(3)]
    for path, state in zip(paths, (base, *experts), strict=True):
        save_file(state, path)
    finding = inspect_experts(paths[0], paths[1:])
    (row,) = finding.data.to_dict("records")
    # Both lie in the first row: only the small part of the second does not.
    assert row["sar"] == pytest.approx((1 + 1 / 1.01**0.5) / 2, abs=1e-6)
    assert row["angle"] == pytest.approx(0, abs=1e-3)
    assert row["cosine"] == pytest.approx(0, abs=1e-9)
    tensors = finding.extra_tables["tensors"].set_index("tensor")
    expected = ((first - second).norm() / 2 / base["w"].norm()).item()
    assert tensors["spread"].to_dict() == pytest.approx({"w": expected, "v": 0.0})


def test_unequal_norms_are_a_warning_and_a_figure_shows_them(written, tmp_path, caplog):
    paths, *_ = written
    with caplog.at_level(logging.WARNING):
        finding = inspect_experts(paths[0], paths[1:])
    (warning,) = [m for m in caplog.messages if "times as long" in m]
    assert warning.startswith(f"{paths[3]}: its change is")
    assert "--equalize norm" in warning
    figure, *tables = finding.save(tmp_path / "look.png")
    assert figure.stat().st_size > 1000
    names = [table.name for table in tables]
    assert names == ["look.csv", "look.experts.csv", "look.tensors.csv"]


def test_adapters_are_compared_as_their_products(tmp_path):
    base, adapters, models = adapter_family(tmp_path)
    found, expected = inspect_experts(base, adapters), inspect_experts(base, models)
    numbers = ["cosine", "sar", "angle"]
    difference = (found.data[numbers] - expected.data[numbers]).abs().max()
    assert (difference < 1e-3).all()


def test_what_cannot_be_compared_is_one_line(written, tmp_path):
    paths, base, _ = written
    with pytest.raises(SpecError, match="1 expert given; give at least two"):
        inspect_experts(paths[0], paths[1:2])
    save_file(base | {"a.bias": torch.ones(5)}, tmp_path / "d.safetensors")
    with pytest.raises(MergeError, match=r"a.bias has the shape \[5\]"):
        inspect_experts(paths[0], [paths[1], tmp_path / "d.safetensors"])
    inspect_experts(paths[0], [paths[1], tmp_path / "d.safetensors"], leave=["a.bias"])
