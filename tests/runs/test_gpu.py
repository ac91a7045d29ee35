"""Runs on GPUs. All tests need CUDA; `make test-gpu` runs them."""

import pytest
import torch

from afield.compute import visible_gpus
from afield.data.samples import Rows
from afield.networks.inference import compute_outputs
from afield.runs.pool import make_pool
from afield.runs.runner import execute
from afield.runs.store import Store
from afield.runs.sweep import complete
from afield.studies.planning import plan_run
from tests.runs.interruption import assert_continues

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA"),
]


def planned(**settings):
    settings = {"steps": 40, "every": 10, **settings}
    return plan_run("rotated_digits", "erm", target="0deg", settings=settings)


@pytest.mark.parametrize("precision", ["fp32", "auto"])
def test_a_run_repeats_bit_for_bit_and_survives_an_interruption(precision, tmp_path):
    """Two runs on the GPU, one of them interrupted, write the same weights and scores."""
    stores = [Store(tmp_path / name) for name in ("straight", "broken")]
    assert_continues(planned(precision=precision), *stores, stops=(20,), device="cuda")


@pytest.mark.parametrize("settings", [{"precision": "fp16"}, {"inexact": True}])
def test_runs_in_float16_and_with_the_fastest_kernels_learn(settings, store):
    """They end with a better accuracy than chance; bytes may differ from run to run."""
    record = execute(planned(**settings), store, device="cuda")
    assert record.checkpoints[-1].scores["15deg"].probe.accuracy > 0.2


def test_rows_are_held_on_the_gpu_up_to_a_share_of_its_memory():
    """Small arrays are copied to the GPU; those above a quarter of its free memory are not."""
    small = Rows([torch.zeros(4, 8)], device="cuda")
    assert small.in_memory.device.type == "cuda"
    free, _ = torch.cuda.mem_get_info()
    huge = torch.zeros(1, dtype=torch.uint8).expand(free // 2, 1)
    assert Rows([huge], [torch.arange(free // 2)], device="cuda").in_memory is None


def test_an_evaluation_in_chunks_gives_what_one_pass_gives():
    """Chunks by the memory of the GPU change no output beyond rounding."""
    layer, x = torch.nn.Linear(8, 3).cuda(), torch.randn(700, 8)
    outputs = compute_outputs(layer, Rows([x], device="cuda"))
    torch.testing.assert_close(outputs, layer(x.cuda()), atol=1e-3, rtol=1e-3)


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")
def test_a_benchmark_has_one_worker_per_gpu(tmp_path):
    """By default, every GPU has a worker of its own, and all runs are done."""
    pool = make_pool()
    assert pool.gpus == visible_gpus()
    runs = [planned(lr=rate) for rate in (1e-3, 2e-3, 3e-3)]
    assert len(list(complete(runs, Store(tmp_path), pool=pool))) == 3
