"""The folder is the registry: one file, one name, one public object."""

import subprocess
import sys
from importlib import import_module
from pathlib import Path
from typing import get_args

import pytest

from afield import registry
from afield.data.domains import DomainSet
from afield.diagnosis.diagnostic import Diagnostic
from afield.errors import AfieldError, UnknownNameError
from afield.merging.scopes import Scope
from afield.training.adaptation import Adaptation
from afield.training.average import Average
from afield.training.classical_method import ClassicalMethod
from afield.training.method import Method
from tests.files import other_package

MODULES = {
    (kind, name): import_module(f"afield.{registry.ROOMS[kind]}.{kind}.{name}")
    for kind in registry.KINDS
    for name in registry.names(kind)
}


def test_every_file_of_a_folder_is_a_name():
    for kind in registry.KINDS:
        folder = Path(registry.__file__).parent / registry.ROOMS[kind] / kind
        files = {path.stem for path in folder.iterdir() if path.suffix == ".py"} - {"__init__"}
        assert files, kind
        assert files <= set(registry.names(kind)), kind
        assert registry.names(kind) == sorted(registry.names(kind)), kind


def test_a_file_has_one_public_name_and_find_returns_it():
    for (kind, name), module in MODULES.items():
        assert len(module.__all__) == 1, f"{kind}/{name}: {module.__all__}"
        assert registry.find(kind, name) is getattr(module, module.__all__[0]), f"{kind}/{name}"


def test_a_name_of_a_kind_is_an_instance_of_its_idea(tmp_path):
    bases = {
        "methods": Method,
        "classical_methods": ClassicalMethod,
        "averages": Average,
        "adaptations": Adaptation,
        "diagnostics": Diagnostic,
    }
    for kind, name in MODULES:
        result, where = registry.find(kind, name), f"{kind}/{name}"
        if kind == "datasets":
            declared = result if isinstance(result, DomainSet) else result(tmp_path)
            assert isinstance(declared, DomainSet), where
            assert declared.name == name, where
        elif kind == "merges":
            assert result.__name__ == name, where
            assert result.scope in get_args(Scope), where
        else:
            assert issubclass(result, bases[kind]), where


@pytest.mark.parametrize(
    ("kind", "wrong", "right"),
    [("methods", "grupdro", "groupdro"), ("averages", "emaa", "ema"), ("datasets", "spiral", "s")],
)
def test_an_unknown_name_is_answered_with_a_guess(kind, wrong, right):
    with pytest.raises(UnknownNameError, match=f"no {kind[:-1]} '{wrong}'; did you mean '{right}"):
        registry.find(kind, wrong)


def test_an_unknown_name_like_no_other_is_answered_with_all_there_are():
    with pytest.raises(AfieldError) as caught:
        registry.find("averages", "zzzzzzzz")
    assert all(name in str(caught.value) for name in registry.names("averages"))


def test_a_hint_without_anything_known_says_none():
    assert registry.hint("x", []) == "known: none"


def test_the_summary_is_the_first_line_of_the_docstring():
    for (kind, name), module in MODULES.items():
        first = module.__doc__.splitlines()[0]
        assert registry.summary(kind, name) == first != "", f"{kind}/{name}"


def test_names_and_summaries_import_neither_torch_nor_the_module():
    script = (
        "import sys; from afield import registry\n"
        "all_ = [(k, n) for k in registry.KINDS for n in registry.names(k)]\n"
        "assert all(registry.summary(k, n) for k, n in all_)\n"
        "paths = [f'afield.{registry.ROOMS[k]}.{k}.{n}' for k, n in all_]\n"
        "loaded = [path for path in paths if path in sys.modules]\n"
        "assert not loaded, loaded\n"
        "assert 'torch' not in sys.modules"
    )
    command = [sys.executable, "-c", script]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_another_package_adds_a_name_through_an_entry_point(tmp_path, monkeypatch):
    source = '"""Theirs: a dataset from elsewhere."""\nthings = ["their dataset"]\n'
    other_package(tmp_path, "datasets", "theirs", "their_data:things", source)
    monkeypatch.syspath_prepend(tmp_path)
    assert "theirs" in registry.names("datasets")
    assert "theirs" not in registry.names("methods")
    assert registry.summary("datasets", "theirs") == "Theirs: a dataset from elsewhere."
    assert "their_data" not in sys.modules
    assert registry.find("datasets", "theirs") == ["their dataset"]
    monkeypatch.delitem(sys.modules, "their_data")


def test_another_package_does_not_replace_a_name_of_ours(tmp_path, monkeypatch):
    other_package(tmp_path, "methods", "erm", "their_erm:ERM", "ERM = None\n")
    monkeypatch.syspath_prepend(tmp_path)
    assert registry.names("methods").count("erm") == 1
    assert registry.find("methods", "erm").__module__ == "afield.training.methods.erm"


def changed_digest(monkeypatch, before, after):
    """Whether the digest of a file tells the two contents apart."""
    digests = []
    for source in (before, after):
        monkeypatch.setattr(registry, "_source", lambda kind, name, source=source: source)
        registry._builtin_digest.cache_clear()
        digests.append(registry.digest("merges", "ties"))
    registry._builtin_digest.cache_clear()
    return registry.code_differs(*digests)


def test_imports_docstrings_and_comments_are_not_part_of_the_code(monkeypatch):
    before = 'import a\n\ndef f(x):\n    """Twice."""\n    return 2 * x\n'
    after = '"""New."""\nfrom b import a\n\ndef f(x):\n    # why\n    return (2 * x)\n'
    assert not changed_digest(monkeypatch, before, after)
    assert changed_digest(monkeypatch, before, before.replace("2", "3"))


def test_a_digest_of_another_form_says_nothing_about_the_code():
    now = registry.digest("methods", "erm")
    assert now.startswith(registry.CODE_FORM)
    for older in ("", "0123456789ab", "ast0:0123456789ab"):
        assert not registry.code_differs(older, now)
        assert not registry.code_differs(now, older)
    assert registry.code_differs(now, registry.digest("methods", "vrex"))


def test_class_constants_are_read_from_the_source_as_an_import_would_give_them():
    for name in registry.names("methods"):
        method = registry.find("methods", name)
        for attribute in ("predicts_from_batches", "array_backbone", "min_domains", "min_batch"):
            constant = registry.class_constant("methods", name, attribute, None)
            assert constant == getattr(method, attribute), f"{name}.{attribute}"


def test_a_digest_of_code_is_computed_once(monkeypatch):
    first = registry.digest("methods", "vrex")
    monkeypatch.setattr(registry, "_dump_code", lambda _: pytest.fail("computed again"))
    assert registry.digest("methods", "vrex") == first
