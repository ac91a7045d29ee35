"""CrossGrad: the reference numbers, its limits, and what it leaves alone."""

import copy
from functools import partial

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from afield.data.samples import Batch
from afield.errors import SpecError, UnknownNameError
from afield.networks.backbone import Classifier
from afield.training.learner import Learner, Task
from afield.training.methods.crossgrad import CrossGrad
from afield.training.methods.erm import ERM
from tests.training.methods.gradient_reference import (
    CASES,
    REFERENCE,
    batch,
    linear,
    number,
    task_of,
)
from tests.training.methods.reference import agree, random_batches, theta


def net_of(inputs: int, outputs: int) -> Classifier:
    features = nn.Sequential(nn.Linear(inputs, 8), nn.Tanh())
    return Classifier(features, 8, outputs).double()


def begun(method: CrossGrad) -> Learner:
    model = linear(3)
    model.load_state_dict({"weight": number("Wl"), "bias": number("bl")})
    learner = method.setup(model, task_of(3, 4, rate=float(REFERENCE["eta"])))
    learner.parts["domain"].load_state_dict({"weight": number("Wd"), "bias": number("bd")})
    return learner


def of_case(case: str) -> CrossGrad:
    epsilon_label, epsilon_domain, alpha = REFERENCE[f"{case}/eps_l_eps_d_alpha"].tolist()
    return CrossGrad(
        epsilon_label=epsilon_label,
        epsilon_domain=epsilon_domain,
        alpha_label=alpha,
        clip=CASES[case],
        domain_net="same",
    )


@pytest.mark.parametrize("case", CASES)
def test_the_reference_step(case):
    method = of_case(case)
    learner = begun(method)
    agree(method.perturbed_inputs(learner, batch()), number(f"{case}/Xd"))
    logs = method.update(learner, [batch()])
    agree(learner.model.weight.detach(), number(f"{case}/Wl1"))
    agree(learner.model.bias.detach(), number(f"{case}/bl1"))
    agree(learner.parts["domain"].weight.detach(), number(f"{case}/Wd1"))
    agree(learner.parts["domain"].bias.detach(), number(f"{case}/bd1"))
    share = method.alpha_label
    clean, shifted = number(f"{case}/Jl"), number(f"{case}/Jl_Xd")
    agree(logs["loss"], (1 - share) * clean + share * shifted)
    clean, shifted = number(f"{case}/Jd"), number(f"{case}/Jd_Xl")
    agree(logs["domain loss"], (1 - share) * clean + share * shifted)
    agree(logs["shift"], (number(f"{case}/Xd") - number("X")).abs().mean())


@pytest.mark.parametrize("case", CASES)
def test_the_reference_gradients_on_the_inputs(case):
    """With ε 1 and no clip, the shift is the gradient; the label's is seen by the domain net."""
    learner = begun(CrossGrad(domain_net="same"))
    bare = CrossGrad(epsilon_label=1.0, clip=0.0, domain_net="same")
    shift = bare.perturbed_inputs(learner, batch()) - number("X")
    agree(shift, number(f"{case}/grad_x_Jd"))


def trained(method, learner: Learner, batches) -> Learner:
    for each in batches:
        method.update(learner, each)
    return learner


def steps(domains: int = 3) -> list[list[Batch]]:
    result = random_batches(domains, features=5)
    return [result, [b._replace(x=b.x.flip(0)) for b in result], result]


def alone(net: nn.Module, batches, target: str) -> torch.Tensor:
    """A net trained by itself, with plain gradient steps."""
    net = copy.deepcopy(net)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    for each in batches:
        x, y = (torch.cat([getattr(b, part) for b in each]) for part in ("x", target))
        optimizer.zero_grad()
        F.cross_entropy(net(x), y).backward()
        optimizer.step()
    return theta(net)


@pytest.mark.parametrize(
    ("settings", "label_alone"),
    [
        ({"epsilon_label": 0.0, "epsilon_domain": 0.0}, True),
        ({"alpha_label": 0.0}, True),
        ({"alpha_label": 0.0, "alpha_domain": 0.0, "epsilon_label": 500.0}, True),
        ({"epsilon_label": 0.0, "epsilon_domain": 0.0, "alpha_label": 1.0}, True),
        # One share alone leaves the other net to itself.
        ({"alpha_label": 0.5, "alpha_domain": 0.0, "epsilon_label": 50.0}, False),
    ],
)
def test_without_moved_inputs_it_is_two_independent_trainings(settings, label_alone):
    torch.manual_seed(0)
    method = CrossGrad(domain_net="same", **settings)
    learner = method.setup(net_of(5, 4), task_of(4, 3, partial(net_of, 5)))
    label, domain = learner.model, learner.parts["domain"]
    expected = alone(label, steps(), "y"), alone(domain, steps(), "domain")
    trained(method, learner, steps())
    if label_alone:
        agree(theta(label), expected[0])
    else:
        assert not torch.allclose(theta(label), expected[0])
    agree(theta(domain), expected[1])


def test_where_labels_are_the_domains_both_nets_move_inputs_alike():
    """Then it is adversarial training, and two equal nets stay equal."""
    torch.manual_seed(0)
    method = CrossGrad(domain_net="same", epsilon_label=20.0, epsilon_domain=20.0, clip=0.0)
    learner = method.setup(net_of(5, 3), task_of(3, 3, partial(net_of, 5)))
    learner.parts["domain"].load_state_dict(learner.model.state_dict())
    batches = [[b._replace(y=b.domain) for b in each] for each in steps()]
    before = theta(learner.model)
    trained(method, learner, batches)
    agree(theta(learner.model), theta(learner.parts["domain"]))
    assert not torch.allclose(theta(learner.model), before)


def test_one_source_domain_has_nothing_to_move_along():
    torch.manual_seed(0)
    method = CrossGrad(epsilon_label=100.0)
    learner = method.setup(nn.Linear(5, 4), task_of(4, 1))
    x = torch.randn(6, 5)
    only = Batch(x, torch.arange(6) % 4, torch.zeros(6).long(), torch.zeros(6).long())
    assert torch.equal(method.perturbed_inputs(learner, only), x)


def test_moved_inputs_have_a_higher_domain_loss_and_clipping_bounds_them():
    torch.manual_seed(0)
    learner = begun(CrossGrad(domain_net="same"))
    net = learner.parts["domain"]
    near = CrossGrad(epsilon_label=0.5, clip=0.0, domain_net="same").perturbed_inputs(
        learner, batch()
    )
    assert F.cross_entropy(net(near), batch().domain) > F.cross_entropy(
        net(batch().x), batch().domain
    )
    far = CrossGrad(epsilon_label=100.0, clip=0.02, domain_net="same").perturbed_inputs(
        learner, batch()
    )
    assert (far - batch().x).abs().max() == pytest.approx(2.0)


def test_gradients_do_not_go_through_moved_inputs_and_inputs_are_not_touched():
    learner, given = begun(CrossGrad(domain_net="same")), batch()
    x = given.x.clone()
    CrossGrad(epsilon_label=100.0, domain_net="same").update(learner, [given])
    assert torch.equal(given.x, x)
    assert given.x.grad is None
    assert not given.x.requires_grad


def guided_learner(**settings) -> tuple[CrossGrad, Learner]:
    torch.manual_seed(0)
    method = CrossGrad(domain_net="same", guided=True, **settings)
    return method, method.setup(net_of(5, 4), task_of(4, 3, partial(net_of, 5)))


def test_a_guided_net_reads_domain_features_and_does_not_train_them():
    method, learner = guided_learner(epsilon_label=30.0, epsilon_domain=0.0)
    learner.model.double()
    guide = learner.model.guide
    expected = alone(guide, steps(), "domain")
    trained(method, learner, steps())
    agree(theta(guide), expected)
    x = steps()[0][0].x
    before = learner.model(x)
    with torch.no_grad():
        guide.features[0].weight.mul_(1.5)
    assert not torch.allclose(learner.model(x), before)


def test_a_guided_net_gives_the_same_with_features_that_are_known():
    method, learner = guided_learner()
    learner.model.double()
    x = steps()[0][0].x
    g = method.domain_classifier(learner).features(x)
    agree(learner.model(x, g).detach(), learner.model(x).detach())


def test_a_guided_net_needs_networks_of_features_and_a_head():
    with pytest.raises(SpecError, match="features and a head"):
        CrossGrad(domain_net="same", guided=True).setup(linear(3), task_of(3, 4))


@pytest.mark.parametrize(
    ("shape", "kind"), [((1, 16, 16), nn.Conv2d), ((1, 40, 20), nn.Conv2d), ((7,), nn.Linear)]
)
def test_the_usual_domain_net_is_small_and_fits_the_inputs(shape, kind):
    task = Task(("a", "b"), ("0", "1"), 3, None, torch.optim.SGD, shape=shape)
    net = CrossGrad().setup(nn.Linear(1, 1), task).parts["domain"]
    assert net(torch.zeros(2, *shape)).shape == (2, 2)
    assert any(isinstance(module, kind) for module in net.modules())


def test_a_domain_net_can_be_any_backbone():
    task = Task(("a", "b"), ("0", "1"), 3, None, torch.optim.SGD, shape=(3, 32, 32))
    learner = CrossGrad(domain_net="small:lenet").setup(nn.Linear(1, 1), task)
    assert learner.parts["domain"].width == 64


def test_a_domain_net_that_nobody_knows_is_refused_before_training():
    with pytest.raises(UnknownNameError, match="small:cnn"):
        CrossGrad(domain_net="small:cnnn")


def test_whole_numbers_cannot_be_moved():
    whole = batch()._replace(x=torch.zeros(8, 5, dtype=torch.int64))
    with pytest.raises(SpecError, match="int64 inputs have none"):
        CrossGrad().update(begun(CrossGrad(domain_net="same")), [whole])


def test_the_label_net_starts_and_sees_batches_as_erm_does(model, task, stream):
    """The domain net is made after it, and data have generators of their own."""
    torch.manual_seed(0)
    ours = CrossGrad().setup(copy.deepcopy(model), task)
    plain = ERM().setup(copy.deepcopy(model), task)
    assert torch.equal(theta(ours.model), theta(plain.model))
    batches = next(stream)
    CrossGrad(alpha_label=0.0).update(ours, batches)
    ERM().update(plain, batches)
    assert torch.equal(theta(ours.model), theta(plain.model))
