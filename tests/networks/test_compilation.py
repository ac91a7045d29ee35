"""Compiled networks compute what others do, and so do their copies."""

import copy

import pytest
import torch
from torch.func import functional_call

from afield.data.samples import Rows
from afield.errors import SpecError
from afield.networks import compilation
from afield.networks.backbone import network
from afield.networks.compilation import check_compiler, compile_features, compiled_run
from afield.networks.inference import compute_outputs
from afield.networks.precision import lower_precision


@pytest.fixture(autouse=True)
def calls(monkeypatch):
    """Sizes of the batches in compiled code, which torch runs without a C++ compiler here."""
    sizes = []

    def backend(forward, *, dynamic, options):
        assert not dynamic
        assert options == {"fallback_random": True, "cpp.threads": 1}
        compiled = real(forward, dynamic=dynamic, backend="aot_eager")

        def call(module, x):
            sizes.append(len(x))
            return compiled(module, x)

        return call

    real = torch.compile
    monkeypatch.setattr(torch, "compile", backend)
    yield sizes
    torch.compiler.reset()


@pytest.fixture
def pair():
    torch.manual_seed(0)
    plain = network("small:mlp", (6,), 3)
    compiled = copy.deepcopy(plain)
    assert compile_features(compiled, threads=1) == 1
    return plain, compiled


X = torch.linspace(-1, 1, 240).view(40, 6)


def test_outputs_gradients_and_names_of_weights_stay_the_same(pair, calls):
    plain, compiled = pair
    assert compiled.state_dict().keys() == plain.state_dict().keys()
    for net in pair:
        net(X).square().mean().backward()
    assert calls == [40]
    for theirs, ours in zip(plain.parameters(), compiled.parameters(), strict=True):
        torch.testing.assert_close(ours.grad, theirs.grad)


def test_a_copy_is_compiled_and_has_weights_of_its_own(pair, calls):
    plain, compiled = pair
    twin = copy.deepcopy(compiled)
    with torch.no_grad():
        for weight in twin.parameters():
            weight.zero_()
    assert torch.equal(twin(X), torch.zeros(40, 3))
    torch.testing.assert_close(compiled(X), plain(X))
    assert calls == [40, 40]


def test_other_weights_can_be_given_for_a_call(pair):
    plain, compiled = pair
    weights = {name: 2 * weight.detach() for name, weight in plain.named_parameters()}
    torch.testing.assert_close(
        functional_call(compiled, weights, (X,)), functional_call(plain, weights, (X,))
    )


def test_layers_that_are_observed_later_are_not_compiled(pair, calls):
    _, compiled = pair
    seen = []
    for _ in range(2):
        with compiled.features[0].register_forward_hook(lambda *_: seen.append(1)):
            compiled(X)
    assert (len(seen), calls) == (2, [])
    compiled(X)
    assert (len(seen), calls) == (2, [40])


def test_an_evaluation_measures_the_layers_and_is_compiled_after_that(pair, calls):
    plain, compiled = pair
    expected = compute_outputs(plain, Rows([X]))
    for _ in range(2):
        torch.testing.assert_close(compute_outputs(compiled, Rows([X])), expected)
    assert calls == [24, 24]


def test_a_compiled_network_computes_in_lower_precision(pair, calls):
    plain, _ = pair
    lower_precision(plain, "bf16")
    compiled = copy.deepcopy(plain)
    compile_features(compiled, threads=1)
    for part in (lambda net: net(X), lambda net: net.features(X)):
        assert part(compiled).dtype == torch.float32
        torch.testing.assert_close(part(compiled), part(plain))
    assert calls == 4 * [40]


def test_derivatives_of_gradients_are_reported_in_one_line(pair):
    _, compiled = pair
    weights = list(compiled.parameters())
    loss = compiled(X).square().mean()
    first = torch.autograd.grad(loss, weights, create_graph=True)
    norm = sum(gradient.square().sum() for gradient in first)
    with (
        pytest.raises(SpecError, match="compile=true: mine differentiates gradients"),
        compiled_run("mine", "small:mlp"),
    ):
        torch.autograd.grad(norm, weights)


def test_too_many_shapes_are_reported_in_one_line(pair, monkeypatch):
    monkeypatch.setattr(compilation, "MAX_SHAPES", 2)
    with (
        pytest.raises(SpecError, match="mine computes features of batches of more than 2 sizes"),
        compiled_run("mine", "small:mlp"),
    ):
        [pair[1](X[:size]) for size in range(2, 8)]


def test_other_errors_pass(pair):
    with pytest.raises(RuntimeError, match="disk"), compiled_run("mine", "small:mlp"):
        raise RuntimeError("disk full")


def test_a_machine_without_a_compiler_or_headers_is_refused(monkeypatch, tmp_path):
    check_compiler()
    monkeypatch.setattr("sysconfig.get_path", lambda _: str(tmp_path))
    with pytest.raises(SpecError, match="needs the headers of Python"):
        check_compiler()
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(SpecError, match=r"needs a C\+\+ compiler"):
        check_compiler()
