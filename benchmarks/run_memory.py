"""Peak memory and CPU seconds of a short run in a process of its own, by default on ColoredMNIST.

    AFIELD_DATA=... python benchmarks/run_memory.py [DATASET TARGET]

The run has 20 steps of ERM with the dataset's network and all evaluations. The second line is a
process that imports torch and does nothing else.
"""

import os
import subprocess
import sys
import tempfile

TRAIN = "import sys; sys.argv[0] = 'afield'; from afield.cli import main; main()"


def observe(*words: str) -> str:
    """Run Python with these words; return its CPU seconds and its peak memory."""
    process = subprocess.Popen(
        [sys.executable, *words], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    _, status, used = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if status:
        raise SystemExit(f"{words}: ended with status {process.returncode}")
    return f"{used.ru_utime + used.ru_stime:.1f} s, {used.ru_maxrss / 2**20:.2f} GB"


def main() -> None:
    """Measure and print."""
    dataset, target = sys.argv[1:3] if len(sys.argv) > 2 else ("colored_mnist", "-90%")
    with tempfile.TemporaryDirectory() as folder:
        words = [dataset, "erm", f"--target={target}", "--steps", "20", "--store", folder]
        print("run:", observe("-c", TRAIN, "train", *words))
    print("torch:", observe("-c", "import torch"))


if __name__ == "__main__":
    main()
