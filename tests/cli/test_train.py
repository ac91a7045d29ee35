"""`afield train` as a user types it, and columns of tables in both `train` and `embed`."""

from afield.runs.store import Store


def test_train_shows_sources_and_the_unseen_domain_and_can_be_repeated(afield, tmp_path):
    code, out, err = afield(
        "train", "spirals", "vrex", "--target", "turn10", "--steps", "10", "--set", "vrex.penalty=2"
    )
    assert code == 0
    assert out.count("validation") == 3
    assert out.count("unseen") == 1
    (folder,) = (tmp_path / "runs").glob("vrex-*")
    assert folder.name in err
    code, again, _ = afield("train", "--like", folder, "--store", "other")
    assert (code, again) == (0, out)
    other = tmp_path / "other" / folder.name / "model.safetensors"
    assert other.read_bytes() == (folder / "model.safetensors").read_bytes()


def test_train_shows_what_the_domain_label_gives_where_a_method_can_use_it(afield):
    code, out, _ = afield("train", "spirals", "dmg", "--target", "turn10", "--steps", "5")
    assert code == 0
    assert out.count("validation, domain label given") == 3


def test_every_command_that_reads_a_table_takes_the_names_of_its_columns(afield, refusal, tmp_path):
    rows = [
        f"{i % 5},{i % 7},{'well' if i % 2 else 'ill'},{'nord' if i < 40 else 'sud'}"
        for i in range(80)
    ]
    (tmp_path / "visits.csv").write_text("age,pulse,verdict,ward\n" + "\n".join(rows))
    columns = ("visits.csv", "--label", "verdict", "--domain", "ward")
    code, out, _ = afield("data", "check", *columns)
    assert code == 0
    assert ["nord", "20", "20", "40"] in [line.split() for line in out.splitlines()]
    steps = ("--steps", "5", "--store", "one")
    assert afield("train", *columns, "erm", "--target", "sud", *steps)[0] == 0
    words = ("erm", "--no-estimate", "--out", "model", *steps)
    assert afield("fit", *columns, *words)[0] == 0
    sweep = 'dataset = "visits.csv"\nmethods = "erm"\ntargets = "sud"\ntrials = 1\nworkers = 1\n'
    (tmp_path / "bench.toml").write_text(f'{sweep}store = "one"\n[settings]\nsteps = 5\n')
    assert afield("sweep", "bench.toml", *columns[1:])[0] == 0
    # The run of `train` and that of the sweep are the same; the other one is that of `fit`.
    assert len(list(Store(tmp_path / "one"))) == 2
    words = ("--out", "emb", "--backbone", "timm:test_resnet")
    assert "no column" not in refusal("embed", *columns, *words)
    message = refusal("data", "check", "visits.csv", "--label", "diagnosis")
    assert "no column 'diagnosis'" in message
