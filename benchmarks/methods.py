"""What a step of every method costs, over a step of erm with the same number of samples.

    python benchmarks/methods.py [METHOD...]

On small:cnn (28 px) and on timm:resnet18 (64 px, BatchNorm frozen), 3 domains × 32 samples, on one
core. A method and erm take turns step by step, as these machines are noisy, and the median counts.
Memory is the most that torch held, from the building of the network to the end of the second step.
The ratios are printed last; goals: arith and fish at most 1.15 in time on resnet18.
"""

import statistics
import sys
from collections.abc import Callable

import torch
from bare import Stopwatch
from torch.profiler import ProfilerActivity, profile

from afield import catalog
from afield.backbone import network
from afield.domains import Domain
from afield.loading import Scaling, Stream, pooled_samples
from afield.method import Batches, Learner, Method, Task
from afield.optimization import optimizer_of
from afield.space import build

DOMAINS, CLASSES, BATCH = 3, 7, 32
# Name, pixels a side, steps that are measured.
CASES = (("small:cnn", 28, 60), ("timm:resnet18", 64, 16))
WARMUP = 3


def stream_of(pixels: int, batch: int) -> Stream:
    """Random pictures of three domains: what they show does not matter here."""
    generator = torch.Generator().manual_seed(0)
    domains = {}
    for i in range(DOMAINS):
        x = torch.randint(256, (4 * batch, 3, pixels, pixels), generator=generator)
        y = torch.randint(CLASSES, (4 * batch,), generator=generator)
        domains[f"domain{i}"] = Domain(x.to(torch.uint8), y)
    samples = pooled_samples(domains)
    scaled = type(samples)(samples.x, samples.y, samples.domain, Scaling.fitted(samples.x))
    return Stream(scaled, batch=batch, seed=0)


def begun(method: Method, backbone: str, pixels: int) -> Learner:
    """A learner at its start, the same for every method."""

    def net(outputs: int) -> torch.nn.Module:
        torch.manual_seed(0)
        return network(backbone, (3, pixels, pixels), outputs, freeze_bn=True)

    sources = tuple(f"domain{i}" for i in range(DOMAINS))
    classes = tuple(str(i) for i in range(CLASSES))
    optimizer = optimizer_of("", lr=5e-5, weight_decay=0.0)
    task = Task(sources, classes, steps=10_000, network=net, optimizer=optimizer)
    learner = method.setup(net(CLASSES), task)
    learner.train()
    return learner


def stepping(method: Method, backbone: str, pixels: int, times: int) -> Callable[[], None]:
    """One training step for each call, on batches that lie ready."""
    learner, stream = begun(method, backbone, pixels), stream_of(pixels, BATCH * times)
    groups = method.regroup(learner, stream.samples)
    if groups is not None:
        stream.regroup(groups)
    batches: list[Batches] = [next(stream) for _ in range(4)]

    def step() -> None:
        method.update(learner, batches[learner.step % len(batches)])
        learner.step += 1

    return step


def time_ratio(name: str, backbone: str, pixels: int, steps: int) -> float:
    """The median over blocks of the method's time over erm's, taking turns."""
    method, erm = (build(catalog.find("methods", each), {}) for each in (name, "erm"))
    ours, theirs = (stepping(each, backbone, pixels, method.times) for each in (method, erm))
    ratios = []
    for block in range(WARMUP + steps):
        turns = [(Stopwatch(), ours), (Stopwatch(), theirs)]
        # Who comes first changes, so that a drift falls on both.
        for watch, step in turns if block % 2 else reversed(turns):
            watch.start()
            step()
            watch.stop()
        if block >= WARMUP:
            ratios.append(turns[0][0].seconds / turns[1][0].seconds)
    return statistics.median(ratios)


def peak_bytes(name: str, backbone: str, pixels: int, times: int) -> int:
    """The most that torch held at once, of all that was made since the start."""
    method = build(catalog.find("methods", name), {})
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        step = stepping(method, backbone, pixels, times)
        step()
        step()
    held = most = 0
    events = profiler.profiler.kineto_results.events()
    for event in sorted(events, key=lambda each: each.start_ns()):
        if event.name() == "[memory]":
            held += event.nbytes()
            most = max(most, held)
    return most


def main() -> None:
    """Measure and print."""
    torch.set_num_threads(1)
    names = sys.argv[1:] or [name for name in catalog.names("methods") if name != "erm"]
    rows = []
    for backbone, pixels, steps in CASES:
        for name in names:
            times = build(catalog.find("methods", name), {}).times
            time = time_ratio(name, backbone, pixels, steps)
            memory, plain = (peak_bytes(n, backbone, pixels, times) for n in (name, "erm"))
            rows.append((backbone, name, time, memory / plain))
            print(f"{backbone} {name}: {time:.2f} × erm's time", flush=True)
    print(f"\n{'network':15} {'method':12} {'time':>6} {'memory':>7}   (erm = 1)")
    for backbone, name, time, memory in rows:
        print(f"{backbone:15} {name:12} {time:6.2f} {memory:7.2f}")


if __name__ == "__main__":
    main()
