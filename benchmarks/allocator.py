"""CPU seconds and memory of training steps, with glibc's allocator as it is and as afield sets it.

    python benchmarks/allocator.py [NETWORK]

Both do the same steps on random inputs, each in a process of its own, with one thread; the digests
of their weights must be equal. How many times as fast the steps are is printed last.
"""

import hashlib
import resource
import subprocess
import sys

import torch
import torch.nn.functional as F

from afield.compute import keep_freed_memory
from afield.networks.backbone import network

# Shape of a sample, samples of a step, and steps.
NETWORKS = {
    "timm:tf_efficientnet_lite0": ((3, 112, 112), 96, 8),
    "small:mnist_cnn": ((2, 28, 28), 192, 40),
    "timm:resnet18": ((3, 224, 224), 96, 3),
}


def train(name: str) -> str:
    """Train; return user and system seconds, peak memory in GB and the digest of the weights."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    shape, batch, steps = NETWORKS[name]
    model = network(name, shape, 7)
    optimizer = torch.optim.Adam(model.parameters(), fused=True)
    x, y = torch.randn(batch, *shape), torch.arange(batch) % 7
    before = resource.getrusage(resource.RUSAGE_SELF)
    for _ in range(steps):
        loss = F.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    after = resource.getrusage(resource.RUSAGE_SELF)
    weights = b"".join(value.numpy().tobytes() for value in model.state_dict().values())
    times = after.ru_utime - before.ru_utime, after.ru_stime - before.ru_stime
    digest = hashlib.sha256(weights).hexdigest()[:12]
    return f"{times[0]:.2f} {times[1]:.2f} {after.ru_maxrss / 2**20:.2f} {digest}"


def measure(name: str) -> float:
    """Print the numbers of both; return how many times as fast the steps are."""
    results = []
    for how in ("plain", "kept"):
        command = [sys.executable, __file__, name, how]
        done = subprocess.run(command, check=True, capture_output=True, text=True)
        user, system, memory, digest = done.stdout.split()
        results.append((float(user) + float(system), digest))
        print(f"{name} {how}: {user} s user + {system} s system, {memory} GB, weights {digest}")
    (plain, first), (kept, second) = results
    if first != second:
        raise SystemExit("the weights differ")
    return plain / kept


def main() -> None:
    """Measure and print."""
    if len(sys.argv) == 3:
        if sys.argv[2] == "kept":
            keep_freed_memory()
        print(train(sys.argv[1]))
        return
    factors = [measure(name) for name in sys.argv[1:] or NETWORKS]
    print(f"factor {factors[0]:.2f}")


if __name__ == "__main__":
    main()
