"""The journey of an engineer with photographs of three hospitals, some of them broken."""

import re

from afield.studies.commands import shell_quote

QUICK = ("--methods", "erm,vrex", "--trials", "1", "--workers", "1", "--steps", "5")


def test_what_was_skipped_in_a_bench_is_skipped_in_the_fit_that_its_page_suggests(
    afield, hospitals, tmp_path
):
    (hospitals / "St. Marien" / "Erguss" / "kaputt.png").write_text("not an image")
    code, _, err = afield("bench", "Kliniken", *QUICK)
    assert (code, "kaputt.png" in err) == (2, True)
    assert afield("bench", "Kliniken", "--skip-broken", *QUICK)[0] == 0
    page = (tmp_path / "runs" / "report.html").read_text()
    commands = re.findall(r"afield bench [^<]*", page)
    assert commands
    assert all("--skip-broken" in command for command in commands)
    assert "Trained on features of timm:test_resnet." in page
    assert "afield fit Kliniken best --store runs --out model" in page
    fit = ("fit", "Kliniken", "best", "--store", "runs", "--workers", "1")
    code, out, err = afield(*fit, "--out", "model")
    assert code == 0, err
    assert "the best of 2 candidates" in out
    # The flag is about the data, and changes nothing.
    assert afield(*fit, "--out", "again", "--skip-broken")[0] == 0


def test_best_names_the_options_that_were_given_and_that_it_cannot_take(refusal, hospitals):
    message = refusal("fit", "Kliniken", "best", "--out", "m", "--average", "ema", "--set", "lr=1")
    assert message.endswith("remove --average, lr=1\n")


def test_best_finds_a_bench_with_a_network_that_was_chosen_by_hand(afield, hospitals):
    network = ("--backbone", "timm:test_resnet", "--weights", "none", "--no-finetune")
    assert afield("bench", "Kliniken", *network, *QUICK)[0] == 0
    assert afield("fit", "Kliniken", "best", "--out", "m", "--workers", "1")[0] == 0


def test_after_a_change_of_the_folder_a_bench_says_what_is_trained_again_and_why(
    afield, hospitals, tmp_path, caplog
):
    afield("bench", "Kliniken", *QUICK)
    assert "has changed" not in caplog.text
    (hospitals / "Uniklinik" / "Erguss" / "0.png").unlink()
    afield("bench", "Kliniken", *QUICK)
    assert re.search(
        r"Kliniken has changed since its last results in runs \(48 images, \d+ \w+\), "
        "so all 6 runs are trained again",
        caplog.text,
    )
    page = (tmp_path / "runs" / "report.html").read_text()
    newest, older = re.findall(r"<h2 id=[^>]*><bdi>([^<]*)", page)
    assert newest.startswith("Kliniken (47 images, ")
    assert older.startswith("Kliniken (48 images, ")
    assert page.index(newest) < page.index("Before the data changed")
    assert str(tmp_path) not in page
    caplog.clear()
    afield("bench", "Kliniken", *QUICK)
    assert "has changed" not in caplog.text


def test_the_command_of_a_table_names_its_columns(afield, tmp_path):
    rows = [f"{n % 7},{n % 3},{n % 2},site{n % 3}" for n in range(60)]
    (tmp_path / "own heart.csv").write_text("\n".join(["a,b,ill,place", *rows]))
    words = ("--label", "ill", "--domain", "place")
    assert afield("bench", "own heart.csv", *words, *QUICK)[0] == 0
    page = (tmp_path / "runs" / "report.html").read_text()
    quoted = shell_quote("own heart.csv").replace("'", "&#39;")
    assert f"afield fit {quoted} best --label ill --domain place --store runs" in page
    assert '<h2 id="d0-title"><bdi>own heart.csv</bdi></h2>' in page
