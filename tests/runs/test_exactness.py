"""Every run ends in the same bytes: repeated, interrupted, killed, or done by several workers."""

from collections.abc import Callable
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
import torch

from afield import registry
from afield.data.lookup import find_dataset
from afield.data.stream import Stream
from afield.runs.pools.local import Local
from afield.runs.run import Run
from afield.runs.run_data import RunData
from afield.runs.run_setup import load_domains
from afield.runs.runner import execute
from afield.runs.store import Store
from afield.runs.sweep import complete
from afield.studies.planning import plan_run
from tests.pairs import small_problem
from tests.runs.interruption import (
    assert_a_kill_changes_nothing,
    assert_continues,
    do_sweep,
    interrupt,
    kill_while,
    outcome,
)
from tests.runs.merge_runs import runs_of_merges, write_domains
from tests.runs.small_runs import (
    LAST_STEP,
    averaged,
    probed_base,
    regrouping_run,
    run_from_a_file,
    swad_run,
    varied_run,
)
from tests.texts import write_encoder, write_reviews


@pytest.fixture
def stores(tmp_path):
    """One for a run in a single go, and one for the same run that is disturbed."""
    return Store(tmp_path / "straight"), Store(tmp_path / "disturbed")


@dataclass(frozen=True)
class Case:
    """A run, made in a folder for its data, and the steps after which it is interrupted."""

    run: Callable[[Path], Run]
    stops: tuple[int, ...]


def case(name, run, *stops, slow=False):
    marks = [pytest.mark.slow] if slow else []
    return pytest.param(Case(run, stops), id=name, marks=marks)


def spirals(method="vrex", average="last", **settings):
    """A function to the run of a method on spirals."""
    return lambda _: averaged(
        plan_run("spirals", method, target="turn0", settings=settings), average
    )


def every_method_and_average():
    """Every method with the last weights, and every average with three kinds of methods.

    These are a plain method, one that goes back to earlier weights, and one with a further network.
    """
    pairs = [(method, "last") for method in registry.names("methods")]
    averages = [name for name in registry.names("averages") if name != "last"]
    pairs += [(method, name) for name in averages for method in ("erm", "mldg", "dann")]
    for method, average in pairs:

        def run(_, method=method, average=average):
            dataset, target, settings = small_problem(method)
            settings = {"steps": 84, "every": 14, **settings}
            return averaged(plan_run(dataset, method, target=target, settings=settings), average)

        # In a block of 64 steps of the stream, and after it.
        yield case(f"{method}-{average}", run, 28, 70)


def bfloat16():
    """Averages with copies of the weights, masks, second derivatives, inner and further loops."""
    pairs = [("erm", "ema"), ("erm", "swad"), ("dmg", "last"), ("iga", "last"), ("mldg", "swa")]
    pairs += [("arith", "last"), ("dann", "wise"), ("crossgrad", "last")]
    settings = {"steps": 30, "every": 10, "precision": "bf16"}
    for method, average in pairs:
        name = f"bf16-{method}-{average}"
        yield case(name, spirals(method, average, **settings), 20, slow=True)


def schedules():
    settings = {"steps": 30, "every": 5, "lr_schedule": "cosine:warmup=4", "clip_norm": 0.5}
    # It has schedules of its own for weights and for masks.
    of_dmg = {"dmg.schedule": "exponential", "dmg.mask_schedule": "inverse"}
    for method, own in (("erm", {}), ("vrex", {}), ("dmg", of_dmg)):
        yield case(f"schedule-{method}", spirals(method, **settings, **own), 5, 20)


def regroupings():
    for grouping in ("loss", "kmeans", "graph", "class"):
        name = f"between-regroupings-{grouping}"
        yield case(name, lambda _, how=grouping: regrouping_run(how), 14, 35, 70)
    for grouping in ("loss", "kmeans"):
        name = f"before-a-regrouping-{grouping}"
        yield case(name, lambda _, how=grouping: regrouping_run(how, every=25), 25, 75)


def valleys():
    """Interrupted before the valley begins, in it, and where its end is known."""
    for form in ("code", "paper"):
        name, settings = f"swad-valley-{form}", {"swad.form": form}
        yield case(name, lambda _, own=settings: swad_run(**own), 4, 8, 10, LAST_STEP)


def run_of_texts(folder, method="erm", **settings):
    settings = {"steps": 6, "every": 2, "batch": 4, "tokens": 16, **settings}
    return plan_run(write_reviews(folder), method, target="hotels", settings=settings)


def run_with_an_encoder(folder):
    encoder = write_encoder(folder / "encoder")
    return run_of_texts(folder, "arith", backbone=f"hf:{encoder}")


# Where a phase of the method ends; where the best checkpoint, with its further networks, may be
# any; with other settings than the usual ones.
CASES = [
    *every_method_and_average(),
    *bfloat16(),
    *schedules(),
    *regroupings(),
    *valleys(),
    case("warm-up", spirals(steps=60, every=10, **{"vrex.warmup": 0.5}), 30),
    case("metareg-phases", spirals("metareg", steps=20, every=1), 6, 10, 13),
    case("parts", spirals("dann", steps=60, every=2, lr=0.03), *range(2, 60, 2)),
    case("sgd", spirals(steps=30, every=3, optimizer="sgd:momentum=0.9,nesterov=true"), 9, 21),
    case("metric", spirals("erm", steps=84, every=14, metric="nll"), 28),
    case("pictures", lambda folder: varied_run(folder, every=8), 24, 72, slow=True),
    case("weights-of-a-file", lambda folder: run_from_a_file(folder)[0], 2, slow=True),
    case("texts", run_of_texts, 4),
    case("texts-with-an-encoder", run_with_an_encoder, 4),
]


@pytest.mark.parametrize("case", CASES)
def test_an_interrupted_run_ends_in_the_same_bytes(case, stores, tmp_path, monkeypatch):
    monkeypatch.setenv("AFIELD_CACHE", str(tmp_path / "cache"))
    run = case.run(tmp_path)
    record = assert_continues(run, *stores, stops=case.stops)
    if run.tokens:
        assert record.truncated > 0


def test_an_interrupted_expert_with_a_frozen_head_ends_in_the_same_bytes(stores):
    run = plan_run("spirals", "arith", target="turn0", settings={"steps": 20, "every": 5})
    base, _ = (probed_base(store) for store in stores)
    run = replace(run, role="expert", base=base.key, freeze_head=True)
    assert_continues(run, *stores, stops=(10,))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("method", "average", "backend"),
    [
        ("erm", "ema", None),
        # Without a C++ compiler: traced, and run as it was traced.
        ("dmg", "ema", "aot_eager"),
        ("mldg", "swad", "aot_eager"),
        ("crossgrad", "last", "aot_eager"),
    ],
)
def test_an_interrupted_compiled_run_ends_in_the_same_bytes(
    method, average, backend, stores, tmp_path, monkeypatch
):
    if backend:
        real = torch.compile
        monkeypatch.setattr(
            torch, "compile", lambda forward, **_: real(forward, dynamic=False, backend=backend)
        )
    run = spirals(method, average, steps=9, every=3, compile=True)(tmp_path)
    assert_continues(run, *stores, stops=(3,), before_start=torch.compiler.reset)
    if backend is None:
        plain = replace(run, compile=False)
        execute(plain, stores[0])
        weights, usual = stores[0].weights(run), stores[0].weights(plain)
        assert weights.keys() == usual.keys()
        for name, value in weights.items():
            torch.testing.assert_close(value, usual[name], atol=1e-4, rtol=1e-3)


def on_digits(method, average="last"):
    settings = {"steps": 60, "every": 4}
    if average == "swad":
        settings |= {"swad.converge": 2, "swad.patience": 3}
    return plan_run("rotated_digits", method, target="15deg", average=average, settings=settings)


# Of 15 snapshots, the weights, further networks if there are any, and the record.
@pytest.mark.slow
@pytest.mark.parametrize(
    ("run", "writes"),
    [
        (on_digits("vrex"), range(1, 18)),
        (on_digits("erm", "swad"), (2, 9, 16, 17)),
        (on_digits("dann"), (2, 9, 16, 17, 18)),
        (regrouping_run("loss"), (6,)),
        (regrouping_run("kmeans"), (6,)),
    ],
    ids=["vrex", "swad", "dann", "regrouping-loss", "regrouping-kmeans"],
)
def test_a_killed_run_ends_in_the_same_bytes(run, writes, tmp_path):
    reference = Store(tmp_path / "reference")
    execute(run, reference)
    for write in writes:
        assert_a_kill_changes_nothing(run, reference, tmp_path / str(write), write=write)


SHORT = {"steps": 12, "every": 3}


def in_threads(state):
    state["made"]["device"] = "cpu, 7 thread(s)"


def without_optimizer(state):
    del state["learner"]["optimizer"]


def without(field):
    return lambda state: state.pop(field)


def with_value(*path_and_value):
    """A change of one value deep in a snapshot."""
    *path, last, value = path_and_value

    def change(state):
        for name in path:
            state = state[name]
        state[last] = value

    return change


@pytest.mark.parametrize(
    ("change", "reported"),
    [
        *[
            pytest.param(with_value(*path), True, id="/".join(map(str, path)))
            for path in (
                ("learner", "step", "six"),
                ("learner", "step", -1),
                ("learner", "memory", None),
                ("learner", "optimizer", []),
                ("learner", "optimizer", "param_groups", 0, "lr", "fast"),
                ("learner", "optimizer", "state", 0, "exp_avg", None),
                ("stream", {}),
                ("random", []),
                ("random", "cpu", torch.zeros(3)),
                ("best", {}),
                ("best", {"x": torch.ones(2)}),
                ("best", 7),
                ("seconds", float("nan")),
                ("made", None),
            )
        ],
        pytest.param(in_threads, False, id="made with other threads"),
        pytest.param(without_optimizer, True, id="no longer fits the method"),
        # As it was before parts were kept.
        pytest.param(without("best_parts"), False, id="without best_parts"),
        *[
            pytest.param(without(field), True, id=f"without {field}")
            for field in ("made", "random", "best", "seconds")
        ],
    ],
)
def test_a_run_starts_again_where_its_snapshot_does_not_fit(change, reported, stores, caplog):
    run, (straight, broken) = spirals("erm", **SHORT)(None), stores
    execute(run, straight)
    interrupt(run, broken, after=6)
    state, done = broken.snapshot(run)
    change(state)
    broken.put_snapshot(run, state, done)
    execute(run, broken)
    assert ("does not fit" in caplog.text) == reported
    assert outcome(broken, run) == outcome(straight, run)


@contextmanager
def another_default_type(run):
    torch.set_default_dtype(torch.float64)
    try:
        yield
        assert torch.get_default_dtype() == torch.float64
    finally:
        torch.set_default_dtype(torch.float32)


@contextmanager
def pictures_read_from_files(run):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("afield.data.samples.MAX_BYTES_CPU", 0)
        dataset = find_dataset(run.dataset)
        material = RunData.of(run, dataset, load_domains(dataset, run), torch.device("cpu"))
        assert material.samples.x.in_memory is material.evaluations.regular.x.in_memory is None
        yield


@pytest.mark.parametrize(
    ("plan", "circumstances"),
    [
        pytest.param(
            lambda _: plan_run("rotated_digits", "groupdro", target="30deg", settings=SHORT),
            nullcontext,
            id="once more",
        ),
        pytest.param(spirals("erm", steps=5), another_default_type, id="another default type"),
        pytest.param(
            lambda folder: varied_run(folder, steps=30, every=10),
            pictures_read_from_files,
            id="pictures read from files, not held in memory",
        ),
    ],
)
def test_a_repeated_run_ends_in_the_same_bytes(plan, circumstances, stores, tmp_path):
    run = plan(tmp_path)
    execute(run, stores[0])
    with circumstances(run):
        execute(run, stores[1])
    assert outcome(stores[0], run) == outcome(stores[1], run)


@pytest.mark.slow
def test_a_run_ends_in_the_same_bytes_with_and_without_a_thread_that_reads_ahead(
    two_colours, stores, tmp_path, monkeypatch
):
    settings = {"steps": 6, "every": 2, "size": 112, "augment": "full", "batch": 2}
    settings |= {"backbone": "small:cnn", "seed_category.period": 2}
    run = plan_run(two_colours, "seed_category", settings=settings)
    threads = []
    real = Stream.reading_ahead

    def noted(stream):
        threads.append(stream.samples.take_time)
        return real(stream)

    monkeypatch.setattr(Stream, "reading_ahead", noted)
    assert_continues(run, *stores, stops=(4,))
    assert threads == 3 * [True]
    monkeypatch.setattr(Stream, "reading_ahead", lambda _: nullcontext())
    plain = Store(tmp_path / "plain")
    execute(run, plain)
    assert outcome(plain, run) == outcome(stores[0], run)


def runs_of_two_targets(_):
    return [
        plan_run("spirals", "erm", target=target, settings={"steps": 10})
        for target in ("turn0", "turn10")
    ]


def runs_of_merged_models(folder):
    return runs_of_merges(write_domains(folder / "own.npz"))


def outcomes(store, runs):
    return {run.key: outcome(store, run) for run in runs}


@pytest.mark.slow
@pytest.mark.parametrize("plan", [runs_of_two_targets, runs_of_merged_models])
def test_two_workers_end_in_the_same_bytes_as_one(plan, stores, tmp_path):
    runs = plan(tmp_path)
    for workers, store in enumerate(stores, 1):
        list(complete(runs, store, pool=Local(workers)))
    assert outcomes(stores[0], runs) == outcomes(stores[1], runs)


@pytest.mark.slow
def test_a_disturbed_sweep_with_merged_models_ends_in_the_same_bytes(stores, tmp_path):
    runs, (straight, stopped) = runs_of_merged_models(tmp_path), stores
    killed = Store(tmp_path / "killed")
    list(complete(runs, straight))
    for count in (2, 3, 4):
        results = complete(runs, stopped)
        # What is known comes first.
        wanted = sum(stopped.get(run) is not None for run in runs) + count
        for _ in range(wanted):
            next(results)
        results.close()
    assert len(list(stopped)) < len(runs)
    # In the first run, in another one that is trained, and in one that is merged.
    for write, done in ((3, 0), (12, 2), (20, 8)):
        kill_while(do_sweep, runs, killed, write=write)
        assert len(list(killed)) == done
    for store in (stopped, killed):
        list(complete(runs, store))
        assert outcomes(store, runs) == outcomes(straight, runs)


TUNES = ("lora:rank=2,alpha=4", "norms")


@pytest.mark.parametrize("tune", TUNES)
@pytest.mark.parametrize("average", ["last", "swad"])
def test_a_part_of_a_network_is_trained_exactly(tmp_path, tune, average):
    settings = {"backbone": "small:vit", "tune": tune, "steps": 8, "every": 2}
    settings |= {"layer_decay": 0.8, "head_lr": 2e-3}
    run = averaged(varied_run(tmp_path, "erm", **settings), average)
    straight, broken = Store(tmp_path / "straight"), Store(tmp_path / "broken")
    assert_continues(run, straight, broken, stops=(2, 6))


@pytest.mark.slow
@pytest.mark.parametrize("write", [2, 4])
def test_a_kill_while_factors_are_trained_changes_nothing(tmp_path, write):
    settings = {"backbone": "small:vit", "tune": TUNES[0], "steps": 8, "every": 2}
    run = varied_run(tmp_path, "erm", **settings)
    reference = Store(tmp_path / "reference")
    execute(run, reference)
    assert_a_kill_changes_nothing(run, reference, tmp_path / "killed", write=write)
