"""What is imagined: how far inputs are moved, and what is read of them, computed again."""

from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from matplotlib.colors import to_rgba

from afield.diagnosis.diagnostic import diagnose
from afield.diagnosis.diagnostics.perturbations import MAX_DOMAINS, Perturbations, _compare
from afield.errors import SpecError
from afield.runs.finished import FinishedRun
from tests.diagnosis.diagnostics.runs import (
    MARKUP_DOMAINS,
    everything,
    numbers,
    pictures_with_markup,
    reopened,
    spiral_runs,
    spoken_words,
    trained,
)

METHODS = {
    "crossgrad": {"crossgrad.epsilon_label": 300.0, "crossgrad.clip": 0.0005},
    "guided": {"crossgrad.guided": True, "crossgrad.epsilon_label": 300.0},
    "labelgrad": {"labelgrad.epsilon": 100.0},
    "erm": {},
    "dann": {},
}


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return spiral_runs(tmp_path_factory.mktemp("runs"), METHODS)


@pytest.fixture(scope="module")
def pictures(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run on small pictures, whose names have markup in them."""
    data = pictures_with_markup(tmp_path_factory.mktemp("pictures") / "own")
    return trained(data, "crossgrad", target="$y$", size=16)


def batch(subject: FinishedRun, name: str, count: int):
    batch = subject.domains[name].batch(subject.sample_indices(name, count))
    number = subject.record.run.sources.index(name)
    return batch._replace(domain=torch.full_like(batch.y, number))


def moved_by_hand(subject: FinishedRun, own, *, net, answers, epsilon: float, clip: float):
    """X + ε c(∇ J), J a mean over as many samples as a step of the training has."""
    run = subject.record.run
    x = own.x.clone().requires_grad_()
    losses = F.cross_entropy(net(x), answers, reduction="none")
    (slope,) = torch.autograd.grad(losses.sum() / (run.batch * len(run.sources)), x)
    return (x + epsilon * slope.clamp(-clip, clip)).detach()


def domain_net(name: str, subject: FinishedRun):
    return subject.model.guide if name == "guided" else subject.trained.parts["domain"]


@pytest.mark.parametrize(
    ("name", "epsilon", "clip"),
    [("crossgrad", 300.0, 0.0005), ("guided", 300.0, 0.1), ("labelgrad", 100.0, 0.1)],
)
def test_shifts_and_answers_are_those_of_a_batch_of_training(folders, name, epsilon, clip):
    subject = reopened(folders[name])
    data = Perturbations(samples=20).diagnose_runs([subject]).data
    of_labels = name == "labelgrad"
    net = subject.model if of_labels else domain_net(name, subject)
    classes, clipped = subject.learner.task.classes, []
    for source in subject.record.run.sources:
        own = batch(subject, source, 20)
        answers = own.y if of_labels else own.domain
        away = moved_by_hand(subject, own, net=net, answers=answers, epsilon=epsilon, clip=clip)
        rows, shift = data[data["domain"] == source], (away - own.x).abs()
        assert rows["mean shift"].tolist() == pytest.approx(shift.mean(1).tolist(), rel=1e-4)
        assert rows["largest shift"].tolist() == pytest.approx(shift.amax(1).tolist(), rel=1e-4)
        clipped.append(float(shift.max()) == pytest.approx(epsilon * clip, rel=1e-4))
        assert rows["label"].tolist() == [classes[i] for i in own.y.tolist()]
        with torch.no_grad():
            for column, x in (("answer", own.x), ("answer moved", away)):
                expected = [classes[i] for i in subject.model(x).argmax(1).tolist()]
                assert rows[column].tolist() == expected
            if not of_labels:
                for column, x in (("domain right", own.x), ("domain right moved", away)):
                    assert rows[column].tolist() == (net(x).argmax(1) == own.domain).tolist()
    assert all(clipped) == (name == "crossgrad"), "the clip is not met, or always: tells nothing"
    assert ("domain right" in data) == (not of_labels)


def test_how_many_are_shown_does_not_change_how_far_one_is_moved(folders):
    subject = reopened(folders["labelgrad"])
    few, more = (Perturbations(samples=n).diagnose_runs([subject]).data for n in (5, 50))
    first = more.groupby("domain", sort=False).head(5)
    assert few["sample"].tolist() == first["sample"].tolist()
    assert few["mean shift"].tolist() == pytest.approx(first["mean shift"].tolist(), rel=1e-4)
    assert few["mean shift"].mean() > 0.01


@pytest.mark.parametrize("name", ["crossgrad", "labelgrad"])
def test_it_is_what_the_method_imagines_in_a_batch_of_that_size(folders, name):
    subject = reopened(folders[name])
    data = Perturbations(samples=16).diagnose_runs([subject]).data
    for source, rows in data.groupby("domain"):
        own = batch(subject, source, 16)
        size = subject.record.run.batch * len(subject.record.run.sources)
        away = subject.method.perturbed_inputs(subject.trained, own, size)
        shift = (away - own.x).abs().mean(1)
        assert rows["mean shift"].tolist() == pytest.approx(shift.tolist(), rel=1e-5)


def test_the_findings_are_the_means_over_all_samples(folders):
    finding = Perturbations(samples=30).diagnose_runs([reopened(folders["crossgrad"])])
    data = finding.data
    right, then = ((data["label"] == data[c]).sum() / 0.9 for c in ("answer", "answer moved"))
    own, away = (data[c].sum() / 0.9 for c in ("domain right", "domain right moved"))
    assert len(data) == 90
    assert finding.summary == (
        f"inputs are moved by {data['mean shift'].sum() / 90:.2g} on average; "
        f"label accuracy {right:.1f} %, {then:.1f} % when perturbed; "
        f"domain accuracy {own:.1f} %, {away:.1f} % when perturbed"
    )
    alone = Perturbations().diagnose_runs([reopened(folders["labelgrad"])]).summary
    assert "domain accuracy" not in alone


def test_samples_are_called_by_their_names(folders, pictures):
    subject = reopened(folders["crossgrad"])
    data = Perturbations(samples=4).diagnose_runs([subject]).data
    for name, rows in data.groupby("domain"):
        called = [subject.sample_names[name][i] for i in subject.sample_indices(name, 4).tolist()]
        assert rows["sample"].tolist() == called
    assert list(data)[:3] == ["domain", "sample", "label"]
    for row in diagnose("perturbations", pictures).data.itertuples():
        assert row.sample.startswith(f"{row.domain}/{row.label}/")


@pytest.mark.parametrize("name", ["crossgrad", "guided", "labelgrad"])
def test_looking_changes_nothing_and_finds_the_same_again(folders, name):
    subject = reopened(folders[name])
    before, state = everything(subject), torch.get_rng_state()
    first, second = (Perturbations(samples=30).diagnose_runs([subject]) for _ in range(2))
    assert everything(subject) == before
    assert torch.equal(torch.get_rng_state(), state)
    assert first.data.equals(second.data)
    assert (
        Perturbations(samples=30).diagnose_runs([reopened(folders[name])]).data.equals(first.data)
    )


@pytest.mark.parametrize("name", ["erm", "dann"])
def test_a_method_that_moves_nothing_is_reported(folders, name):
    message = f"perturbations takes runs of crossgrad or labelgrad; {name} does not perturb inputs"
    with pytest.raises(SpecError, match=message):
        diagnose("perturbations", folders[name])


@pytest.mark.parametrize("settings", [{"strips": 0}, {"samples": 0}, {"samples": -3}], ids=str)
def test_settings_that_are_impossible_are_refused(folders, settings):
    ((name, value),) = settings.items()
    with pytest.raises(
        SpecError, match=f"perturbations.{name}={value}: must (be at least 1|not be below 0)"
    ):
        diagnose("perturbations", folders["crossgrad"], settings=settings)
    with pytest.raises(SpecError, match="perturbations takes one run, not 2"):
        diagnose("perturbations", [folders["crossgrad"]] * 2)


def test_arrays_are_drawn_as_lines_before_and_after(folders):
    subject = reopened(folders["labelgrad"])
    figure = Perturbations(samples=4).diagnose_runs([subject]).figure()
    shown = [axes for axes in figure.axes if axes.axison]
    assert len(shown) == 3
    for axes, source in zip(shown, subject.record.run.sources, strict=True):
        own = batch(subject, source, 4)
        net = {"net": subject.model, "answers": own.y, "epsilon": 100.0, "clip": 0.1}
        away = moved_by_hand(subject, own, **net)[0]
        before, after = (line.get_ydata() for line in axes.get_lines())
        assert before == pytest.approx(own.x[0].numpy())
        assert after == pytest.approx(away.numpy(), rel=1e-4)
        most = float((away - own.x[0]).abs().max())
        assert axes.get_title() == f"{source}: input, perturbed, difference\n(±{most:.2g})"


def test_pictures_stand_beside_their_moved_versions_a_row_for_each(pictures, tmp_path):
    finding = diagnose("perturbations", pictures, settings={"strips": 2})
    assert finding.panels == 2
    for axes, domain in zip(finding.figure().axes, MARKUP_DOMAINS[:2], strict=True):
        (image,) = axes.get_images()
        assert image.get_array().shape == (2 * 16, 3 * 16 + 2, 3)
        # Between two pictures there is white.
        assert (image.get_array()[:, 16] == to_rgba("white")[:3]).all()
        assert axes.get_title().startswith(
            f"{domain}: input, perturbed, difference\n(full color: ±"
        )
        assert axes.get_title().count("±") == 1
    finding.save(tmp_path / "fig.png")


def test_more_strips_than_samples_are_all_that_there_are(pictures):
    finding = diagnose("perturbations", pictures, settings={"strips": 50, "samples": 1})
    per_domain = finding.data.groupby("domain").size()
    for axes, count in zip(finding.figure().axes, per_domain, strict=True):
        (image,) = axes.get_images()
        assert len(image.get_array()) == 16 * count
        assert axes.get_title().count("±") == 1
    assert 1 < per_domain.max() <= 10


def test_one_source_gives_a_domain_net_nothing_to_move_along(tmp_path):
    folder = trained(numbers(tmp_path, domains=3, each=10), "crossgrad", target=["d01", "d02"])
    finding = diagnose("perturbations", folder)
    assert finding.panels == 1
    assert (finding.data["largest shift"] == 0).all()
    assert finding.data["domain right"].all()
    finding.figure()


def test_of_many_sources_some_are_shown(tmp_path):
    folder = trained(numbers(tmp_path, domains=9, each=10), "labelgrad", target="d00")
    finding = diagnose("perturbations", folder)
    assert list(dict.fromkeys(finding.data["domain"])) == [
        f"d{i:02}" for i in range(1, MAX_DOMAINS + 1)
    ]
    assert finding.panels == MAX_DOMAINS


@pytest.mark.parametrize("channels", [1, 2, 3, 5])
def test_pictures_of_real_numbers_may_have_any_number_of_channels(tmp_path, channels):
    data = numbers(tmp_path, domains=3, each=10, shape=(channels, 8, 12))
    folder = trained(data, "crossgrad", target="d02")
    finding = diagnose("perturbations", folder, settings={"strips": 1})
    (image,) = finding.figure().axes[0].get_images()
    assert image.get_array().shape == (8, 3 * 12 + 2, 3)
    assert (finding.data["mean shift"] > 0).all()


def test_grey_pictures_may_come_without_a_channel(tmp_path):
    data = numbers(tmp_path, domains=3, each=10, shape=(8, 12))
    finding = diagnose("perturbations", trained(data, "labelgrad", target="d02"))
    (image,) = finding.figure().axes[0].get_images()
    assert image.get_array().shape == (3 * 8, 3 * 12 + 2, 3)


@pytest.mark.slow
def test_sounds_are_drawn_as_pictures(tmp_path):
    folder = trained(spoken_words(tmp_path / "own", each=3), "crossgrad", target="cid")
    finding = diagnose("perturbations", folder, settings={"strips": 2})
    height, width = reopened(folder).learner.task.shape[1:]
    (image,) = finding.figure().axes[0].get_images()
    assert image.get_array().shape[0] == 2 * height
    assert image.get_array().shape[1] > 3 * width
    assert (finding.data["mean shift"] > 0).all()


def side_by_side(before, after):
    """The three pictures that are shown of a sample, without the gaps between them."""
    before, after = (np.asarray(x, dtype=np.float32) for x in (before, after))
    shown = _compare(before, after, after - before)
    (_, height, width), gap = before.shape, max(1, before.shape[2] // 14)
    assert shown.shape == (height, 3 * width + 2 * gap, 3)
    assert shown.dtype == np.float32
    assert ((shown >= 0) & (shown <= 1)).all()
    gaps = (width, 2 * width + gap)
    assert all((shown[:, start : start + gap] == 1).all() for start in gaps)
    return [shown[:, start : start + width] for start in (0, width + gap, 2 * (width + gap))]


def test_both_versions_are_on_the_scale_of_the_first():
    before = np.linspace(-3, 5, 3 * 4 * 4).reshape(3, 4, 4)
    first, second, _ = side_by_side(before, before + 2)
    assert first == pytest.approx(((before + 3) / 8).transpose(1, 2, 0), abs=1e-6)
    # What is above the scale is as bright as can be.
    assert second == pytest.approx(((before + 5) / 8).clip(0, 1).transpose(1, 2, 0), abs=1e-6)


def test_more_is_red_less_is_blue_and_the_same_is_white():
    _, _, change = side_by_side(np.zeros((1, 1, 5)), [[[4.0, 2.0, 0.0, -1.0, -4.0]]])
    red, pale, white, faint, blue = change[0].tolist()
    assert red == [1, 0, 0]
    assert pale == [1, 0.5, 0.5]
    assert white == [1, 1, 1]
    assert faint == [0.75, 0.75, 1]
    assert blue == [0, 0, 1]


def test_a_difference_is_the_mean_of_the_channels_on_the_scale_of_the_largest():
    after = np.zeros((3, 1, 2))
    after[0, 0, 0] = 6.0
    _, _, change = side_by_side(np.zeros((3, 1, 2)), after)
    assert change[0, 0] == pytest.approx([1, 2 / 3, 2 / 3])


@pytest.mark.parametrize("channels", [1, 2])
def test_fewer_than_three_channels_are_shown_in_grey(channels):
    before = np.random.default_rng(0).normal(size=(channels, 6, 30))
    for shown in side_by_side(before, before + 0.1)[:2]:
        assert (shown == shown[:, :, :1]).all()
        assert len(np.unique(shown)) > 2


def test_of_many_channels_the_first_three_are_the_colours():
    before = np.random.default_rng(0).uniform(size=(5, 4, 4))
    before[3:] = 0.5
    three, five = (side_by_side(x, x + 0.1)[0] for x in (before[:3], before))
    assert (three == five).all()


def test_a_sample_that_is_flat_or_not_moved_can_be_shown():
    flat = np.full((3, 4, 4), 7.0)
    first, second, change = side_by_side(flat, flat)
    assert (first == second).all()
    assert (change == 1).all()
