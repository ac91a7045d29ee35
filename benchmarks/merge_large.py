"""Memory of merging one large matrix: by default an embedding of 128,000 × 4,096 in bfloat16.

    python benchmarks/merge_large.py [--rows 128000] [--experts 3] [--merges dare,breadcrumbs]

Every merge runs in a process of its own. Printed are its CPU time and the most memory that was
resident, mapped files included. The last line is the largest memory (goal: at most 1.5 GB).
"""

import argparse
import subprocess
import sys
import tempfile
from pathlib import Path

import torch
from safetensors.torch import save_file

COLUMNS = 4096
MERGES = "average,dare,breadcrumbs,model_stock,slerp"
# The system counts the memory of the parent process as well, unless it is asked from inside.
SCRIPT = """
import sys, time
from pathlib import Path
from afield.merging.files import merge_files
merge_files(sys.argv[1], sys.argv[2], sys.argv[4:], sys.argv[3], workers=1)
lines = Path("/proc/self/status").read_text().splitlines()
print(time.process_time(), next(line.split()[1] for line in lines if line.startswith("VmHWM")))
"""


def write_models(folder: Path, rows: int, experts: int) -> list[Path]:
    """A base and experts that differ from it by a little noise."""
    generator = torch.Generator().manual_seed(0)
    paths = [folder / f"{number}.safetensors" for number in range(1 + experts)]
    base = torch.randn(rows, COLUMNS, generator=generator, dtype=torch.bfloat16)
    save_file({"embedding.weight": base}, paths[0])
    for path in paths[1:]:
        noise = torch.randn(rows, COLUMNS, generator=generator, dtype=torch.bfloat16)
        save_file({"embedding.weight": noise.mul_(0.05).add_(base)}, path)
    return paths


def measure(how: str, paths: list[Path], out: Path) -> float:
    """Merge in a process of its own; print its CPU time and return its memory in GB."""
    experts = paths[1:3] if how == "slerp" else paths[1:]
    command = [sys.executable, "-c", SCRIPT, how, paths[0], out, *experts]
    words = subprocess.run(command, check=True, capture_output=True, text=True).stdout.split()
    seconds, gigabytes = float(words[0]), int(words[1]) / 2**20
    print(f"{how:12} {seconds:6.1f} s {gigabytes:6.2f} GB", flush=True)
    out.unlink()
    return gigabytes


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rows", type=int, default=128_000)
    parser.add_argument("--experts", type=int, default=3)
    parser.add_argument("--merges", default=MERGES)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        paths = write_models(Path(folder), args.rows, args.experts)
        out = Path(folder) / "out.safetensors"
        most = max(measure(how, paths, out) for how in args.merges.split(","))
    print(f"memory {most:.2f} GB")


if __name__ == "__main__":
    main()
