"""Modalities: what depends on the kind of samples is said in one place."""

import ast
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

import afield
from afield import registry
from afield.data.domains import Domain
from afield.data.inputs import Inputs
from afield.data.log_mel import LogMel
from afield.data.modality import Fact, find_modality, modalities, modality_of_file
from afield.data.samples import Rows
from afield.data.scaling import FittedColumn
from afield.errors import DataError, SpecError

PACKAGE = Path(afield.__file__).parent
NAMES = ("pictures", "sounds", "arrays", "table", "texts")
IMAGE, AUDIO, ARRAY, TABLE, TEXT = map(find_modality, NAMES)
FILES = [IMAGE, AUDIO]
# What a model of each modality takes.
INPUTS = {
    "pictures": Inputs("pictures", "uint8", (3, 18, 18), (127.5,), (127.5,), size=16),
    "sounds": Inputs("sounds", "float16", (1, 40, 98), (0.0,), (1.0,), mel=LogMel()),
    "arrays": Inputs("arrays", "float32", (4,), (0.0,), (1.0,)),
    "table": Inputs("table", "float32", (1,), (0.0,), (1.0,), table=(FittedColumn("age"),)),
    "texts": Inputs("texts", "int32", (8,), (0.0,), (1.0,)),
}
every_modality = pytest.mark.parametrize(
    "modality", [*map(find_modality, NAMES)], ids=lambda m: m.name
)
every_input = pytest.mark.parametrize("inputs", [*INPUTS.values()], ids=INPUTS)


def test_the_names_in_stored_models_never_change():
    assert set(modalities()) == set(NAMES)


def test_the_folder_is_the_registry():
    kinds = [registry.find("modalities", name) for name in registry.names("modalities")]
    assert registry.names("modalities") == [kind.__name__.lower() for kind in kinds]
    assert kinds == list(modalities().values())


def test_the_names_in_the_cache_never_change():
    assert IMAGE.cache_form(18) == "pictures of 18 × 18"
    assert AUDIO.cache_form(0) == (
        "sounds as LogMel(rate=16000, seconds=1.0, bins=40, window=0.025, hop=0.01)"
    )
    assert TEXT.cache_form(0) == "texts as 512 tokens of bytes"


@pytest.mark.parametrize(
    "modality",
    [IMAGE, AUDIO, replace(AUDIO, mel=LogMel(rate=8000)), ARRAY, TEXT.with_tokens("t.json", 8)],
    ids=str,
)
def test_a_modality_is_found_again_by_its_name_and_settings(modality):
    assert find_modality(modality.name, **modality.settings) == modality


def test_an_unknown_name_and_a_setting_of_another_modality_are_refused():
    with pytest.raises(SpecError, match="did you mean 'pictures'"):
        find_modality("picture")
    with pytest.raises(SpecError, match="kind=arrays: takes no mel"):
        find_modality("arrays", mel=LogMel())


@pytest.mark.parametrize("modality", FILES, ids=str)
def test_the_modality_of_a_file_is_that_of_its_suffix_in_any_case(modality):
    for suffix in modality.suffixes:
        assert modality_of_file(Path(f"a{suffix.upper()}")) == modality
    assert modality_of_file(Path("a.txt")) == TEXT
    assert modality_of_file(Path("a.pdf")) is None
    # A file of arrays is not one sample.
    assert modality_of_file(Path("a.npz")) is None


def test_no_two_modalities_share_a_suffix():
    suffixes = [suffix for kind in modalities().values() for suffix in kind.suffixes]
    assert len(set(suffixes)) == len(suffixes)


@every_modality
def test_a_modality_says_what_messages_and_cards_need(modality):
    for words in (modality.noun, modality.task, modality.example, modality.python_example):
        assert words
    assert modality.suffixes
    assert all(suffix.startswith(".") for suffix in modality.suffixes)
    assert modality.with_tokens(modality.settings.get("tokenizer", ""), 0) == modality
    assert find_modality(modality.name) == modality


@every_input
def test_inputs_are_described_prepared_and_seen_by_a_network_in_one_shape(inputs):
    assert inputs.modality.summary(inputs) == inputs.summary
    rows = torch.zeros((2, *inputs.stored)).to(getattr(torch, inputs.dtype))
    assert inputs.prepare(rows).shape[1:] == inputs.shape


@every_input
def test_an_exported_network_takes_the_examples_in_the_order_of_the_names(inputs):
    modality = inputs.modality
    if modality.no_export:
        return
    axes = modality.export_form(inputs).axes
    examples = [modality.export_example(inputs, count) for count in (2, 3)]
    for name, first, second in zip(axes, *examples, strict=True):
        changed = tuple(i for i in range(first.ndim) if first.shape[i] != second.shape[i])
        assert changed == axes[name]
    module = torch.nn.Flatten() if not modality.has_tokens else Lengths()
    network = modality.export_network(inputs, module, 2.0)
    logits, probabilities = network(*examples[0])
    torch.testing.assert_close(probabilities, (logits / 2).softmax(dim=1))
    assert all(map(torch.equal, examples[0], modality.export_example(inputs, 2)))


class Lengths(torch.nn.Module):
    def forward(self, ids):
        lengths = (ids >= 0).sum(dim=1, keepdim=True).float()
        return torch.cat([lengths, -lengths], dim=1)


@every_modality
def test_the_scaling_of_a_run_is_restored_and_says_the_shape_of_its_results(modality):
    stored = {"pictures": torch.uint8, "texts": torch.int32}.get(modality.name, torch.float32)
    x = torch.arange(12).reshape(4, 3).to(stored)
    if modality.has_columns:
        modality = replace(modality, columns=tuple(f.column for f in map(FittedColumn, "abc")))
    scaling = modality.fit_scaling(Rows([x]))
    assert torch.equal(scaling.restored(scaling.to_dict())(x), scaling(x))
    assert modality.network_shape(scaling, (3,), 0) == tuple(scaling(x).shape[1:])


@every_modality
def test_only_arrays_are_checked_for_values_that_are_not_finite(modality):
    x = torch.tensor([[0.0], [float("nan")]])
    if modality.raw:
        with pytest.raises(DataError, match=r"^here: NaN or infinity in sample 1"):
            modality.check_values(x, "here")
    else:
        modality.check_values(x, "here")
    modality.check_values(x.nan_to_num().byte(), "here")


def test_facts_are_values_about_domains_and_the_dataset():
    x = torch.tensor([[97, 98, -1], [97, 98, 99], [97, -1, -1]], dtype=torch.int32)
    domain = Domain(x, torch.zeros(3), truncated=1)
    assert TEXT.facts({"a": domain, "b": domain}) == [
        Fact("median length in bytes", 2, "a"),
        Fact("median length in bytes", 2, "b"),
        Fact("texts have more than 3 bytes", 2, total=6),
    ]
    for modality in (IMAGE, AUDIO, ARRAY, TABLE):
        assert modality.facts({"a": domain}) == []


@pytest.mark.parametrize("modality", FILES, ids=str)
def test_rows_of_the_cache_become_samples_with_channels_first(modality):
    row = modality.empty_row(32)
    samples = modality.to_samples(torch.from_numpy(np.stack([row, row])))
    assert samples.shape[1] in (1, 3)
    assert samples.ndim == 4
    assert modality.stack([row, row]).shape == samples.shape


def test_images_alone_are_stored_larger_than_the_network_sees_them():
    assert IMAGE.stored_side(224) == 256
    assert AUDIO.stored_side(224) == ARRAY.stored_side(224) == TEXT.stored_side(224) == 0
    assert [modality.resizable for modality in (IMAGE, AUDIO, ARRAY)] == [True, False, False]


def test_low_frequencies_are_shown_at_the_bottom_and_all_else_as_it_is():
    x = torch.arange(6.0).view(1, 3, 2)
    assert AUDIO.upright(x)[0].tolist() == [[4, 5], [2, 3], [0, 1]]
    assert torch.equal(AUDIO.upright(x[None])[0], AUDIO.upright(x))
    for modality in (IMAGE, ARRAY):
        assert torch.equal(modality.upright(x), x)
    assert AUDIO.to_rgb(x)[:, 0, 0].tolist() == pytest.approx([0.8, 0.4, 0.0])


def test_no_module_asks_which_modality_it_has():
    """Behavior that depends on the modality is a method or an attribute of it."""
    classes = {kind.__name__ for kind in modalities().values()}
    classes |= {"Modality", "FileModality", "TableScaling"}
    for path in sorted(PACKAGE.rglob("*.py")):
        if path.parent == PACKAGE / "data" / "modalities":
            continue
        tree = ast.parse(path.read_text())
        imported = {
            alias.asname or alias.name: alias.name
            for node in ast.walk(tree)
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("afield.data")
            for alias in node.names
        }
        kinds = {name for name, original in imported.items() if original in classes}
        for node in ast.walk(tree):
            where = f"{path.relative_to(PACKAGE)}:{getattr(node, 'lineno', 0)}"
            if isinstance(node, ast.Call) and ast.unparse(node.func) in (
                "isinstance",
                "issubclass",
            ):
                asked = {each.id for each in ast.walk(node.args[1]) if isinstance(each, ast.Name)}
                assert not asked & kinds, f"{where}: {ast.unparse(node)}"
            if isinstance(node, ast.Compare):
                sides = [node.left, *node.comparators]
                values = {each.value for each in sides if isinstance(each, ast.Constant)}
                names = {each.attr for each in sides if isinstance(each, ast.Attribute)}
                by_name = values & set(NAMES) and names & {"name", "kind"}
                assert not by_name, f"{where}: {ast.unparse(node)}"
