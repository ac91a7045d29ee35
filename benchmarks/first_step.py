"""The CPU time from the start of `afield train rotated_digits erm` to its first training step.

python benchmarks/first_step.py
"""

import subprocess
import sys
import tempfile
from pathlib import Path

SCRIPT = """
import sys, time
sys.argv = "afield train rotated_digits erm --target 0deg --store runs --steps 2".split()
sys.argv += ["--set", "augment=none"]
from afield.cli import main
import afield.training.method as method
update = method.Method.update
def first(self, *parts):
    print(f"first step after {time.process_time():.1f} s", flush=True)
    sys.exit()
method.Method.update = first
main()
"""


def main() -> None:
    """Run it in a fresh process and an empty folder."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "first.py"
        path.write_text(SCRIPT)
        subprocess.run([sys.executable, str(path)], cwd=folder, check=True)


if __name__ == "__main__":
    main()
