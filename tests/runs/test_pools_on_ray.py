"""Ray: a lost machine loses no run, and results are those of local processes, byte for byte."""

import os
import signal
import time
from functools import partial

import pytest

from afield import own_code
from afield.runs.pools.local import Local
from afield.runs.pools.ray import Ray
from afield.runs.record import Failure, Record
from afield.runs.store import Store
from afield.runs.sweep import complete
from afield.studies.planning import plan_run
from tests.runs.interruption import outcome

ray = pytest.importorskip("ray", reason="Ray is not installed: pip install 'afield[ray]'")
pytestmark = [
    pytest.mark.ray,
    pytest.mark.slow,
    # Ray leaves sockets and files to the end of the process.
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]


@pytest.fixture(scope="module")
def cluster():
    """Two machines of one CPU each, and a third that only has the driver."""
    from ray.cluster_utils import Cluster

    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    actual = Cluster(initialize_head=True, head_node_args={"num_cpus": 0})
    actual.add_node(num_cpus=1)
    actual.add_node(num_cpus=1)
    actual.wait_for_nodes()
    yield actual
    ray.shutdown()
    actual.shutdown()


def doubled_unless_killed(number, *, notes):
    with (notes / "tries").open("a") as file:
        file.write(f"{number}\n")
    if number == 2:
        os.kill(os.getpid(), signal.SIGKILL)
    return 2 * number


def test_a_process_that_is_killed_again_and_again_is_given_up(cluster, tmp_path):
    pool = Ray(cluster.address, retries=1)
    actual = pool.map(
        partial(doubled_unless_killed, notes=tmp_path), range(4), on_lost=lambda i: f"lost {i}"
    )
    assert sorted(map(str, actual)) == ["0", "2", "6", "lost 2"]
    assert (tmp_path / "tries").read_text().split().count("2") == 2


class Noting:
    """A pool that lets its work write down what it finishes."""

    def __init__(self, pool, path):
        self.pool, self.path = pool, path

    def map(self, work, items, lost):
        return self.pool.map(partial(noted, work, self.path), items, lost)


def noted(work, path, run):
    outcome = work(run)
    if isinstance(outcome, Record):
        with path.open("a") as file:
            file.write(f"{run.key}\n")
    return outcome


def test_a_lost_machine_loses_no_run(cluster, tmp_path):
    """One of two goes while it is at a run: all finish, none twice, with the same bytes."""
    settings = {"steps": 1000, "every": 20, "batch": 64}
    runs = [
        plan_run("spirals", method, target=target, settings=settings)
        for target in ("turn0", "turn10", "turn20")
        for method in ("erm", "vrex")
    ]
    store, notes = Store(tmp_path / "ray"), tmp_path / "finished"
    pool = Noting(Ray(cluster.address), notes)
    actual, lost = [], None
    for result in complete(runs, store, pool=pool, snapshot_seconds=0.0):
        actual.append(result)
        if lost is None:
            # In the middle of a run, a machine goes without a word.
            while not list(store.root.glob("*/snapshot.pt")):
                time.sleep(0.05)
            lost = next(iter(cluster.worker_nodes))
            cluster.remove_node(lost, allow_graceful=False)
            cluster.add_node(num_cpus=1)
    assert [type(result) for result in actual] == [Record] * len(runs)
    assert sorted(record.run.key for record in actual) == sorted(run.key for run in runs)
    assert sorted(notes.read_text().split()) == sorted(run.key for run in runs)
    straight = Store(tmp_path / "local")
    list(complete(runs, straight, pool=Local()))
    for run in runs:
        assert outcome(store, run) == outcome(straight, run)


def test_a_run_that_fails_stops_no_other(cluster, tmp_path):
    bad = plan_run("spirals", "erm", target="turn0", settings={"steps": 10, "lr": 1e30})
    good = plan_run("spirals", "erm", target="turn0", settings={"steps": 10})
    actual = list(complete([bad, good], Store(tmp_path), pool=Ray(cluster.address)))
    assert {outcome.run.lr: type(outcome) for outcome in actual} == {1e30: Failure, good.lr: Record}


def slow(number):
    time.sleep(0 if number == 0 else 600)
    return number


def test_what_is_under_way_is_stopped_when_the_caller_stops(cluster):
    results = Ray(cluster.address).map(slow, range(4), on_lost=lambda _: None)
    assert next(results) == 0
    results.close()

    def free_and_all():
        return [
            actual().get("CPU", 0) for actual in (ray.available_resources, ray.cluster_resources)
        ]

    # Ray counts the CPUs of a machine that an earlier test removed for a while.
    end = time.monotonic() + 300
    while free_and_all() != [2, 2] and time.monotonic() < end:
        time.sleep(0.2)
    assert free_and_all() == [2, 2]


def test_a_cluster_without_room_is_reported(cluster, caplog):
    Ray(cluster.address, cpus=64)._connect()
    assert "no machine of the cluster has 64 CPUs and 0 GPUs" in caplog.text


def test_nothing_to_do_starts_no_cluster():
    assert list(Ray("nowhere:1").map(slow, [], on_lost=lambda _: None)) == []


OWN_METHOD = """
from afield.training.methods.erm import ERM

class Mine(ERM):
    pass
"""


def test_code_of_the_user_reaches_other_machines(cluster, tmp_path, monkeypatch):
    monkeypatch.setattr(own_code, "_registered", {})
    file = tmp_path / "mine.py"
    file.write_text(OWN_METHOD)
    own_code.load("methods", str(file))
    file.unlink()  # the source is sent, so the file need not be there
    run = plan_run("spirals", "mine", target="turn10", settings={"steps": 2})
    (record,) = complete([run], Store(tmp_path / "runs"), pool=Ray(cluster.address))
    assert isinstance(record, Record), record
