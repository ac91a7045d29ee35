"""The card of a model, in the format of Hugging Face: what it is, and what to expect of it.

The most important number comes first: the accuracy on domains that were not trained on.
"""

from collections.abc import Iterable, Sequence
from pathlib import Path

from huggingface_hub import EvalResult, ModelCardData

from afield.deployment.model_folder import (
    Calibration,
    Description,
    Estimate,
    Selection,
    without_paths,
)
from afield.deployment.prediction_sets import CARD_COVERAGE, PredictionSets
from afield.files import CONTROL_CHARACTERS, escape_markdown

# The largest number of classes, or domains, that are listed by name.
MAX_NAMES = 30
# What the column `strangeness` ranks, by the score that was chosen.
SCORE_TEXTS = {
    "mahalanobis": "that distance",
    "relative": "the distance to the nearest class relative to that from all training samples",
    "neighbors": "the distance to the nearest training samples",
    "energy": "the energy -log Σ exp(logits), which is large if no class fits",
    "gen": "the generalized entropy (GEN) of the probabilities, which is large if they are spread",
}
# Below this AUROC, the card warns that the distance gives little warning.
WEAK_SEPARATION = 0.7


def render_card(about: Description) -> str:
    """Render README.md: metadata for programs, then a description for people."""
    about = without_paths(about)
    sections = [
        f"---\n{_metadata(about).to_yaml()}\n---",
        f"# {escape_markdown(about.name)}",
        _accuracy(about),
        _confidence(about),
        *filter(None, [_sets(about)]),
        _usage(about),
        _training(about),
    ]
    return "\n\n".join(sections).translate(CONTROL_CHARACTERS) + "\n"


def _metadata(about: Description) -> ModelCardData:
    """The facts at the head of the card, which the Hugging Face hub reads."""
    task = about.inputs.modality.task
    dataset = about.run.dataset if about.run else ""
    results = None
    if about.estimate:
        result = EvalResult(
            task_type=task,
            dataset_name=f"{dataset}, domains not trained on",
            dataset_type=dataset,
            metric_type="accuracy",
            metric_value=round(about.estimate.accuracy, 4),
            metric_name=f"mean accuracy on unseen domains ({_forecast(about.estimate)})",
        )
        results = [result]
    return ModelCardData(
        license=about.license or "unknown",
        library_name="afield",
        pipeline_tag=task,
        tags=["domain-generalization", *_tags(about)],
        datasets=[dataset] if dataset else None,
        metrics=["accuracy"] if results else None,
        model_name=about.name if results else None,
        eval_results=results,
    )


def _tags(about: Description) -> list[str]:
    tags = ["merged"] if about.merged else []
    if about.run:
        tags += [about.run.method] + [about.run.average] * (about.run.average != "last")
    return tags


def _accuracy(about: Description) -> str:
    """The accuracy on unseen domains, or that there is no estimate of it."""
    estimate = about.estimate
    if estimate is None:
        return (
            "**Unseen domains: not estimated.** The accuracy of this model on a domain that it was "
            "not trained on is unknown. The accuracy on its training domains says little about it."
        )
    error = ""
    if estimate.stderr is not None:
        error = f" ± {100 * estimate.stderr:.1f} (standard error over {estimate.trials} trials)"
    text = (
        f"**Unseen domains: {100 * estimate.accuracy:.0f} % accuracy on average "
        f"({_forecast(estimate)}).** {_left_out(estimate)} {100 * estimate.accuracy:.1f} %{error}. "
        f"On domains that were trained on, it is {100 * estimate.in_domain:.1f} %. The numbers are "
        "from models that were trained in the same way on fewer "
        "domains; this model was trained on all domains, so none is left to measure it on."
    )
    if estimate.trials == 1:
        text += " There was only one trial, so the variation between trials is unknown."
    elif estimate.stderr is None:
        text += " Not all recipes had the same trials, so the standard error is unknown."
    if about.adaptation:
        text += (
            f"\n\nThe models **adapted to unlabelled samples of the left-out domain** "
            f"({about.adaptation}). Give `afield predict` many files of one domain at a time. With "
            "`--adapt none`, these numbers do not hold."
        )
    if estimate.recipes > 1:
        text += f"\n\n{_selection(estimate)}"
    return f"{text}\n\n{_domain_table(estimate)}"


def _forecast(estimate: Estimate) -> str:
    """What to expect of one more domain."""
    if estimate.interval is None:
        return "one domain was left out, which does not show how much domains differ"
    return f"90 % prediction interval for one more domain: {format_range(estimate.interval)}"


def _left_out(estimate: Estimate) -> str:
    """Where the forecast comes from, up to the mean over the left-out domains."""
    if estimate.interval is None:
        return "The mean over its trials is"
    count, ends = len(estimate.domains), (*estimate.domains.values(),)
    return (
        "A new domain lies in the interval with a probability of about 90 %, otherwise below or "
        f"above it. It is computed from the {count} domains that were left out of training in turn "
        f"(Student's t with {count - 1} degree{'s' * (count > 2)} of freedom, on log-odds), so few "
        f"domains make it wide. Their accuracies are {format_range((min(ends), max(ends)))}; the "
        "mean is"
    )


def format_range(ends: tuple[float, float]) -> str:
    """Two shares as a range of percentages, or one if they are rounded to the same number."""
    low, high = (f"{100 * end:.0f}" for end in ends)
    return f"{low} %" if low == high else f"{low}–{high} %"


def _selection(estimate: Estimate) -> str:
    """How the recipe was chosen, and what choosing cost."""
    selection = estimate.selection
    if selection is None:
        return (
            f"**This recipe was chosen among {estimate.recipes} by these very numbers, so they "
            "are too optimistic.**"
        )
    # 0.0, not -0.0, for a difference of rounding.
    cost = round(100 * selection.cost, 1) + 0.0
    known = (
        "of models that were not trained on that domain either"
        if selection.twins
        else "of models that had that domain among their training domains"
    )
    return (
        f"This recipe was chosen among {estimate.recipes} because its mean accuracy on left-out "
        f"domains, {100 * selection.accuracy:.1f} %, was the best. The best of several numbers is "
        "too optimistic, so it is not the estimate. For the estimate, the recipe was chosen again "
        "without each domain, and the model of that choice was tested on the domain (nested "
        f"selection). **Choosing cost {cost:.1f} points.** For {len(selection.same)} of the "
        f"{len(selection.runs)} domains, the choice without the domain was this recipe too. These "
        f"choices compare accuracies {known}."
    )


def _domain_table(estimate: Estimate) -> str:
    if len(estimate.domains) > MAX_NAMES:
        spread = 100 * (estimate.spread or 0.0)
        return (
            f"{len(estimate.domains)} domains were held out; the standard deviation of their "
            f"accuracies is {spread:.1f}."
        )
    rows = [["domain left out", "accuracy (%)"], ["---", "---"]]
    rows += [
        [escape_markdown(name), f"{100 * value:.1f}"] for name, value in estimate.domains.items()
    ]
    if estimate.selection:
        names = ["chosen without it", "---", *_chosen(estimate.selection, estimate.domains)]
        rows = [[row[0], name, row[1]] for row, name in zip(rows, names, strict=True)]
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def _chosen(selection: Selection, domains: Iterable[str]) -> list[str]:
    """The method of the recipe that is chosen without each domain."""
    names = []
    for domain in domains:
        method = selection.runs[domain][0].rpartition("-")[0]
        own = "this recipe" if domain in selection.same else "another recipe"
        names.append(f"`{method}` ({own})")
    return names


def _confidence(about: Description) -> str:
    calibration = about.calibration
    if calibration is None:
        return (
            "## Confidence\n\nConfidences are not calibrated (temperature 1), and `--abstain` "
            "cannot mark predictions for review."
        )
    return (
        "## Confidence\n\n"
        "Confidences are calibrated for unseen domains. The temperature "
        f"{calibration.temperature:.3g} was fitted on {calibration.samples:,} samples of left-out "
        "domains, each predicted by a model that was not trained on its domain. There, the "
        f"expected calibration error changed from {100 * calibration.error_before:.1f} % to "
        f"{100 * calibration.error_after:.1f} %. A confidence is only as reliable as the left-out "
        "domains are typical of your data.\n\n"
        "`distance` is how far a sample is from the training domains in the network's features. "
        "`percentile` is the rank of that distance among samples of left-out domains: near 100, "
        "the sample is farther away than nearly all of them."
        f"{_separation(calibration)}{_errors(calibration)}"
    )


def _separation(calibration: Calibration) -> str:
    """How well the distance separated left-out domains from the sources."""
    separations = calibration.separations
    if not separations:
        return ""
    mean = sum(separations.values()) / len(separations)
    least = min(separations, key=lambda name: separations[name])
    weak = separations[least] < WEAK_SEPARATION
    warning = (
        " **The distance gives little warning there: near 0.5, samples of "
        f"{escape_markdown(least)} look like those of the training domains.**"
    )
    return (
        "\n\nHow well it warns was measured: the distance separates samples of left-out domains "
        f"from unseen samples of the training domains with an AUROC of {mean:.2f} on average (1 is "
        f"perfect, 0.5 is chance), and of {separations[least]:.2f} for {escape_markdown(least)}, "
        f"the worst.{warning * weak}"
    )


def _errors(calibration: Calibration) -> str:
    """How well confidence and distance told wrong predictions from right ones."""
    measured = {
        "confidence": calibration.confidence_auroc,
        "distance": calibration.distance_auroc,
    }
    texts = []
    for name, aurocs in measured.items():
        if aurocs:
            mean = sum(aurocs.values()) / len(aurocs)
            least = min(aurocs, key=lambda domain: aurocs[domain])
            texts.append(
                f"{name} {mean:.2f} on average, {aurocs[least]:.2f} for {escape_markdown(least)}"
            )
    if not texts:
        return ""
    return (
        "\n\nHow well they tell wrong predictions from right ones on a left-out domain (AUROC, "
        f"average and worst domain): {'; '.join(texts)}.{_chosen_score(calibration)}"
    )


def _chosen_score(calibration: Calibration) -> str:
    """What strangeness is, and which samples are too far away."""
    text = ""
    if calibration.score_auroc:
        values = ", ".join(f"{name} {value:.2f}" for name, value in calibration.score_auroc.items())
        text = (
            f" `strangeness` is the rank, from 0 to 100 among samples of left-out domains, of "
            f"{SCORE_TEXTS[calibration.score]}; of several scores, it told them apart best "
            f"({values})."
        )
    if calibration.score == "neighbors":
        text += " For this, the folder has the features of up to 1,000 training samples."
    return text


def _sets(about: Description) -> str:
    """What prediction sets cover, on each held-out domain with the threshold of the others."""
    conformity = about.calibration.conformity if about.calibration else {}
    if len(conformity) < 2:
        return ""
    sets, level = PredictionSets(conformity), f"{100 * CARD_COVERAGE:.0f} %"
    coverages = sets.coverages(CARD_COVERAGE)
    least = min(coverages, key=lambda name: coverages[name])
    mean = sum(coverages.values()) / len(coverages)
    expected, stderr = sets.expected(CARD_COVERAGE)
    text = (
        f"## Prediction sets\n\n`afield predict --coverage {CARD_COVERAGE:g}` writes a set of "
        f"classes per sample. The threshold is that with which the set has the true class for "
        f"{level} of the samples of left-out domains, each domain with the same weight. Measured "
        f"on every left-out domain with the threshold of the others, it was "
        f"**{100 * mean:.0f} % on average and {100 * coverages[least]:.0f} % at worst** "
        f"({escape_markdown(least)}). With the threshold of all of them, the estimate for one more "
        f"domain is **{100 * expected:.0f} % ± {100 * stderr:.0f}** (standard error over domains). "
        "The models that were measured had fewer domains to learn from than this one; where more "
        "domains make models better, it covers more. The column `set_worst` has the sets with "
        f"which every left-out domain reaches {level}.\n\nThis is no promise for each new domain: "
        f"from {len(conformity)} domains, no more than {100 * sets.promise:.0f} % "
        f"({len(conformity)}/{len(conformity) + 1}) can be promised for one more."
    )
    if len(coverages) > MAX_NAMES:
        return text
    rows = [f"| {escape_markdown(name)} | {100 * v:.1f} |" for name, v in coverages.items()]
    return "\n".join([text, "", "| domain left out | coverage (%) |", "| --- | --- |", *rows])


def _usage(about: Description) -> str:
    modality = about.inputs.modality
    return (
        "## Usage\n\n"
        f"```bash\nafield predict . {modality.example} --out predictions.csv --abstain 0.1\n```\n\n"
        "```python\nimport afield\n\n"
        'model = afield.load("path/to/this/folder")  # runs no code from the folder\n'
        f'model.predict(["{modality.python_example}"])\n```\n\n'
        f"The model takes {about.inputs.summary}.{_export(about)}"
    )


def _export(about: Description) -> str:
    """What a user of the exported file has to do before it."""
    if about.inputs.modality.no_export:
        return ""
    form = about.inputs.modality.export_form(about.inputs)
    return (
        f"{form.note}\n\n`afield export . --to onnx` writes a file for other programs. Before it: "
        f"{form.steps}. It returns logits and calibrated probabilities, in the order of the "
        "classes below."
    )


def _training(about: Description) -> str:
    facts = [
        f"- classes ({len(about.classes)}): {_join_names(about.classes)}",
        f"- training domains ({len(about.sources)}): {_join_names(about.sources)}",
        f"- network: `{about.architecture.backbone}`, inputs of "
        f"{' × '.join(map(str, about.inputs.shape))}",
    ]
    if about.merged:
        facts.append(f"- merged: {_merge_fact(about)}")
    if about.run:
        run = about.run
        start = {"": "random weights", "hub": "pretrained weights from the hub"}
        weights = start.get(run.weights, Path(run.weights).name)
        per_domain = f"{run.batch} samples per domain"
        samples = f"{run.batch_total} samples" if run.batch_total else per_domain
        average = f", weight averaging `{run.average}`" if run.average != "last" else ""
        if run.members:
            facts.append(
                f"- ensemble: the mean of the probabilities of {len(run.members)} networks, which "
                "were trained with different seeds; a prediction costs as much as with all of them"
            )
        facts.append(
            f"- {'trained like ' if about.merged else ''}method `{run.method}`{average}, "
            f"{run.steps} steps of {samples}, learning rate {run.lr:g}, "
            f"starting from {weights}"
        )
    packages = [f"{name} {value}" for name, value in about.versions.items() if name != "code"]
    facts.append(f"- made with {', '.join(packages)}")
    return (
        "## How it was made\n\n"
        + "\n".join(facts)
        + f"\n\nTo make it again:\n\n```bash\n{_one_line(about.command)}\n```"
    )


def _one_line(command: str) -> str:
    """A command that cannot end the code block in which it stands."""
    return " ".join(command.split()).replace("```", "` ` `")


def _join_names(names: Sequence[str]) -> str:
    return escape_markdown(", ".join(names[:MAX_NAMES]) + ", …" * (len(names) > MAX_NAMES))


def _merge_fact(about: Description) -> str:
    merged = about.merged
    params = ", ".join(f"{name}={value}" for name, value in merged.get("params", {}).items())
    return (
        f"`{merged.get('merge')}`{f' ({params})' if params else ''} of "
        f"{len(merged.get('experts', ()))} models, scale {merged.get('scale')}, without data; "
        "estimates for the merged models do not apply to this one"
    )
