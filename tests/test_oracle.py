"""The oracle of refactorings finds every kind of difference, and none that is due to the place."""

import importlib.util
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[1] / "benchmarks" / "oracle.py"
GROUPS = ("keys", "weights", "records", "tables", "commands", "pages", "models", "outputs")
PAGE = """<dl><div><dt>Mean</dt><dd>1</dd></div></dl>
<ol><li>Use it <code>afield fit spirals best</code></li></ol>
<dl><div><dt><bdi>erm &amp; co</bdi></dt><dd><code dir="ltr">afield bench --set a=&#39;b&#39;</code>
</dd></div></dl><a href="data:text/csv;charset=utf-8;base64,YSxiCg==">CSV</a>
<code>--draws 5</code>"""


@pytest.fixture
def oracle(monkeypatch, tmp_path):
    monkeypatch.syspath_prepend(SCRIPT.parent)
    monkeypatch.setenv("AFIELD_DATA", str(tmp_path / "data"))
    spec = importlib.util.spec_from_file_location("oracle", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    for name in ("oracle", "oracle_cases"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    monkeypatch.setitem(sys.modules, "oracle", module)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def written(oracle, tmp_path):
    """Write an outcome with a text in each group; some texts may be other ones, or missing."""

    def write(name, **changed):
        outcome = oracle.Outcome(tmp_path / name / "work", tmp_path / name / "oracle")
        for group in GROUPS:
            text = changed.get(group, f"first line of {group}\n")
            outcome.write(group, "spirals/same.txt", "the same\n")
            if text is not None:
                outcome.write(group, "spirals.txt", text)
        assert outcome.write_digests() == 2 * len(GROUPS) - (None in changed.values())
        return tmp_path / name

    return write


def test_the_groups_are_those_of_the_script(oracle):
    assert oracle.GROUPS == GROUPS


def test_equal_outcomes_have_no_difference(oracle, written, capsys):
    assert oracle.compare(written("old"), written("new"))
    assert capsys.readouterr().out == "".join(f"{name}: 0 of 2 differ\n" for name in GROUPS)


@pytest.mark.parametrize("group", GROUPS)
def test_a_difference_is_found_in_every_group(oracle, written, capsys, group):
    old, new = written("old"), written("new", **{group: "another line\n"})
    assert not oracle.compare(old, new)
    out = capsys.readouterr().out
    assert f"{group}: 1 of 2 differ\n  {group}/spirals.txt\n" in out
    assert f"    -first line of {group}\n    +another line\n" in out
    assert out.count("0 of 2 differ") == len(GROUPS) - 1


@pytest.mark.parametrize("group", GROUPS)
def test_a_text_that_is_missing_is_a_difference(oracle, written, capsys, group):
    full, less = written("full"), written("less", **{group: None})
    for old, new in ((full, less), (less, full)):
        assert not oracle.compare(old, new)
        assert f"missing: {less / 'oracle' / group / 'spirals.txt'}" in capsys.readouterr().out


def test_only_groups_that_are_named_may_differ(oracle, written, monkeypatch, capsys):
    old, new = written("old"), written("new", pages="other\n", outputs="other\n")

    def ends_with(*words):
        monkeypatch.setattr(sys, "argv", ["oracle.py", "compare", str(old), str(new), *words])
        with pytest.raises(SystemExit) as end:
            oracle.main()
        return end.value.code

    assert ends_with("--allow", "pages,outputs") == 0
    assert "pages: 1 of 2 differ (allowed)" in capsys.readouterr().out
    assert ends_with("--allow", "pages") == ends_with() == 1
    assert ends_with("--allow", "papers") == 2


def test_texts_do_not_depend_on_where_they_were_made(oracle, tmp_path):
    outcome = oracle.Outcome(tmp_path / "work", tmp_path / "oracle")
    under_scores = str(tmp_path / "work").strip("/").replace("/", "_").replace("-", "_")
    text = f"{tmp_path}/work/runs {under_scores}_runs.csv {tmp_path}/data/weights afield 0.1.0"
    outcome.write("outputs", "list.txt", text)
    written = (tmp_path / "oracle" / "outputs" / "list.txt").read_text()
    assert written == "WORK/runs WORK_runs.csv DATA/weights afield VERSION"


def test_records_keep_everything_but_times_and_versions(oracle):
    versions = {"torch": "2.6", "code": "ast1:0", "first weights": "f00d"}
    record = {"run": {"lr": 0.1}, "seconds": 3.2, "memory": 5, "versions": versions}
    other = {"run": {"lr": 0.1}, "seconds": 0.1, "memory": 9, "versions": versions | {"torch": "3"}}
    assert oracle.without_times(record) == oracle.without_times(other)
    assert oracle.without_times(record)["versions"]["first weights"] == "f00d"
    assert oracle.without_times(record) != oracle.without_times(other | {"run": {"lr": 0.2}})


def test_commands_are_read_from_a_page(oracle):
    assert list(oracle.page_commands(PAGE)) == [
        "afield fit spirals best",
        "erm & co: afield bench --set a='b'",
    ]
    assert 'charset=utf-8,a,b\n">CSV' in oracle.with_plain_downloads(PAGE)


def test_a_folder_of_something_else_is_left_alone(oracle, tmp_path):
    (tmp_path / "data" / "weights").mkdir(parents=True)
    assert "is not empty" in oracle.make(tmp_path, ["questions"], 1)
    assert [path.name for path in tmp_path.iterdir()] == ["data"]
