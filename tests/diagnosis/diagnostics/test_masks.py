from itertools import combinations
from pathlib import Path

import pytest
import torch
from torch import nn

from afield.diagnosis.diagnostics.gradient_shares import GradientShares
from afield.diagnosis.diagnostics.loss_surface import LossSurface
from afield.diagnosis.diagnostics.masks import ALL_MASKS, Masks
from afield.errors import SpecError
from afield.runs.finished import FinishedRun
from afield.studies.benchmarking import train
from tests.diagnosis.diagnostics.runs import reopened


@pytest.fixture(scope="module")
def masked_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    store = tmp_path_factory.mktemp("masked")
    settings = {"steps": 80, "dmg.mask_rate": 30.0, "dmg.overlap": 1.0}
    record = train("spirals", "dmg", target="turn30", store=store, settings=settings)
    return store / record.run.key


@pytest.fixture
def masked(masked_folder: Path) -> FinishedRun:
    return reopened(masked_folder)


def test_overlaps_are_those_of_the_kept_channels(masked):
    finding = Masks().diagnose_runs([masked])
    iou = finding.data.set_index(["layer", "first", "second"])["iou"]
    assert len(iou) == 2 * 3
    for layer, p in zip(masked.model.layers, masked.model.probabilities(), strict=True):
        for i, j in combinations(range(3), 2):
            kept = p[[i, j]] > 0.5
            expected = float(kept.all(dim=0).sum() / kept.any(dim=0).sum())
            names = masked.model.domains
            assert iou[layer, names[i], names[j]] == pytest.approx(expected, abs=1e-4)


def test_every_channel_is_shared_specific_or_useless(masked):
    # The second domain keeps nothing, the others keep the first 20 units of the first layer.
    first = masked.model.logits[0]
    nn.init.constant_(first, -1.0)
    with torch.no_grad():
        first[[0, 2], :20] = 1.0
        first[1, :5] = 1.0
    kinds = Masks().diagnose_runs([masked]).extra_tables["kinds"]
    kinds = kinds[kinds["layer"] == masked.model.layers[0]].set_index("kind")
    assert kinds["channels"].to_dict() == {"shared": 5, "specific": 15, "useless": 44}
    assert kinds["share"].sum() == pytest.approx(1)


def test_accuracies_are_those_of_each_domains_masks(masked):
    accuracy = (
        Masks().diagnose_runs([masked]).extra_tables["accuracy"].set_index(["masks", "domain"])
    )
    assert accuracy.loc[(ALL_MASKS, "turn30"), "seen"] == False  # noqa: E712  a numpy bool
    for name, samples in (("turn30", masked.domains), ("turn10", masked.probes)):
        batch = samples[name].batch(torch.arange(len(samples[name])))
        for number, masks in ((0, "turn0"), (2, "turn20"), (None, ALL_MASKS)):
            with torch.no_grad():
                right = masked.model(batch.x, number).argmax(1) == batch.y
            expected = float(right.double().mean())
            assert accuracy.loc[(masks, name), "accuracy"] == pytest.approx(expected)


def test_it_says_what_masks_share_and_whom_they_serve(masked):
    summary = Masks().diagnose_runs([masked]).summary
    assert summary.startswith("of 128 masked channels, ")
    assert "% with its own masks" in summary


def test_fewer_samples_can_be_asked_for(masked):
    whole, few = (
        Masks(samples=n).diagnose_runs([masked]).extra_tables["accuracy"] for n in (2000, 10)
    )
    assert not whole["accuracy"].equals(few["accuracy"])
    assert ((10 * few["accuracy"]).round(6) % 1 == 0).all()
    assert Masks(samples=1).samples == 1
    with pytest.raises(SpecError, match=r"masks.samples=0: must be at least 1"):
        Masks(samples=0)


def test_a_run_without_masks_is_refused(subject):
    with pytest.raises(SpecError, match="masks takes runs of dmg; this is a run of arith"):
        Masks().diagnose_runs([subject])


@pytest.mark.parametrize("diagnostic", [GradientShares(), LossSurface(points=2, steps=1)], ids=str)
def test_what_trains_the_network_by_itself_refuses_masks(masked, diagnostic):
    with pytest.raises(SpecError, match="trains a network without masks; dmg needs its masks"):
        diagnostic.diagnose_runs([masked])
