"""What many methods have in common: the numbers of public code, limits, and what is refused."""

import copy
from dataclasses import replace

import pytest
import torch
from torch import nn

from afield import registry
from afield.errors import SpecError
from afield.reporting.benchmarking import bench
from afield.studies.benchmark import make_benchmark
from afield.studies.planning import plan_run
from afield.training.method import risks
from afield.training.methods.erm import ERM
from tests.training.methods.references import assert_trains_as_erm, loss_of, replay, unequal


def made(name, **settings):
    """The method of this name."""
    return registry.find("methods", name)(**settings)


def before_batchnorm(part, biases, means):
    """Names of what has a gradient of rounding errors: biases before a BatchNorm, and its means."""
    names = [f"parts.{part}.{i}.bias" for i in biases]
    return [*names, *(f"parts.{part}.{i}.running_mean" for i in means)]


PENALTY = {"loss": "risk", "penalty": "distance"}
BOTTLENECK = {"total_loss": "loss", "clf_loss": "risk", "bn_loss": "bottleneck"}
CURVATURE = {"loss": "loss", "nll": "risk", "penalty": "penalty"}
# On the turn of the discriminator, the optimizer of the features gets no gradient.
TURNS = {"logs": {"gen_loss": "loss", "disc_loss": "discriminator loss"}, "gradients": [1]}
# What the public code of both logs as nll contains the penalties.
IB_ERM = {"loss": "loss", "nll": "loss", "IB_penalty": "variance"}
IB_IRM = {**IB_ERM, "IRM_penalty": "penalty"}
OF_IB_IRM = {"penalty": 20.0, "warmup": 0.25, "bottleneck": 1.0, "bottleneck_warmup": 0.0}
OF_TRANSFER = {"weight": 1.0, "radius": 0.3, "ascents": 3, "ascent_rate": 2.0}


# The file of the numbers, the method, its settings, and options of the comparison. Files that are
# called mended have defects of the public code mended, or its noise left out.
@pytest.mark.parametrize(
    ("file", "name", "settings", "options"),
    [
        ("andmask", "and_mask", {"agreement": 1.0}, {}),
        (
            "arm_mended",
            "arm",
            {"context_channels": 3},
            {"skip": before_batchnorm("context", (0, 3), (1, 4))},
        ),
        ("cad", "cad", {"penalty": 1.0, "temperature": 0.1}, {"logs": BOTTLENECK}),
        ("causirl_coral", "causirl_coral", {"penalty": 1.0}, {"logs": PENALTY}),
        ("causirl_mmd", "causirl_mmd", {"penalty": 1.0}, {"logs": PENALTY}),
        ("cdann", "cdann", {"turns": 1, "gradient_penalty": 0.1, "hidden": (7, 7)}, TURNS),
        ("condcad", "cond_cad", {"penalty": 1.0, "temperature": 0.1}, {"logs": BOTTLENECK}),
        ("coral", "coral", {"penalty": 1.0}, {"logs": PENALTY}),
        ("dann", "dann", {"turns": 1, "gradient_penalty": 0.1, "hidden": (7, 7)}, TURNS),
        ("eqrm", "eqrm", {"quantile": 0.75, "warmup": 0.25, "lr_factor": 0.4}, {}),
        ("erm", "erm", {}, {}),
        (
            "erm_plus_plus",
            "erm_plus_plus",
            # DomainBed's linear_steps=0 is one step; its learning rate is 0.02, that of the run
            # 0.05.
            {"linear_share": 0.25, "linear_rate": 0.4},
            {"skip": ["average."]},
        ),
        ("groupdro", "groupdro", {"eta": 0.1}, {}),
        ("hgp", "hgp", {"curvature": 0.5, "slope": 0.3}, {"logs": CURVATURE}),
        (
            "hutchinson",
            "hutchinson",
            {"curvature": 0.5, "slope": 0.3, "draws": 4},
            {"logs": CURVATURE},
        ),
        ("ib_erm", "ib_erm", {"penalty": 1.0, "warmup": 0.25}, {"logs": IB_ERM}),
        ("ib_irm", "ib_irm", OF_IB_IRM, {"logs": IB_IRM}),
        ("iga", "iga", {"penalty": 10.0}, {"logs": {"loss": "risk", "penalty": "spread"}}),
        ("irm", "irm", {"penalty": 20.0, "warmup": 0.25}, {"logs": CURVATURE}),
        ("mixup", "mixup", {"alpha": 0.5}, {}),
        ("mmd", "mmd", {"penalty": 1.0}, {"logs": PENALTY}),
        ("mtl_mended", "mtl", {"ema": 0.9}, {}),
        (
            "rdm",
            "rdm",
            {"penalty": 5.0, "variance_weight": 0.1, "warmup": 0.25, "lr_factor": 0.4},
            {"logs": {"total_loss": "loss", "erm_loss": "risk"}},
        ),
        ("ridg", "ridg", {"penalty": 0.5, "momentum": 0.1}, {}),
        ("rsc", "rsc", {}, {}),
        ("sagm", "sagm", {"rho": 0.05, "alpha": 0.02}, {}),
        ("sam", "sam", {"rho": 0.05}, {}),
        ("sandmask", "sand_mask", {"agreement": 0.2, "steepness": 0.001}, {}),
        ("sd", "sd", {"penalty": 1.0}, {"logs": {"loss": "risk", "penalty": "squared logits"}}),
        ("selfreg", "self_reg", {}, {}),
        (
            "selfreg_mended",
            "self_reg",
            {"projection": "trained"},
            {"skip": before_batchnorm("projection", (0, 3, 6), (1, 4, 7))},
        ),
        # The file's gradients have those of the ascents subtracted, which no optimizer got.
        (
            "transfer",
            "transfer",
            OF_TRANSFER,
            {"logs": {"loss": "loss", "gap": "gap"}, "gradients": ()},
        ),
        # The public code has a probe more than domains, which it does not use.
        (
            "trm_mended",
            "trm",
            {"transfer": 0.1, "eta": 0.1, "warmup": 0.25},
            {"logs": {"nll": "risk"}, "skip": ["parts.probe.3"]},
        ),
        ("urm", "urm", {"weight": 0.5, "critic_width": 6, "critic_rate": 0.4}, {}),
        (
            "vrex",
            "vrex",
            {"penalty": 10.0, "warmup": 0.25},
            {"logs": {"loss": "loss", "penalty": "variance"}},
        ),
    ],
)
def test_it_equals_the_public_code(file, name, settings, options):
    replay(file, made(name, **settings), **options)


NO_PENALTY = {"penalty": 0.0}


@pytest.mark.parametrize(
    ("name", "settings"),
    [
        *[(name, NO_PENALTY) for name in ("causirl_mmd", "coral", "ib_erm", "iga", "irm", "mmd")],
        ("hgp", {"curvature": 0.0, "slope": 0.0}),
        ("hutchinson", {"curvature": 0.0, "slope": 0.0, "draws": 2}),
        ("rdm", {"penalty": 0.0, "variance_weight": 0.0}),
    ],
)
def test_without_a_penalty_it_is_the_mean_of_the_risks(name, settings, model, task, stream):
    batches, method = unequal(next(stream)), made(name, **settings)
    loss = loss_of(method, method.setup(model, task), batches)
    torch.testing.assert_close(loss, risks(model, batches).mean())


@pytest.mark.parametrize(
    ("name", "tolerance"), [("cad", None), ("fishr", None), ("ridg", None), ("sd", 0)]
)
def test_without_a_penalty_it_is_erm_on_the_pooled_batch(name, tolerance, model, task, stream):
    batches, method = unequal(next(stream)), made(name, penalty=0.0)
    learner = method.setup(model, task)
    loss = loss_of(method, learner, batches)
    expected = loss_of(ERM(), learner, batches)
    torch.testing.assert_close(loss, expected, rtol=tolerance, atol=tolerance)
    assert not torch.isclose(loss, risks(model, batches).mean(), rtol=1e-6)


@pytest.mark.parametrize(
    ("name", "settings"), [("erm_plus_plus", {"linear_share": 0.0}), ("sam", {"rho": 0.0})]
)
def test_without_its_own_part_it_is_erm_bit_for_bit(name, settings, model, task, stream):
    assert_trains_as_erm(made(name, **settings), model, task, stream)


@pytest.mark.parametrize(
    ("name", "settings", "message"),
    [
        ("adrmx", {"remix": -1.0}, "adrmx"),
        ("adrmx", {"depth": 1}, "adrmx"),
        ("arith", {"steps_per_domain": 0}, r"arith.steps_per_domain=0: must be above 0"),
        ("arith", {"inner_rate": -1.0}, r"arith.inner_rate=-1: must not be below 0"),
        ("arith", {"momentum": 1.0}, r"arith.momentum=1: must be from 0 to below 1"),
        ("arith", {"momentum": -0.1}, r"arith.momentum=-0.1: must be from 0 to below 1"),
        ("arm", {"context_channels": 0}, "context_channels"),
        ("cad", {"temperature": 0.0}, r"cad\.temperature=0"),
        ("cdann", {"weight": -1.0}, r"cdann\.weight=-1"),
        ("crossgrad", {"epsilon_label": -1.0}, "crossgrad.epsilon_label=-1"),
        ("crossgrad", {"epsilon_domain": -1.0}, "crossgrad.epsilon_domain=-1"),
        ("crossgrad", {"clip": -0.1}, "crossgrad.clip=-0.1"),
        ("crossgrad", {"alpha_label": 1.5}, "crossgrad.alpha_label=1.5"),
        ("crossgrad", {"alpha_domain": -0.5}, "crossgrad.alpha_domain=-0.5"),
        ("dann", {"weight": -1.0}, "dann.weight="),
        ("dann", {"gamma": -1.0}, "dann.gamma="),
        ("dann", {"delay": 1.5}, "dann.delay="),
        ("dann", {"hidden": (8, 0)}, "dann.hidden="),
        ("dmg", {"overlap": -1.0}, "dmg.overlap=-1: must not be below 0"),
        ("dmg", {"sparsity": -1.0}, "dmg.sparsity=-1: must not be below 0"),
        ("dmg", {"mask_rate": -1.0}, "dmg.mask_rate=-1: must not be below 0"),
        ("efdmix", {"stages": 0}, "efdmix"),
        ("efdmix", {"alpha": 0.0}, "efdmix"),
        ("efdmix", {"probability": 1.5}, "efdmix"),
        ("eqrm", {"quantile": 1.0}, r"eqrm\.quantile=1"),
        ("erm_plus_plus", {"linear_share": 1.0}, "linear_share"),
        ("erm_plus_plus", {"linear_rate": -1.0}, "linear_rate"),
        ("fishr", {"memory": 1.0}, r"fishr\.memory=1"),
        ("irm", {"penalty": -1.0}, r"irm\.penalty=-1: must not be below 0"),
        ("irm", {"warmup": 2.0}, r"irm\.warmup=2: must be from 0 to 1"),
        ("labelgrad", {"epsilon": -1.0}, "labelgrad.epsilon="),
        ("labelgrad", {"clip": -0.1}, "labelgrad.clip="),
        ("labelgrad", {"alpha": 1.5}, "labelgrad.alpha="),
        ("lisa", {"alpha": 0.0}, "lisa.alpha="),
        ("lisa", {"same_label": 1.5}, "lisa.same_label="),
        ("metareg", {"meta_share": 1.0}, "metareg.meta_share=1: must be from 0 to below 1"),
        ("metareg", {"meta_share": -0.1}, "metareg.meta_share=-0.1: must be from 0 to below 1"),
        ("metareg", {"inner_steps": 0}, "metareg.inner_steps=0: must be above 0"),
        ("metareg", {"inner_rate": -1.0}, "metareg.inner_rate=-1: must not be below 0"),
        ("metareg", {"meta_rate": -1.0}, "metareg.meta_rate=-1: must not be below 0"),
        ("miro", {"weight": -1.0}, r"miro\.weight"),
        ("mixstyle", {"stages": 0}, "mixstyle"),
        ("mixstyle", {"alpha": 0.0}, "mixstyle"),
        ("mixstyle", {"probability": 1.5}, "mixstyle"),
        ("mixup", {"alpha": 0.0}, r"mixup\.alpha=0: must be above 0"),
        ("mtl", {"ema": 0.0}, r"mtl\.ema"),
        ("sagm", {"rho": -1.0}, "must not be below 0"),
        ("sagm", {"alpha": -1.0}, "must not be below 0"),
        ("sagnet", {"weight": -1.0}, r"sagnet\.weight"),
        ("sam", {"rho": -1.0}, r"sam\.rho"),
        ("sand_mask", {"agreement": 1.0}, r"sand_mask\.agreement=1: must be below 1"),
        ("transfer", {"weight": -1.0}, "transfer"),
        ("transfer", {"ascents": 0}, "transfer"),
        ("urm", {"weight": -1.0}, "urm"),
        ("urm", {"smoothing": 2.0}, "urm"),
        ("urm", {"critic_width": 0}, "urm"),
    ],
    ids=str,
)
def test_settings_that_make_no_sense_are_refused(name, settings, message):
    with pytest.raises(SpecError, match=message):
        made(name, **settings)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("cad", "cad needs 2 or more"),
        ("eqrm", "eqrm needs 2 or more"),
        ("metareg", "metareg needs two or more source domains per step, not 1"),
        ("sand_mask", r"sand_mask needs 2 or more source domain\(s\)"),
        ("transfer", "needs 2 or more source domain"),
        ("trm", "trm needs 2 or more"),
    ],
)
def test_one_source_domain_is_refused(name, message):
    made(name).check(2)
    with pytest.raises(SpecError, match=message):
        made(name).check(1)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("coral", "coral needs 2 or more"),
        ("ib_erm", "ib_erm needs 2 or more"),
        ("irm", r"irm needs 2 or more sample\(s\) of a domain"),
    ],
)
def test_one_sample_of_a_domain_is_refused(name, message):
    made(name).check_batch(2)
    with pytest.raises(SpecError, match=message):
        made(name).check_batch(1)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("dann", "not Linear"),
        ("linear_probe", r"needs a Classifier \(features and a head\), not Linear"),
        ("metareg", "metareg needs a Classifier.*, not Linear"),
        ("miro", "needs a Classifier"),
        ("mtl", "needs a Classifier"),
        ("multi_head", "multi_head needs a Classifier.*, not Linear"),
        ("self_reg", "self_reg needs a Classifier"),
    ],
)
def test_a_network_without_features_and_a_head_is_refused(name, message, task):
    with pytest.raises(SpecError, match=message):
        made(name).setup(nn.Linear(6, 4), task)


@pytest.mark.parametrize(
    ("name", "settings", "message"),
    [
        ("arm", {}, "one more channel"),
        ("efdmix", {}, "styles of maps"),
        ("mixstyle", {}, "styles of maps"),
        ("sagnet", {"at": "map"}, "needs a network with maps"),
    ],
)
def test_a_network_without_maps_is_refused(name, settings, message, model, task):
    with pytest.raises(SpecError, match=message):
        made(name, **settings).setup(model, task)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("adrmx", "head is frozen"),
        ("mtl", "head is frozen"),
        ("multi_head", "the network's head is frozen"),
    ],
)
def test_a_frozen_head_is_refused_where_it_would_be_replaced(name, message, model, task):
    model.head.requires_grad_(requires_grad=False)
    with pytest.raises(SpecError, match=message):
        made(name).setup(model, task)


@pytest.mark.parametrize(
    ("name", "settings", "message"),
    [
        ("arith", {"arith.shares": "0.5,0.5"}, "2 weights for 3 source domain"),
        (
            "arith",
            {"arith.shares": "0.5,0.3,0.2", "domains_per_step": 2},
            "3 weights for 2 source domain",
        ),
        ("arith", {"arith.shares": "0.5,x,0.2"}, "arith.shares="),
        ("arith", {"arith.eps": -1}, "arith.eps=-1: must not be below 0"),
        ("fish", {"fish.outer": "divided"}, "need fish.inner=sgd"),
        ("fish", {"fish.momentum": 0.9}, "need fish.inner=sgd"),
        ("mldg", {"mldg.tests": "3"}, "4 or more source domains .* not 3"),
        ("mldg", {"domains_per_step": 1}, "2 or more source domains .* not 1"),
        ("mldg", {"domains_per_step": 2, "mldg.tests": 2}, "3 or more source domains .* not 2"),
        ("mldg", {"mldg.second_order": "true"}, "needs mldg.inner=sgd"),
    ],
    ids=str,
)
def test_impossible_settings_are_refused_before_anything_is_trained(
    name, settings, message, tmp_path
):
    with pytest.raises(SpecError, match=message):
        make_benchmark("spirals", ["erm", name], settings=settings).runs()
    with pytest.raises(SpecError, match=message):
        plan_run("spirals", name, target="turn0", settings=settings)
    with pytest.raises(SpecError, match=message):
        bench("spirals", ["erm", name], settings=settings, store=tmp_path / "runs")
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize("name", ["dann", "maml", "mixup", "coral"])
def test_one_source_domain_is_erm(name, model, task, stream):
    alone = replace(task, sources=("domain0",))
    model.double()
    ours, plain = (method.setup(copy.deepcopy(model), alone) for method in (made(name), ERM()))
    ours.parts.double()
    ours.step = plain.step = 50
    for _ in range(3):
        only = [batch._replace(x=batch.x.double()) for batch in next(stream)[:1]]
        made(name).update(ours, only)
        ERM().update(plain, only)
    for mine, its in zip(ours.model.parameters(), plain.model.parameters(), strict=True):
        torch.testing.assert_close(mine, its, rtol=0, atol=1e-10)
