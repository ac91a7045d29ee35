"""Pools by name, and processes: a killed worker loses one item, and none outlives its parent."""

import os
import signal
import socket
import subprocess
import sys
import time
from functools import partial

import pytest
import torch

from afield import registry
from afield.errors import AfieldError, SpecError
from afield.runs.pool import make_pool
from afield.runs.pools import local
from afield.runs.pools import ray as ray_cluster
from afield.runs.pools.local import Local
from afield.runs.pools.ray import Ray
from tests.files import other_package


def doubled_unless_killed(number):
    if number == 2:
        os.kill(os.getpid(), signal.SIGKILL)
    return 2 * number


@pytest.mark.slow
def test_a_killed_worker_loses_only_its_own_item():
    results = Local(2).map(doubled_unless_killed, range(6), on_lost=lambda number: f"lost {number}")
    assert sorted(map(str, results)) == ["0", "10", "2", "6", "8", "lost 2"]


def gpu_unless_killed(number, *, notes):
    """The GPU of this process, once two GPUs were seen; so both workers have items."""
    if number == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    gpu = os.environ["CUDA_VISIBLE_DEVICES"]
    (notes / gpu).touch()
    end = time.monotonic() + 300
    while len(list(notes.iterdir())) < 2 and time.monotonic() < end:
        time.sleep(0.01)
    return gpu


@pytest.mark.slow
def test_every_worker_sees_one_gpu_and_its_successor_the_same(tmp_path):
    work = partial(gpu_unless_killed, notes=tmp_path)
    results = list(Local(2, ("3", "GPU-5")).map(work, range(8), lambda _: "lost"))
    assert sorted(set(results)) == ["3", "GPU-5", "lost"]


def test_by_default_there_is_one_worker_per_gpu_or_per_core(monkeypatch):
    monkeypatch.setattr(local, "usable_cores", lambda: 8)
    assert make_pool(threads=2, device="cpu") == Local(4)
    assert make_pool(threads=2, workers=3, device="cpu") == Local(3)
    monkeypatch.setattr(local, "visible_gpus", lambda: ("0", "1", "2"))
    monkeypatch.setattr(local, "find_device", lambda name: torch.device(name or "cuda"))
    assert make_pool() == Local(3, ("0", "1", "2"))
    assert make_pool(workers=6) == Local(6, ("0", "1", "2"))
    assert make_pool(device="cuda:1") == Local(1)


POOLS = [
    ("local:workers=2", {}, Local(2)),
    ("local:workers=2", {"workers": 3}, Local(2)),
    ("local:workers=4,gpus=0,1", {}, Local(4, ("0", "1"))),
    ("local: workers = 2 , gpus = GPU-5", {}, Local(2, ("GPU-5",))),
    ("ray", {}, Ray()),
    ("ray", {"threads": 4}, Ray(cpus=4)),
    ("ray", {"threads": 4, "cpus": 0.5, "gpus": 0.25, "retries": 0}, Ray("", 0.5, 0.25, 0)),
    ("ray:cpus=2", {"threads": 4, "cpus": 0.5, "gpus": 0.25}, Ray(cpus=2, gpus=0.25)),
    ("ray:address=head:6379,cpus=2,gpus=0.25,retries=5", {}, Ray("head:6379", 2, 0.25, 5)),
    ("ray:address=ray://head:10001", {}, Ray("ray://head:10001")),
    ("ray://head:10001", {"retries": 1}, Ray("ray://head:10001", retries=1)),
]
MISTAKES = [
    ("rai", {}, "cannot run on 'rai'; did you mean 'ray'?"),
    ("rai:cpus=2", {}, "cannot run on 'rai:cpus=2'; did you mean 'ray'?"),
    ("", {}, "cannot run on ''; known: local, ray, slurm, ray://HOST:PORT"),
    ("kubernetes", {}, "cannot run on 'kubernetes'; known: local, ray, slurm, ray://HOST:PORT"),
    ("ray:cpu=2", {}, "ray has no setting 'cpu'; did you mean 'cpus'?"),
    ("ray:cpus=two", {}, "ray.cpus='two': should be a valid number"),
    ("ray:retries=1.5", {}, "ray.retries='1.5': should be a valid integer"),
    ("ray:cpus", {}, "--on ray:cpus: write the options as NAME:option=value,option=value"),
    ("ray:cpus=", {}, "--on ray:cpus=: write the options as NAME:option=value,option=value"),
    ("ray:cpus=0", {}, "cpus=0, gpus=0: a run needs CPUs or GPUs"),
    ("ray", {"workers": 2}, "--workers is for processes of this machine; on Ray use --cpus"),
    ("local", {"cpus": 1.0}, "--cpus and --gpus need --on ray; use --workers and --threads"),
    ("local", {"gpus": 0.5}, "--cpus and --gpus need --on ray; use --workers and --threads"),
    ("local:workers=0", {}, "workers=0: at least one is needed"),
    ("local://here", {}, "local has no setting 'address'; known: workers, gpus"),
]


@pytest.mark.parametrize(("on", "given", "pool"), POOLS, ids=[f"{on} {g}" for on, g, _ in POOLS])
def test_a_text_names_a_pool_and_its_options(on, given, pool):
    assert make_pool(on, **given) == pool


@pytest.mark.parametrize(("on", "given", "message"), MISTAKES)
def test_a_mistake_in_the_name_of_a_pool_is_one_line(on, given, message):
    with pytest.raises(AfieldError) as caught:
        make_pool(on, **given)
    assert str(caught.value) == message


def test_every_file_is_a_pool_whose_options_have_defaults():
    for name in registry.names("pools"):
        kind = registry.find("pools", name)
        assert callable(kind.map)
        assert callable(kind.suited)
        assert kind() == kind()


def test_another_package_adds_a_pool(tmp_path, monkeypatch):
    source = (
        '"""Here."""\nfrom dataclasses import dataclass\n@dataclass\nclass Here:\n'
        "    queue: str = 'short'\n    @classmethod\n    def suited(cls, **_): return {}\n"
        "    def map(self, function, items, on_lost): return map(function, items)\n"
    )
    other_package(tmp_path, "pools", "here", "their_pool:Here", source)
    monkeypatch.syspath_prepend(tmp_path)
    pool = make_pool("here:queue=long")
    assert (pool.queue, list(pool.map(abs, [-1], abs))) == ("long", [1])
    monkeypatch.delitem(sys.modules, "their_pool")


@pytest.mark.slow
def test_workers_end_when_their_parent_is_killed(tmp_path):
    script = tmp_path / "sleepers.py"
    script.write_text(
        "import os, time\n"
        "from afield import Local\n"
        "def nap(number):\n"
        "    os.write(1, b'at it\\n')\n"
        "    time.sleep(600)\n"
        "if __name__ == '__main__':\n"
        "    list(Local(2).map(nap, range(2), on_lost=lambda number: None))\n"
    )
    with subprocess.Popen([sys.executable, script], stdout=subprocess.PIPE) as parent:
        try:
            assert [parent.stdout.readline() for _ in range(2)] == [b"at it\n"] * 2
        finally:
            parent.kill()
        # The pipe ends only when every worker has let go of it; their naps last ten minutes.
        parent.communicate(timeout=300)


@pytest.mark.parametrize("workers", [0, -1])
def test_less_than_one_worker_is_refused(workers):
    with pytest.raises(SpecError, match="at least one"):
        Local(workers)


@pytest.mark.slow
def test_a_script_without_a_guard_is_refused(tmp_path):
    script = tmp_path / "careless.py"
    script.write_text(
        "import afield\n"
        "afield.bench('spirals', ['erm'], trials=1, settings={'steps': 5}, workers=2)\n"
    )
    command = [sys.executable, script]
    ended = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert ended.returncode != 0
    assert '__name__ == "__main__"' in ended.stderr.strip().splitlines()[-1]
    assert not list(tmp_path.glob("runs/*/failure.json"))


@pytest.mark.slow
def test_an_address_where_no_cluster_answers_is_named(monkeypatch):
    pytest.importorskip("ray")
    with pytest.raises(SpecError, match=r"ray://127\.0\.0\.1:9: no Ray cluster"):
        list(Ray("ray://127.0.0.1:9").map(str, [1], str))
    monkeypatch.setenv("RAY_ADDRESS", "127.0.0.1:9")
    with pytest.raises(SpecError, match=r"127\.0\.0\.1:9: no Ray cluster .*RAY_ADDRESS"):
        list(Ray().map(str, [1], str))


@pytest.mark.slow
def test_a_server_that_is_not_ray_is_not_waited_for(monkeypatch):
    pytest.importorskip("ray")
    monkeypatch.setattr(ray_cluster, "PROBE_SECONDS", 1)
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"ray://127.0.0.1:{server.getsockname()[1]}"
        with pytest.raises(SpecError, match="no answer within 1 seconds"):
            list(Ray(address).map(str, [1], str))


@pytest.mark.parametrize(
    ("resources", "message"),
    [
        ({"cpus": 0, "gpus": 0}, "a run needs CPUs or GPUs"),
        ({"cpus": -1, "gpus": 2}, "a run needs CPUs or GPUs"),
        ({"cpus": 2, "gpus": -1}, "a run needs CPUs or GPUs"),
        ({"cpus": -1, "gpus": 0}, "a run needs CPUs or GPUs"),
        ({"cpus": 0}, "a run needs CPUs or GPUs"),
        ({"cpus": -1}, "a run needs CPUs or GPUs"),
        ({"gpus": 1.5}, "give a part of one GPU, or whole ones"),
        ({"retries": -1}, "retries=-1: must not be below 0"),
    ],
    ids=str,
)
def test_resources_that_no_run_can_have_are_refused(resources, message):
    with pytest.raises(SpecError, match=message):
        Ray(**resources)


@pytest.mark.parametrize(
    "resources",
    [{"cpus": 0, "gpus": 0.5}, {"cpus": 0.5}, {"gpus": 1}, {"gpus": 2, "retries": 0}],
    ids=str,
)
def test_resources_that_a_run_can_have_are_accepted(resources):
    assert Ray(**resources).cpus >= 0
