"""The card of a model, in the form of Hugging Face: what it is, and what can be expected of it.

The honest number stands first: that for domains that were not trained on.
"""

import json
from pathlib import Path

from afield.deployment.model_folder import Description, Estimate

__all__ = ["render_card"]

# So many classes, or domains, are named.
MAX_NAMES = 30


def render_card(about: Description) -> str:
    """README.md: facts for programs, then the same for people."""
    parts = [
        _front(about),
        f"# {about.name}",
        _first(about),
        _trust(about),
        _use(about),
        _made(about),
    ]
    return "\n\n".join(parts) + "\n"


def _front(about: Description) -> str:
    """YAML; strings are written as JSON has them, which is YAML as well."""
    task = about.inputs.modality.task
    lines = [
        "---",
        f"license: {json.dumps(about.licence or 'unknown')}",
        "library_name: afield",
        f"pipeline_tag: {task}",
        "tags:",
        "- domain-generalization",
        *(f"- {json.dumps(word)}" for word in _tags(about)),
    ]
    dataset = about.run.dataset if about.run else ""
    if dataset:
        lines += ["datasets:", f"- {_quoted(dataset)}"]
    if about.estimate:
        lines += [
            "metrics:",
            "- accuracy",
            "model-index:",
            f"- name: {_quoted(about.name)}",
            "  results:",
            f"  - task:\n      type: {task}",
            f"    dataset:\n      name: {_quoted(f'{dataset}, domains not trained on')}",
            f"      type: {_quoted(dataset)}",
            "    metrics:",
            f"    - type: accuracy\n      value: {about.estimate.accuracy:.4f}",
            "      name: mean accuracy on unseen domains",
        ]
    return "\n".join([*lines, "---"])


def _tags(about: Description) -> list[str]:
    words = ["merged"] if about.merged else []
    if about.run:
        words += [about.run.method] + [about.run.average] * (about.run.average != "last")
    return words


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


def _first(about: Description) -> str:
    """The number that people look for, or that there is none."""
    found = about.estimate
    if found is None:
        return (
            "**Unseen domains: not estimated.** How this model does on a domain that it was not "
            "trained on is not known. Accuracy on the domains that it was trained on says little "
            "about that."
        )
    error = ""
    if found.stderr is not None:
        error = f" ± {100 * found.stderr:.1f} (standard error over {found.trials} trials)"
    told = (
        f"**Unseen domains: {100 * found.accuracy:.1f} %{error} accuracy.** That is the mean over "
        "domains that were left out of training; on the worst of them it was "
        f"{100 * found.worst:.1f} %, on domains that were trained on "
        f"{100 * found.in_domain:.1f} %."
    )
    trained = " The models measured were trained in the same way, on fewer domains; this one was "
    told += trained + "trained on all of them, so there was nothing left to measure it on."
    if found.stderr is None:
        told += " There was one trial: how much another would differ is not known."
    if found.recipes > 1:
        told += (
            f" **This recipe was chosen among {found.recipes} by just these numbers, so they are a "
            "little too good.**"
        )
    return "\n\n".join([told, _table(found)])


def _table(found: Estimate) -> str:
    rows = [f"| {_cell(name)} | {100 * value:.1f} |" for name, value in found.domains.items()]
    if len(rows) > MAX_NAMES:
        spread = 100 * (found.spread or 0.0)
        return f"{len(rows)} domains were held out; their standard deviation is {spread:.1f}."
    return "\n".join(["| domain left out | accuracy (%) |", "| --- | --- |", *rows])


def _cell(text: str) -> str:
    return " ".join(text.replace("|", "\\|").split())


def _trust(about: Description) -> str:
    found = about.calibration
    if found is None:
        return (
            "## How surely\n\nConfidences are not calibrated (temperature 1), and no share of the "
            "predictions can be marked for a person."
        )
    return (
        "## How surely\n\n"
        f"Confidences are calibrated for unseen domains: temperature {found.temperature:.3g}, "
        f"fitted on {found.samples:,} samples of domains that were left out, each read by a model "
        f"that had not seen its domain. The expected calibration error there went from "
        f"{100 * found.error_before:.1f} % to {100 * found.error_after:.1f} %. "
        f"`distance` is how far a sample lies from the sources in the network's features, "
        "`percentile` where that lies among samples of left-out domains: near 100, it is further "
        "away than nearly all that was ever looked at. A confidence is worth what the left-out "
        "domains are worth as examples of yours."
    )


def _use(about: Description) -> str:
    example = about.inputs.modality.example
    return (
        "## Use\n\n"
        f"    afield predict . {example} --out predictions.csv --abstain 0.1\n\n"
        "```python\nimport afield\n\n"
        'model = afield.load("path/to/this/folder")      # runs no code from it\n'
        f'model.predict(["{example.replace("*", "1")}"])\n```\n\n'
        f"It takes {about.inputs.told}."
    )


def _made(about: Description) -> str:
    classes = ", ".join(about.classes[:MAX_NAMES]) + ", …" * (len(about.classes) > MAX_NAMES)
    sources = ", ".join(about.sources[:MAX_NAMES]) + ", …" * (len(about.sources) > MAX_NAMES)
    told = [
        f"- classes ({len(about.classes)}): {_cell(classes)}",
        f"- trained on ({len(about.sources)} domains): {_cell(sources)}",
        f"- network: `{about.architecture.backbone}`, inputs of "
        f"{' × '.join(map(str, about.inputs.shape))}",
    ]
    if about.merged:
        told.append(f"- merged: {_merged(about)}")
    if about.run:
        run = about.run
        start = {"": "random weights", "hub": "the hub's weights"}
        first = start.get(run.weights, Path(run.weights).name)
        average = f", average `{run.average}`" if run.average != "last" else ""
        told.append(
            f"- {'like ' if about.merged else ''}method `{run.method}`{average}, {run.steps} steps "
            f"of {run.batch} samples a domain, learning rate {run.lr:g}, from {first}"
        )
    versions = ", ".join(f"{name} {value}" for name, value in about.versions.items()
                         if name != "code")  # fmt: skip
    told.append(f"- made with {versions}")
    return "## How it was made\n\n" + "\n".join(told) + f"\n\nAgain:\n\n    {about.command}"


def _merged(about: Description) -> str:
    found = about.merged
    params = ", ".join(f"{name}={value}" for name, value in found.get("params", {}).items())
    return (
        f"`{found.get('merge')}`{f' ({params})' if params else ''} of "
        f"{len(found.get('experts', ()))} models, scale {found.get('scale')}, without data; what "
        "is known of the models that went in is not known of this one"
    )
