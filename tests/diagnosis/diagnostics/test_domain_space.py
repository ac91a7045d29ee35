"""The map of domains: its coordinates and its summary, computed again by other means."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from sklearn.metrics import silhouette_samples
from torch import nn

from afield.data.domains import Domain
from afield.data.samples import pool_domains
from afield.diagnosis.diagnostic import diagnose
from afield.diagnosis.diagnostics.domain_space import MAX_DOMAINS, DomainSpace
from afield.errors import SpecError
from afield.networks.backbone import Classifier
from afield.runs.finished import FinishedRun
from tests.diagnosis.diagnostics.runs import (
    MARKUP_CLASSES,
    everything,
    numbers,
    pictures_with_markup,
    reopened,
    spiral_runs,
    spoken_words,
    trained,
)
from tests.files import tree
from tests.messages import message_of

# So far that some samples are moved past the mean of another domain.
FAR = {"crossgrad.epsilon_label": 3000.0, "crossgrad.clip": 0.0}
METHODS = {
    "crossgrad": FAR,
    "guided": {"crossgrad.guided": True},
    "labelgrad": {},
    "erm": {},
    "dann": {},
    "dmg": {},
}


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return spiral_runs(tmp_path_factory.mktemp("runs"), METHODS)


@pytest.fixture
def moving(folders) -> FinishedRun:
    return reopened(folders["crossgrad"])


def batch(subject: FinishedRun, name: str, count: int):
    """The samples that are shown of a domain, with the number of the source."""
    batch = subject.domains[name].batch(subject.sample_indices(name, count))
    sources = subject.record.run.sources
    number = sources.index(name) if name in sources else -1
    return batch._replace(domain=torch.full_like(batch.y, number))


def domain_features(subject: FinishedRun, x: torch.Tensor) -> np.ndarray:
    with torch.no_grad():
        return subject.trained.parts["domain"].features(x).double().numpy()


def moved_by_hand(subject: FinishedRun, name: str, count: int) -> torch.Tensor:
    """X + ε ∇ J_d, of a mean over as many samples as a step of the training has."""
    (x, _, domain, _), run = batch(subject, name, count), subject.record.run
    x = x.requires_grad_()
    losses = F.cross_entropy(subject.trained.parts["domain"](x), domain, reduction="none")
    (slope,) = torch.autograd.grad(losses.sum() / (run.batch * len(run.sources)), x)
    return (x + run.params["epsilon_label"] * slope).detach()


def same_up_to_sign(result: np.ndarray, expected: np.ndarray) -> bool:
    """Whether two maps are one; a direction may point either way."""
    turned = expected * np.sign((result * expected).sum(axis=0))
    return np.allclose(result, turned, atol=1e-6)


def test_the_map_is_of_the_two_directions_in_which_domain_features_vary_most(moving):
    data = DomainSpace(samples=50).diagnose_runs([moving]).data
    g = np.concatenate(
        [domain_features(moving, batch(moving, name, 50).x) for name in moving.domains]
    )
    mean = g.mean(axis=0)
    variances, directions = np.linalg.eigh(np.cov(g.T))
    assert variances[-1] > variances[-2] > variances[-3]
    clean = data[~data["moved"]]
    assert list(clean["domain"]) == [name for name in moving.domains for _ in range(50)]
    result = clean[["first", "second"]].to_numpy()
    assert same_up_to_sign(result, (g - mean) @ directions[:, [-1, -2]])
    (source,) = set(data[data["moved"]]["domain"])
    away = domain_features(moving, moved_by_hand(moving, source, 50))
    both = data[["first", "second"]].to_numpy()
    assert same_up_to_sign(both, (np.concatenate([g, away]) - mean) @ directions[:, [-1, -2]])


def test_moved_samples_are_those_of_a_batch_of_training_however_many_are_shown(moving):
    finding = DomainSpace(samples=12, moved="turn10").diagnose_runs([moving])
    run = moving.record.run
    assert moving.stream.total == run.batch * len(run.sources) != 12
    away = moved_by_hand(moving, "turn10", 12)
    clean = batch(moving, "turn10", 12).x
    assert not torch.allclose(away, clean, atol=1e-3)
    own = finding.data[finding.data["domain"] == "turn10"]
    before, after = (own[own["moved"] == is_moved] for is_moved in (False, True))
    expected = domain_features(moving, away) - domain_features(moving, clean)
    result = after[["first", "second"]].to_numpy() - before[["first", "second"]].to_numpy()
    # Distances on the map are no longer than those in the space, and of two directions most of it.
    lengths = np.linalg.norm(result, axis=1)
    assert (lengths <= np.linalg.norm(expected, axis=1) + 1e-9).all()
    g = np.concatenate([domain_features(moving, batch(moving, d, 12).x) for d in moving.domains])
    _, _, directions = np.linalg.svd(g - g.mean(axis=0))
    assert same_up_to_sign(result, expected @ directions[:2].T)


def test_every_row_says_its_label_and_whether_its_domain_was_seen(moving):
    data = DomainSpace(samples=20).diagnose_runs([moving]).data
    classes = moving.learner.task.classes
    for (name, _), own in data.groupby(["domain", "moved"]):
        assert list(own["label"]) == [classes[i] for i in batch(moving, name, 20).y.tolist()]
        assert set(own["seen"]) == {name != "turn30"}


def lying(subject: FinishedRun, means: dict[str, tuple[float, float]]) -> FinishedRun:
    """The subject with two samples either side of these means, and features that are the inputs."""
    off = torch.tensor([[0.1, 0.0], [-0.1, 0.0]])
    domains = {
        name: pool_domains({name: Domain(torch.tensor(mean) + off, torch.tensor([0, 1]))})
        for name, mean in means.items()
    }
    return replace(subject, domains=domains, model=Classifier(nn.Identity(), 2, 2))


@pytest.mark.parametrize(
    ("place", "message"),
    [
        (
            (1.0, 1.0),
            "lies between turn0 and turn10, at 0.25 of the way and 0.25 of it from the line",
        ),
        (
            (3.0, -1.0),
            "lies between turn10 and turn0, at 0.25 of the way and 0.25 of it from the line",
        ),
        (
            (1.0, 7.0),
            "lies not between turn0 and turn10, at 0.25 of the way and 1.75 of it from the line",
        ),
        ((-2.0, 0.0), "lies not between turn0 and turn10, at -0.50 of the way and 0.00 of it"),
        (
            (0.0, 90.0),
            "lies between turn20 and turn0, at 0.10 of the way and 0.00 of it from the line",
        ),
    ],
)
def test_an_unseen_domain_lies_on_the_line_through_its_two_nearest_sources(folders, place, message):
    means = {"turn0": (0.0, 0.0), "turn10": (4.0, 0.0), "turn20": (0.0, 100.0), "turn30": place}
    finding = DomainSpace(samples=3).diagnose_runs([lying(reopened(folders["erm"]), means)])
    assert f"turn30 (unseen) {message}" in finding.summary


def test_the_source_that_is_shown_is_the_nearest_to_the_first_unseen_domain(folders):
    subject = reopened(folders["erm"])
    for nearest in ("turn0", "turn10", "turn20"):
        means = {name: (10.0 * i, 0.0) for i, name in enumerate(subject.record.run.sources)}
        x = means[nearest][0]
        finding = DomainSpace().diagnose_runs([lying(subject, means | {"turn30": (x, 1.0)})])
        assert finding.figure().axes[1].get_title() == f"{nearest} (no perturbations)"
    chosen = DomainSpace(moved="turn0").diagnose_runs(
        [lying(subject, means | {"turn30": (x, 1.0)})]
    )
    assert chosen.figure().axes[1].get_title() == "turn0 (no perturbations)"


def test_samples_are_counted_that_are_nearer_to_another_domains_mean(moving):
    summary = DomainSpace(samples=40, moved="turn20").diagnose_runs([moving]).summary
    g = {name: domain_features(moving, batch(moving, name, 40).x) for name in moving.domains}
    means = {name: points.mean(axis=0) for name, points in g.items()}

    def elsewhere(points) -> int:
        own = 0
        for point in points:
            lengths = {name: ((point - mean) ** 2).sum() for name, mean in means.items()}
            own += min(lengths, key=lengths.get) == "turn20"
        return len(points) - own

    before = elsewhere(g["turn20"])
    after = elsewhere(domain_features(moving, moved_by_hand(moving, "turn20", 40)))
    assert before != after, "nothing is moved past a mean: the test tells nothing"
    assert (
        f"{100 * before / 40:.0f} % of the samples of turn20 are nearest to the mean of another "
        f"domain, {100 * after / 40:.0f} % when perturbed"
    ) in summary


def test_silhouettes_are_of_domains_and_of_labels_within_a_domain(moving):
    summary = DomainSpace(samples=30).diagnose_runs([moving]).summary
    batches = {name: batch(moving, name, 30) for name in moving.domains}
    g = {name: domain_features(moving, own.x) for name, own in batches.items()}
    origin = np.arange(len(g)).repeat(30)
    of_domains = silhouette_samples(np.concatenate(list(g.values())), origin).mean()
    of_labels = np.mean([silhouette_samples(g[name], batches[name].y.numpy()).mean() for name in g])
    assert summary.endswith(
        f"silhouette: {of_domains:.2f} of domains, {of_labels:.2f} of labels within a domain"
    )


def test_in_pieces_the_features_are_the_same(moving, monkeypatch):
    whole = DomainSpace(samples=50).diagnose_runs([moving]).data
    monkeypatch.setattr("afield.diagnosis.diagnostics.domain_space.CHUNK", 7)
    pieces = DomainSpace(samples=50).diagnose_runs([moving]).data
    assert pieces["first"].to_numpy() == pytest.approx(whole["first"].to_numpy(), abs=1e-5)


@pytest.mark.parametrize(
    ("name", "net", "moves"),
    [
        ("crossgrad", lambda subject: subject.trained.parts["domain"], True),
        ("guided", lambda subject: subject.model.guide, True),
        ("labelgrad", lambda subject: subject.model, True),
        ("erm", lambda subject: subject.model, False),
        ("dann", lambda subject: subject.model, False),
    ],
)
def test_features_are_those_of_the_domain_net_or_else_of_the_network(folders, name, net, moves):
    subject = reopened(folders[name])
    finding = DomainSpace(samples=40).diagnose_runs([subject])
    with torch.no_grad():
        g = torch.cat([net(subject).features(batch(subject, d, 40).x) for d in subject.domains])
    # The variances along the map's directions are the two largest of all.
    variances = torch.linalg.svdvals(g.double() - g.double().mean(0))[:2] ** 2
    clean = finding.data[~finding.data["moved"]]
    assert (clean[["first", "second"]] ** 2).sum().tolist() == pytest.approx(variances.tolist())
    assert finding.data["moved"].any() == moves == ("when perturbed" in finding.summary)
    assert finding.panels == 3
    finding.figure()


def test_a_network_without_features_is_reported(folders):
    message = "domain_space needs features before a head; dmg has none"
    with pytest.raises(SpecError, match=message):
        DomainSpace().diagnose_runs([reopened(folders["dmg"])])


@pytest.mark.parametrize("name", ["crossgrad", "guided", "labelgrad", "erm"])
def test_looking_changes_nothing_and_finds_the_same_again(folders, name):
    subject = reopened(folders[name])
    before, state = everything(subject), torch.get_rng_state()
    first, second = (DomainSpace(samples=30).diagnose_runs([subject]) for _ in range(2))
    assert everything(subject) == before
    assert torch.equal(torch.get_rng_state(), state)
    assert first.data.equals(second.data)
    assert first.summary == second.summary
    assert DomainSpace(samples=30).diagnose_runs([reopened(folders[name])]).data.equals(first.data)


def test_domains_are_shown_as_they_are_asked_for_and_each_once(moving):
    finding = DomainSpace(domains=("turn30", "turn10", "turn30"), samples=10).diagnose_runs(
        [moving]
    )
    assert list(dict.fromkeys(finding.data["domain"])) == ["turn30", "turn10"]
    assert "lies" not in finding.summary, "one source is no line"
    labels = [text.get_text() for text in finding.figure().axes[0].get_legend().get_texts()]
    assert labels == [" turn30 (unseen)", " turn10"]


def test_one_domain_alone_has_no_neighbours(moving):
    finding = DomainSpace(domains=("turn10",)).diagnose_runs([moving])
    assert finding.summary.startswith("silhouette: ")
    assert "of domains" not in finding.summary
    assert "of domains" in DomainSpace(domains=("turn0", "turn10")).diagnose_runs([moving]).summary
    unseen = DomainSpace(domains=("turn30",)).diagnose_runs([moving])
    assert unseen.panels == 1
    assert not unseen.data["moved"].any()
    unseen.figure()


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"domains": "turn31"}, "spirals has no domain 'turn31'; did you mean 'turn30'?"),
        ({"moved": "turn30"}, "domain_space.moved=turn30: not a source; choose from turn0, "),
        ({"moved": "turn0", "domains": "turn10,turn30"}, "not a source; choose from turn10"),
        ({"samples": 2}, "domain_space.samples=2: must be at least 3"),
    ],
)
def test_what_cannot_be_shown_is_reported(folders, settings, message):
    folder = folders["crossgrad"]
    assert message in message_of(SpecError, diagnose, "domain_space", folder, settings=settings)


def test_one_run_is_looked_at(moving):
    with pytest.raises(SpecError, match="domain_space takes one run, not 2"):
        DomainSpace().diagnose_runs([moving, moving])


def test_one_source_has_no_line_and_nothing_to_tell_apart(tmp_path):
    folder = trained(numbers(tmp_path, domains=3, each=20), "crossgrad", target=["d01", "d02"])
    finding = diagnose("domain_space", folder)
    assert "lies" not in finding.summary
    assert set(finding.data[finding.data["moved"]]["domain"]) == {"d00"}
    # The domain net has one answer, whose gradient is none.
    own = finding.data[finding.data["domain"] == "d00"]
    before, after = (own[own["moved"] == is_moved]["first"].to_numpy() for is_moved in (0, 1))
    assert before == pytest.approx(after)
    finding.figure()


def test_a_run_that_has_seen_every_domain_moves_the_first(tmp_path):
    folder = trained(numbers(tmp_path, domains=3, each=20), "labelgrad")
    finding = diagnose("domain_space", folder)
    assert "unseen" not in finding.summary
    assert set(finding.data[finding.data["moved"]]["domain"]) == {"d00"}


def test_of_many_domains_some_are_shown_unseen_ones_among_them(tmp_path):
    unseen = ["d10", "d11", "d12"]
    folder = trained(numbers(tmp_path, domains=13, each=10), "crossgrad", target=unseen)
    finding = diagnose("domain_space", folder)
    assert finding.data["domain"].nunique() == MAX_DOMAINS < 13
    assert finding.data[~finding.data["seen"]]["domain"].nunique() == MAX_DOMAINS // 3
    asked = diagnose("domain_space", folder, settings={"domains": "d12,d09,d08"})
    assert list(dict.fromkeys(asked.data["domain"])) == ["d12", "d09", "d08"]
    assert asked.summary.count("(unseen) lies") == 1


def test_too_few_samples_for_a_map_are_reported(tmp_path):
    folder = trained(numbers(tmp_path, domains=2, each=2), "erm", target="d01")
    with pytest.raises(SpecError, match="domain_space needs three samples"):
        diagnose("domain_space", folder)


def test_one_sample_a_domain_has_no_silhouette(tmp_path):
    folder = trained(numbers(tmp_path, domains=4, each=2), "erm", target="d03")
    assert {len(own) for own in reopened(folder).domains.values()} == {1}
    finding = diagnose("domain_space", folder)
    assert len(finding.data) == 4
    assert "d03 (unseen) lies" in finding.summary
    assert finding.summary.splitlines()[0].endswith("too few samples for a silhouette")


def test_a_finding_exists_though_there_are_few_samples_of_one_kind(folders):
    subject = reopened(folders["erm"])
    (own,) = lying(subject, {"turn10": (0.0, 0.0)}).domains.values()
    alike = replace(own, x=pool_domains({"a": Domain(torch.eye(3)[:, :2], torch.zeros(3))}).x)
    alike = replace(alike, y=torch.zeros(3).long(), domain=torch.zeros(3).long())
    result = replace(subject, domains={"turn10": alike}, model=Classifier(nn.Identity(), 2, 2))
    assert DomainSpace().diagnose_runs([result]).summary


def test_domains_that_are_one_point_have_no_map(tmp_path):
    # Every picture is the same.
    data = tree(tmp_path / "own", domains=("art", "photo", "sketch"), each=4)
    folder = trained(data, "erm", target="sketch", size=16)
    with pytest.raises(SpecError, match="features that differ"):
        diagnose("domain_space", folder)


def test_names_with_markup_are_shown_as_they_are(tmp_path):
    data = pictures_with_markup(tmp_path / "own")
    finding = diagnose("domain_space", trained(data, "crossgrad", target="$y$", size=16))
    assert set(finding.data["label"]) == set(MARKUP_CLASSES)
    finding.save(tmp_path / "fig.png")
    texts = finding.figure().axes[0].get_legend().get_texts()
    assert {text.get_text().strip() for text in texts} == {"_a$b", "x^_{", "$y$ (unseen)"}


@pytest.mark.slow
def test_sounds_have_a_map_too(tmp_path):
    data = spoken_words(tmp_path / "own", each=4)
    finding = diagnose("domain_space", trained(data, "crossgrad", target="cid"))
    assert set(finding.data["label"]) == {"no", "yes"}
    assert "cid (unseen) lies" in finding.summary
