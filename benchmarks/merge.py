"""What merging from files costs: memory, CPU time over reading and writing, and score's speed.

    python benchmarks/merge.py [--params 88] [--turns 3] [--blocks 1] [--domains 3 5]

A base and three experts of a ViT-B/32 encoder's shapes, 350 MB each, in a temporary folder; with
--params 100 there is a token embedding too, of as many entries as are missing. Every merge runs in
a process of its own. Its memory is the most that was resident, mapped files included: in all, and
beyond what importing torch takes (half a gigabyte here, most of it torch's own libraries).

CPU time is that of the merge without the imports, over that of reading the inputs and writing as
much as the output; they take turns, and the median counts. Checksums of the inputs, which are part
of a merge, are told apart. Beside every ratio stands the error against the formula in float64, over
the whole model (relative, in the Frobenius norm).

Goals: score at most 600 MB beyond the imports; with three experts of 100 M parameters ties below
18 s and 0.9 GB, task arithmetic below 2 s and 0.3 GB. The speed of score is printed last.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import torch
from merge_spectral import experts as spectral_experts
from merge_spectral import speed
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor

from afield.files import file_digest
from afield.merging.files import merge_files

EXPERTS = 3
NAMES = ("base", *(f"expert{i}" for i in range(EXPERTS)))
CHUNK = 1 << 20


def shapes(millions: float) -> dict[str, tuple[int, ...]]:
    """The tensors of a ViT-B/32 encoder, and a token embedding of what is missing."""
    found: dict[str, tuple[int, ...]] = {
        "conv1.weight": (768, 3, 32, 32),
        "class_embedding": (768,),
        "positional_embedding": (50, 768),
        "proj": (768, 512),
    }
    for block in range(12):
        for name, shape in (
            ("attn.in_proj_weight", (2304, 768)),
            ("attn.in_proj_bias", (2304,)),
            ("attn.out_proj.weight", (768, 768)),
            ("attn.out_proj.bias", (768,)),
            ("mlp.c_fc.weight", (3072, 768)),
            ("mlp.c_fc.bias", (3072,)),
            ("mlp.c_proj.weight", (768, 3072)),
            ("mlp.c_proj.bias", (768,)),
            ("ln_1.weight", (768,)),
            ("ln_2.weight", (768,)),
        ):
            found[f"blocks.{block}.{name}"] = shape
    missing = int(millions * 1e6) - sum(torch.Size(shape).numel() for shape in found.values())
    if missing >= 512:
        found["token_embedding.weight"] = (missing // 512, 512)
    return found


def write_models(folder: Path, millions: float) -> None:
    """A base, and experts that look fine-tuned."""
    states: list[dict[str, Tensor]] = [{} for _ in NAMES]
    generator = torch.Generator().manual_seed(0)
    for seed, (name, shape) in enumerate(shapes(millions).items()):
        states[0][name] = 0.02 * torch.randn(shape, generator=generator)
        if len(shape) == 2 and shape[0] < 10_000:
            deltas = spectral_experts(EXPERTS, *shape, seed=seed)
        else:
            deltas = 1e-3 * torch.randn(EXPERTS, *shape, generator=generator)
        for state, delta in zip(states[1:], deltas, strict=True):
            state[name] = states[0][name] + delta
    for name, state in zip(NAMES, states, strict=True):
        save_file(state, folder / f"{name}.safetensors")


def resident(name: str) -> float:
    """Resident memory of this process in MB, now (VmRSS) or at most so far (VmHWM)."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith(name)).split()[1]) / 1024


def child(how: str, folder: Path) -> None:
    """One measurement, in a process of its own; prints it as JSON."""
    paths = [folder / f"{name}.safetensors" for name in NAMES]
    out = folder / "out.safetensors"
    torch.ones(9).sum()
    begin, start = resident("VmHWM"), time.process_time()
    if how == "read and write":
        copy(paths, out)
    elif how == "checksums":
        for path in paths:
            file_digest(path)
    else:
        merge_files(how, paths[0], paths[1:], out, overwrite=True)
    spent, peak = time.process_time() - start, resident("VmHWM")
    print(json.dumps({"seconds": spent, "peak": peak, "growth": peak - begin}))


def copy(paths: list[Path], out: Path) -> None:
    """Read all inputs once, and write as much as the result is."""
    buffer = bytearray(CHUNK)
    with out.open("wb") as written:
        for path in paths:
            with path.open("rb", buffering=0) as file:
                while size := file.readinto(buffer):
                    if path == paths[0]:
                        written.write(memoryview(buffer)[:size])
        written.flush()
        os.fsync(written.fileno())


def measured(how: str, folder: Path) -> dict[str, float]:
    """CPU time and memory of one merge in a fresh process."""
    command = [sys.executable, __file__, "--child", how, str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(done.stderr)
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return found


def models(folder: Path) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    """Per tensor: the base, the deltas, and what was written as the result; float64."""
    files = [safe_open(folder / f"{name}.safetensors", "pt") for name in (*NAMES, "out")]
    names = files[0].keys()
    for name in names:
        # A delta is rounded to float32, as a merge of float32 models has it.
        base, *experts, out = (file.get_tensor(name).flatten() for file in files)
        yield base.double(), torch.stack([e - base for e in experts]).double(), out.double()


def error(how: str, folder: Path) -> float:
    """Of the merged delta that was written, against the formula in float64."""
    least, signs = None, 0.0
    if how == "ties":
        rows = [
            torch.cat(row) for row in zip(*(d.float() for _, d, _ in models(folder)), strict=True)
        ]
        d = len(rows[0])
        least = torch.stack([row.abs().kthvalue(d - int(0.2 * d)).values for row in rows]).double()
        del rows
        signs = sum(float(trimmed(d, least).sum(0).sign().sum()) for _, d, _ in models(folder))
    gap = size = 0.0
    for base, deltas, out in models(folder):
        expected = deltas.sum(0) if least is None else elected(trimmed(deltas, least), signs)
        gap += float((out - base - expected).square().sum())
        size += float(expected.square().sum())
    return (gap / size) ** 0.5


def trimmed(deltas: Tensor, least: Tensor) -> Tensor:
    """TIES, its first step."""
    return deltas * (deltas.abs() >= least[:, None])


def elected(deltas: Tensor, signs: float) -> Tensor:
    """TIES, its other steps."""
    sign = deltas.sum(0).sign()
    sign[sign == 0] = 1.0 if signs > 0 else -1.0
    agree = deltas * sign > 0
    return (deltas * agree).sum(0) / agree.sum(0).clamp(min=1)


def costs(folder: Path, turns: int) -> None:
    """Print what elementwise merges cost over reading and writing."""
    ways = ("read and write", "checksums", "task_arithmetic", "ties")
    found = {way: [] for way in ways}
    errors = {}
    for turn in range(turns):
        for way in ways if turn % 2 else reversed(ways):
            found[way].append(measured(way, folder))
            if turn == 0 and way in ways[2:]:
                errors[way] = error(way, folder)
    bare = [each["seconds"] for each in found[ways[0]]]
    for way in ways:
        spent = [each["seconds"] for each in found[way]]
        ratio = statistics.median(a / b for a, b in zip(spent, bare, strict=True))
        grown = max(each["growth"] for each in found[way])
        note = f"   error {errors[way]:.1e}" if way in errors else ""
        print(
            f"{way:16s} {statistics.median(spent):6.2f} s   {ratio:6.2f} x   {grown:4.0f} MB{note}",
            flush=True,
        )


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--params", type=float, default=88, help="millions of parameters")
    parser.add_argument("--turns", type=int, default=3, help="of which the median counts")
    parser.add_argument("--blocks", type=int, default=1, help="of twelve, for the speed of score")
    parser.add_argument("--domains", type=int, nargs="+", default=[3, 5])
    parser.add_argument("--child", nargs=2, help=argparse.SUPPRESS)
    asked = parser.parse_args()
    torch.set_num_threads(1)
    if asked.child:
        child(asked.child[0], Path(asked.child[1]))
        return
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_models(folder, asked.params)
        size = (folder / "base.safetensors").stat().st_size
        print(f"a base and {EXPERTS} experts of {size / 1e6:.0f} MB")
        costs(folder, asked.turns)
        found = measured("score", folder)
        note = f"{found['peak']:.0f} MB resident at most, {found['growth']:.0f} beyond the imports"
        print(f"{'score':16s} {found['seconds']:6.2f} s   {note}", flush=True)
    speed(asked.blocks, asked.domains)


if __name__ == "__main__":
    main()
