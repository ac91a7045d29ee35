"""Prompts for CLIP: readable names and sentences, from the dataset or from files."""

import os
import re
from dataclasses import replace

import pytest

from afield.data.domains import DomainSet
from afield.data.lookup import find_dataset
from afield.data.prompts import DEFAULT_TEMPLATES, Prompts, dataset_prompts
from afield.errors import DataError, SpecError
from afield.registry import find
from afield.studies.planning import plan_run
from afield.studies.settings import resolve_settings

CLIP = "clip:ViT-B-32/openai"
PLAIN = ("pacs", "vlcs", "nico_pp")
OWN = ("imagenet_r", "fed_isic", "retina_domains", "terra_incognita", "office_home")


def dataset(**changes) -> DomainSet:
    plain = DomainSet("things", ("a", "b"), ("big_dog", "MEL"), reader=lambda options: {})
    return replace(plain, **changes)


def test_folder_names_are_the_default_and_have_no_digest_in_a_run():
    prompts = dataset_prompts(dataset())
    assert prompts == Prompts(("big dog", "MEL"), DEFAULT_TEMPLATES)
    assert list(prompts) == ["big dog", "MEL"]
    assert prompts.sentences(0)[0] == "a photo of a big dog."


def test_a_dataset_states_names_and_templates():
    own = dataset(class_names={"MEL": "melanoma"}, templates=("a scan of {}.",))
    prompts = dataset_prompts(own)
    assert [prompts.sentences(i) for i in range(2)] == [
        ["a scan of big dog."],
        ["a scan of melanoma."],
    ]
    assert prompts.digest != dataset_prompts(dataset()).digest
    # It is a part of keys.
    assert prompts.digest == "6efa0a43cb12a675"


def test_files_replace_what_the_dataset_states(tmp_path):
    names, templates = tmp_path / "names.csv", tmp_path / "templates.txt"
    names.write_text('class,name\nbig_dog,"dog, large"\n')
    templates.write_text("a {} at night.\n\na {} by day.\n")
    own = dataset(class_names={"MEL": "melanoma"})
    assert dataset_prompts(own, str(names), str(templates)) == Prompts(
        ("dog, large", "MEL"), ("a {} at night.", "a {} by day.")
    )


@pytest.mark.parametrize(
    ("names", "templates", "message"),
    [
        ("class,name\ncat,cat\n", "", "'cat' is not a class of things"),
        ("class,name\nMEL,\n", "", "no name for the class 'MEL'"),
        ("MEL,melanoma\n", "", "needs a header with the columns class and name"),
        ("", "a photo.\n", "every line needs {} once, for the name; not 'a photo.'"),
        ("", "\n", "every line needs {} once, for the name; it is empty"),
    ],
)
def test_files_that_cannot_be_used_are_refused_in_one_line(names, templates, message, tmp_path):
    paths = {"class_names": names, "templates": templates}
    files = {}
    for name, content in paths.items():
        if content:
            (tmp_path / name).write_text(content)
            files[name] = str(tmp_path / name)
    with pytest.raises(DataError, match=re.escape(message)):
        dataset_prompts(dataset(), **files)


@pytest.mark.parametrize("option", ["class_names", "templates"])
def test_a_pipe_is_not_read(option, tmp_path):
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(DataError, match=r"pipe: cannot be read .*not a regular file"):
        dataset_prompts(find_dataset("spirals"), **{option: str(tmp_path / "pipe")})


def test_every_class_of_the_datasets_of_score_has_words(tmp_path):
    for name in (*PLAIN, *OWN):
        dataset = find("datasets", name)
        dataset = dataset(tmp_path) if not isinstance(dataset, DomainSet) else dataset
        assert set(dataset.class_names) <= set(dataset.classes) or name == "imagenet_r"
        assert (name in OWN) == bool(dataset.class_names)
        for words in dataset_prompts(dataset).names:
            assert not re.search(r"\d|_", words), words
            assert all(template.count("{}") == 1 for template in dataset.templates)


def test_names_of_imagenet_are_those_of_open_clip():
    open_clip = pytest.importorskip("open_clip")
    from timm.data import ImageNetInfo

    names = find("datasets", "imagenet_r").__globals__["_class_names"]()
    order = ImageNetInfo().label_names()
    assert len(names) == 200
    for number, name in names.items():
        assert open_clip.IMAGENET_CLASSNAMES[order.index(number)] == name
    assert set(find("datasets", "imagenet_r").__globals__["TEMPLATES"]) <= {
        template("{}") for template in open_clip.OPENAI_IMAGENET_TEMPLATES
    }


def test_only_runs_of_a_clip_with_other_prompts_have_a_digest():
    pytest.importorskip("open_clip")

    def digest(name: str, backbone: str, **files: str) -> str:
        dataset = find("datasets", name)
        training = {**vars(dataset.training), "backbone": backbone, **files}
        return resolve_settings(training, dataset)["prompts"]

    for name in PLAIN:
        assert digest(name, CLIP) == ""
    for name in OWN[1:]:
        assert digest(name, CLIP) == dataset_prompts(find("datasets", name)).digest
        assert digest(name, "timm:resnet18") == ""


def test_class_names_without_a_text_encoder_are_refused(tmp_path):
    with pytest.raises(SpecError, match="class_names: only for a CLIP"):
        plan_run("spirals", "erm", target="turn0", settings={"class_names": "names.csv"})
    assert plan_run("spirals", "erm", target="turn0").prompts == ""
    assert find_dataset("spirals").templates == ()
