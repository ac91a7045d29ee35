from dataclasses import replace

import pytest
from huggingface_hub import ModelCard

from afield.data.inputs import Inputs
from afield.deployment.model_card import render_card
from afield.deployment.model_folder import (
    Architecture,
    Calibration,
    Description,
    Estimate,
    Selection,
    read_description,
)
from afield.runs.run import Run
from tests.files import GOLDEN

IMAGES = Inputs(
    kind="pictures", dtype="uint8", stored=(3, 64, 64), mean=(0.5,), std=(0.2,), size=32
)


@pytest.fixture(scope="module")
def about(spiral_model):
    return read_description(spiral_model)


def body(text: str) -> str:
    return text.split("---\n", 2)[2]


def test_hugging_face_reads_its_facts(about):
    facts = ModelCard(render_card(about)).data
    assert facts.library_name == "afield"
    assert facts.pipeline_tag == "tabular-classification"
    assert "domain-generalization" in facts.tags
    assert facts.datasets == ["spirals"]
    (result,) = facts.eval_results
    assert result.metric_type == "accuracy"
    assert result.metric_value == pytest.approx(about.estimate.accuracy, abs=1e-4)


def test_the_number_for_unseen_domains_stands_first(about):
    first = body(render_card(about)).strip().splitlines()[2]
    values, (low, high) = about.estimate.domains.values(), about.estimate.interval
    mean = f"**Unseen domains: {100 * about.estimate.accuracy:.0f} % accuracy on average (90 % "
    assert first.startswith(mean + "prediction interval")
    assert f"for one more domain: {100 * low:.0f}–{100 * high:.0f} %).**" in first
    assert "otherwise below or above it" in first
    assert "3 degrees of freedom" in first
    assert f"accuracies are {100 * min(values):.0f}–{100 * max(values):.0f} %" in first
    assert "There was only one trial" in first


def test_it_says_how_well_the_distance_warned(about):
    weak = replace(about.calibration, separations={"art": 0.93, "photo": 0.51})
    text = render_card(replace(about, calibration=weak))
    assert "AUROC of 0.72 on average" in text
    assert "of 0.51 for photo, the worst. **The distance gives little warning there" in text
    strong = render_card(replace(about, calibration=replace(weak, separations={"art": 0.93})))
    assert "little warning" not in strong


def test_it_says_how_well_wrong_predictions_are_told_from_right_ones(about):
    measured = {"confidence_auroc": {"art": 0.9, "photo": 0.7}, "distance_auroc": {"art": 0.52}}
    text = render_card(replace(about, calibration=replace(about.calibration, **measured)))
    assert "confidence 0.80 on average, 0.70 for photo; distance 0.52 on average" in text
    earlier = replace(about.calibration, confidence_auroc={}, distance_auroc={})
    assert "wrong predictions" not in render_card(replace(about, calibration=earlier))


def test_one_domain_is_no_forecast(about):
    alone = replace(about.estimate, domains={"art": 0.7})
    text = render_card(replace(about, estimate=alone))
    assert "which does not show how much domains differ" in text
    assert "prediction interval" not in text


def test_users_of_the_onnx_file_learn_what_to_do_before_it():
    text = render_card(replace(described(), inputs=IMAGES))
    assert "resize it to 64 × 64 pixels (Pillow, bilinear), whatever its shape" in text
    assert "then to 32 × 32 (Pillow, bilinear)" in text
    assert "stack samples to n × 3 × 32 × 32, float32" in text


def test_without_an_estimate_it_says_so_first(about):
    text = render_card(replace(about, estimate=None, calibration=None))
    assert body(text).strip().splitlines()[2].startswith("**Unseen domains: not estimated.**")
    assert "Confidences are not calibrated" in text
    assert ModelCard(text).data.eval_results is None


@pytest.mark.parametrize(
    ("estimate", "text"),
    [
        ({"stderr": 0.0123, "trials": 3}, "± 1.2 (standard error over 3 trials)"),
        # A recipe of an earlier version.
        ({"recipes": 7}, "chosen among 7 by these very numbers"),
    ],
)
def test_it_says_how_the_number_came_about(about, estimate, text):
    assert text in render_card(replace(about, estimate=replace(about.estimate, **estimate)))


def chosen(about, **fields):
    runs = {name: (f"my-method-{name}",) for name in about.estimate.domains}
    selection = Selection(0.9876, 0.0123, runs, same=("turn10",), **fields)
    estimate = replace(about.estimate, recipes=7, selection=selection)
    return render_card(replace(about, estimate=estimate))


def test_a_recipe_that_was_chosen_says_what_choosing_cost(about):
    text = chosen(about)
    assert "chosen among 7 because its mean accuracy on left-out domains, 98.8 %" in text
    assert "**Choosing cost 1.2 points.** For 1 of the 4 domains" in text
    assert "models that had that domain among their training domains" in text
    assert "not trained on that domain either" in chosen(about, twins=True)
    value = 100 * about.estimate.domains["turn10"]
    assert f"| turn10 | `my-method` (this recipe) | {value:.1f} |" in text
    assert "| turn20 | `my-method` (another recipe) |" in text


def test_without_a_common_trial_no_standard_error_is_shown(about):
    text = render_card(replace(about, estimate=replace(about.estimate, trials=2, stderr=None)))
    assert "Not all recipes had the same trials" in text
    assert "only one trial" not in text


def test_many_domains_are_not_all_named(about):
    domains = {f"writer{i}": 0.5 for i in range(99)}
    text = render_card(
        replace(about, estimate=replace(about.estimate, domains=domains, spread=0.1))
    )
    assert "writer50" not in text
    unknown = replace(about.estimate, domains=domains, spread=None)
    alone = render_card(replace(about, estimate=unknown))
    assert "the standard deviation of their accuracies is 0.0" in alone
    assert "99 domains were held out; the standard deviation of their accuracies is 10.0" in text


def test_odd_names_break_neither_facts_nor_tables(about):
    odd = 'a: "b" | c\n- d'
    hidden = render_card(replace(about, name="a\x1b[2J", classes=("x\x9b", "y")))
    assert not {"\x1b", "\x9b"} & set(hidden)
    run = replace(about.run, dataset=odd)
    estimate = replace(about.estimate, domains={odd: 0.5})
    text = render_card(replace(about, name=odd, run=run, estimate=estimate, license="mit: x"))
    facts = ModelCard(text).data
    assert facts.datasets == [odd]
    assert facts.license == "mit: x"
    assert '| a: "b" \\| c - d | 50.0 |' in text


def test_it_says_how_to_have_it_again(about):
    assert render_card(about).rstrip().endswith(f"```bash\n{about.command}\n```")
    assert about.command.startswith("afield fit spirals erm --out")


def described() -> Description:
    """A model with round numbers."""
    run = Run("things", "vrex", ("art", "photo"), params={"penalty": 10.0}, steps=200, every=4)
    return Description(
        name="things-vrex",
        classes=("cup", "pot", "jug"),
        sources=("art", "photo"),
        inputs=Inputs("pictures", "uint8", (3, 73, 73), (127.5,), (127.5,), size=64),
        architecture=Architecture("small:cnn"),
        versions={"afield": "0.1", "torch": "2.0"},
        command="afield fit things vrex --out model",
        run=run,
        license="mit",
        estimate=Estimate(
            accuracy=0.7125,
            worst=0.5,
            in_domain=0.925,
            domains={"art": 0.925, "photo": 0.5},
            trials=2,
            stderr=0.0125,
            spread=0.25,
            recipes=3,
            selection=Selection(0.7375, 0.025, {"art": ("a",), "photo": ("b",)}, ("art",)),
        ),
        calibration=Calibration(1.5, (0.25, 0.5, 1.0), (0.5, 1.0, 2.0), 80, 0.125, 0.0625),
    )


def test_the_whole_card_is_as_recorded():
    assert render_card(described()) == (GOLDEN / "card.md").read_text()
