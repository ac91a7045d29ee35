"""What a step of every method costs, over a step of erm with the same number of samples.

    python benchmarks/methods.py [METHOD...]            a line per method, in a few minutes
    python benchmarks/methods.py --full [METHOD...]     more steps, memory, and special cases

On small:cnn (28 px) and on timm:resnet18 (64 px, BatchNorm frozen), 3 domains × 32 samples, on one
core. A method and erm take turns step by step, as these machines are noisy, and the median of the
ratios of processor time counts. Warm-ups are over. A step of erm is one forward and one backward
pass, and a backward pass counts as two forward passes. Passes over the head alone, or over a large
part of a method's own, count as long as they take on their own. A number has an exclamation mark if
the method is slower than its passes explain by more than 15 %, or an asterisk if it has other work
to do, which the last line names.

With --full, memory is the most that torch held, from the building of the network to the end of the
second step. Of methods that regroup, a whole run counts as well: one in which every sample comes 75
times, about as in 5,000 steps on three domains of PACS, with five regroupings. The reading of all
samples at a regrouping is compared with a bare loop over them. Of dmg, predictions count as well:
with the mean of the masks, and as the mean over the masks of the three domains, which passes what
is masked three times. A step of crossgrad is compared with a step of erm of each of its networks,
too: two passes of either are what it cannot do without.

Further goals: arith and fish at most 1.15 in time on resnet18; seed_category at most 1.10 over a
whole run, 1.02 in memory, and reading at 0.8 of the speed of a bare loop; dmg at most 1.08, and in
prediction 1.03 and 1 + 3 · (the share of the masked part) + 0.1; crossgrad at most 2.2 times an erm
step of each of its two networks, and 2.1 in memory.
"""

import statistics
import sys
from collections.abc import Callable, Mapping
from functools import cache
from time import perf_counter, process_time

import torch
from bare import Stopwatch
from torch.profiler import ProfilerActivity, profile

from afield import registry
from afield.data.domains import Domain
from afield.data.samples import pool_domains
from afield.data.scaling import Scaling
from afield.data.stream import Stream
from afield.hyperparameters import build
from afield.networks.backbone import network
from afield.training.learner import Learner, Task
from afield.training.method import Batches, Method
from afield.training.optimizers import optimizer_factory

DOMAINS, CLASSES, BATCH = 3, 7, 32
# Name, pixels a side, steps that are measured.
CASES = (("small:cnn", 28, 60), ("timm:resnet18", 64, 16))
WARMUP = 3
# Without --full: steps that are measured and samples of a domain, in either case.
QUICK = ((30, 32), (3, 32))
# How much slower than its passes a method may be.
SLACK = 0.15
# Forward and backward passes over all samples of a step, where they are not one of each.
PASSES: dict[str, tuple[float, float]] = {
    # Two networks.
    "adrmx": (2, 2),
    # Each of its networks sees the samples, and then the perturbed ones.
    "crossgrad": (4, 4),
    # The gradient of a gradient goes back through both passes of the first one; torch takes half as
    # long again for it as the number of its convolutions says.
    "iga": (1, 6),
    "labelgrad": (2, 2),
    "metareg": (2, 2),
    # The pretrained network is only asked.
    "miro": (2, 1),
    # Every domain is trained on, and tested after another.
    "mldg": (2, 2),
    "sagm": (2, 2),
    "sagnet": (3, 2),
    "sam": (2, 2),
    # A step on the risk, one on the gap, and features for the adversary's steps.
    "transfer": (3, 2),
}
# Forward and backward passes over the head alone, where they are more than a few.
HEAD_PASSES: dict[str, tuple[float, float]] = {
    # 300 products with the Hessian, two passes each, for each domain and for all; those of the
    # domains are differentiated.
    "hutchinson": (1200, 300),
    # Steps of the adversarial head.
    "transfer": (10, 10),
    # 30 steps of the probes, and ten products with their Hessians.
    "trm": (50, 30),
}
# Passes over a part of a method that is a network of its own and takes as long as some layers.
PART_PASSES = {
    # The context network, three convolutions at the size of the images.
    "arm": ("context", 1),
    # The classifier of domains, trained with the features.
    **dict.fromkeys(("cdann", "dann"), ("domain", 1)),
    # The fixed projection, three layers twice as wide as the features: forward, and back to them.
    "self_reg": ("projection", 1),
    # To train the features, and on noise and features to train it, with an optimizer of its own.
    "urm": ("critic", 3),
}
# Work that is no pass, for which a method may take longer than its passes explain.
OTHER_WORK = {
    **dict.fromkeys(("cad", "cond_cad"), "compares every pair of samples"),
    "causirl_coral": "compares the covariances of two sets whose sizes are drawn",
    "causirl_mmd": "computes seven kernels of every pair of samples",
    "dmg": "draws masks, and multiplies maps by them",
    "efdmix": "sorts the values of every channel of two maps",
    "eqrm": "finds a quantile in 32 halvings",
    "hgp": "multiplies the head's Hessian of every domain by two directions",
    "mmd": "computes seven kernels of every pair of samples",
    "mixstyle": "reads two maps for their means and variances, and again to change them",
    "rdm": "computes eight kernels of every pair of losses",
}
# Passes that visit one domain after the other, and pay what a pass costs without samples each time.
BY_DOMAIN = ("and_mask", "arith", "fish", "iga", "maml", "mldg", "reptile", "sand_mask")
# Methods that are no steps: the head is fitted once.
NO_STEP = ("linear_probe",)
# How often a sample comes in a whole run, how many steps one has here, for either case.
EPOCHS, WHOLE = 75, (1000, 50)
# Samples that a bare loop over all of them, and a regrouping, read.
READ = 768
# Of these many at a time, and so often.
BARE, TURNS = 128, 5


def stream_of(pixels: int, batch: int, size: int | None = None) -> Stream:
    """Random pictures of three domains: what they show does not matter here."""
    generator = torch.Generator().manual_seed(0)
    domains = {}
    for i in range(DOMAINS):
        shape = (size or 4 * batch, 3, pixels, pixels)
        x = torch.randint(256, shape, generator=generator)
        y = torch.randint(CLASSES, shape[:1], generator=generator)
        domains[f"domain{i}"] = Domain(x.to(torch.uint8), y)
    samples = pool_domains(domains)
    scaled = type(samples)(samples.x, samples.y, samples.domain, Scaling.fit(samples.x))
    return Stream(scaled, batch=batch, seed=0)


def begun(method: Method, backbone: str, pixels: int, steps: int = 10_000) -> Learner:
    """A learner at its start, the same for every method."""

    def net(outputs: int) -> torch.nn.Module:
        torch.manual_seed(0)
        return network(backbone, (3, pixels, pixels), outputs, freeze_bn=True)

    sources = tuple(f"domain{i}" for i in range(DOMAINS))
    classes = tuple(str(i) for i in range(CLASSES))
    optimizer = optimizer_factory("", lr=5e-5, weight_decay=0.0)
    shape = (3, pixels, pixels)
    task = Task(sources, classes, steps, network=net, optimizer=optimizer, shape=shape)
    learner = method.setup(net(CLASSES), task)
    learner.train()
    return learner


def stepping(
    method: Method, backbone: str, pixels: int, times: int, batch: int = BATCH
) -> Callable[[], None]:
    """One training step for each call, on batches that lie ready."""
    learner, stream = begun(method, backbone, pixels), stream_of(pixels, batch * times)
    groups = method.regroup(learner, stream.samples)
    if groups is not None:
        stream.regroup(groups)
    else:
        # Warm-ups are over. No method but those that regroup does anything at one step only.
        learner.step = learner.task.steps // 2 + 1000
    batches: list[Batches] = [next(stream) for _ in range(4)]

    def step() -> None:
        method.update(learner, batches[learner.step % len(batches)])
        learner.step += 1

    return step


def time_ratio(name: str, backbone: str, pixels: int, steps: int, batch: int = BATCH) -> float:
    """The median over blocks of the method's time over erm's, taking turns."""
    method, erm = (build(registry.find("methods", each), {}) for each in (name, "erm"))
    times = method.batches_per_group
    both = [stepping(each, backbone, pixels, times, batch) for each in (method, erm)]
    return median_ratio(*both, steps)


def median_ratio(ours: Callable[[], None], theirs: Callable[[], None], steps: int) -> float:
    """The median over steps of our processor time over theirs, taking turns."""
    ratios = []
    for block in range(WARMUP + steps):
        seconds = {}
        # Who comes first changes, so that a drift falls on both.
        for step in (ours, theirs)[:: 1 if block % 2 else -1]:
            since = process_time()
            step()
            seconds[step] = process_time() - since
        if block >= WARMUP:
            ratios.append(seconds[ours] / seconds[theirs])
    return statistics.median(ratios)


def pair_ratio(domain_net: str, backbone: str, pixels: int, steps: int) -> float:
    """The time of a step of crossgrad over that of a step of erm of each of its two networks."""
    crossgrad, erm = (
        build(registry.find("methods", name), settings)
        for name, settings in (("crossgrad", {"domain_net": domain_net}), ("erm", {}))
    )
    other = "small:cnn" if domain_net == "small" else backbone
    both = stepping(erm, backbone, pixels, 1), stepping(erm, other, pixels, 1)
    ours = stepping(crossgrad, backbone, pixels, 1)
    return median_ratio(ours, lambda: [step() for step in both] and None, steps)


def training(method: Method, backbone: str, pixels: int, steps: int) -> Callable[[], None]:
    """One step of a whole run for each call, with its regrouping and its batch."""
    learner = begun(method, backbone, pixels, steps)
    stream = stream_of(pixels, BATCH, size=steps * BATCH // EPOCHS)

    def step() -> None:
        groups = method.regroup(learner, stream.samples)
        if groups is not None:
            stream.regroup(groups)
        method.update(learner, next(stream))
        learner.step += 1

    return step


def run_ratio(name: str, backbone: str, pixels: int, steps: int) -> float:
    """The time of all steps of a run over that of erm's, taking turns."""
    methods = (build(registry.find("methods", each), {}) for each in (name, "erm"))
    turns = [(Stopwatch(), training(each, backbone, pixels, steps)) for each in methods]
    for block in range(steps):
        for watch, step in turns if block % 2 else reversed(turns):
            watch.start()
            step()
            watch.stop()
    return turns[0][0].seconds / turns[1][0].seconds


def reading_speed(name: str, backbone: str, pixels: int) -> float:
    """How fast a regrouping reads all samples, over a bare loop; the median of some turns."""
    method = build(registry.find("methods", name), {})
    learner = begun(method, backbone, pixels)
    samples = stream_of(pixels, BATCH, size=READ // DOMAINS).samples

    @torch.inference_mode()
    def bare() -> None:
        learner.model.eval()
        for x in samples.x.chunks(BARE):
            learner.model(samples.prepare(x))
        learner.model.train()

    ratios = []
    for _ in range(1 + TURNS):
        watches = Stopwatch(), Stopwatch()
        watches[0].start()
        bare()
        watches[0].stop()
        watches[1].start()
        method.regroup(learner, samples)
        watches[1].stop()
        ratios.append(watches[0].seconds / watches[1].seconds)
    return statistics.median(ratios[1:])


def prediction_ratio(combine: str, backbone: str, pixels: int) -> tuple[float, float]:
    """How long dmg's network predicts, over the bare one; and the share of what is masked."""
    dmg = build(registry.find("methods", "dmg"), {"combine": combine})
    masked = begun(dmg, backbone, pixels).model.eval()
    bare = begun(build(registry.find("methods", "erm"), {}), backbone, pixels).model.eval()
    x = torch.randn(BARE, 3, pixels, pixels).contiguous(memory_format=torch.channels_last)
    passed: list[float] = []
    first = bare.get_submodule(masked.layers[0])
    first.register_forward_pre_hook(lambda *_: passed.append(perf_counter()))
    ratios, shares = [], []
    with torch.inference_mode():
        for _ in range(1 + TURNS):
            times = [perf_counter()]
            for model in (bare, masked):
                model(x)
                times.append(perf_counter())
            begin, end, last = times
            ratios.append((last - end) / (end - begin))
            shares.append((end - passed[-1]) / (end - begin))
    return statistics.median(ratios[1:]), statistics.median(shares[1:])


def peak_bytes(
    name: str, backbone: str, pixels: int, times: int, settings: Mapping[str, str] | None = None
) -> int:
    """The most that torch held at once, of all that was made since the start."""
    method = build(registry.find("methods", name), settings or {})
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


def explained(name: str, backbone: str, pixels: int) -> float:
    """Steps of erm that the passes of a method are worth: a backward pass is two forward passes."""
    forward, backward = PASSES.get(name, (1, 1))
    passes = (forward + 2 * backward) / 3
    if name in BY_DOMAIN:
        passes *= 1 + (DOMAINS - 1) * fixed_ratio(backbone, pixels)
    if name in HEAD_PASSES:
        forward, backward = HEAD_PASSES[name]
        passes += (forward + 2 * backward) / 3 * head_ratio(backbone, pixels)
    if name in PART_PASSES:
        part, count = PART_PASSES[name]
        passes += count * part_ratio(name, part, backbone, pixels)
    return passes


def step_ms(backbone: str, pixels: int) -> float:
    """Median processor time of a step of erm, in milliseconds."""
    step = stepping(build(registry.find("methods", "erm"), {}), backbone, pixels, 1)
    times = []
    for _ in range(WARMUP + 9):
        start = process_time()
        step()
        times.append(process_time() - start)
    return 1000 * statistics.median(times[WARMUP:])


@cache
def fixed_ratio(backbone: str, pixels: int) -> float:
    """The time of a step of erm with one sample of each domain, over that of a usual step."""
    erm = build(registry.find("methods", "erm"), {})
    few, usual = (stepping(erm, backbone, pixels, 1, batch) for batch in (1, BATCH))
    return median_ratio(few, usual, 5)


@cache
def head_ratio(backbone: str, pixels: int) -> float:
    """The time of a forward and backward pass of the head alone, over a step of erm."""
    erm = build(registry.find("methods", "erm"), {})
    head = begun(erm, backbone, pixels).model.head
    x = torch.randn(DOMAINS * BATCH, head.in_features, requires_grad=True)
    y = torch.arange(len(x)) % CLASSES

    def passes() -> None:
        torch.nn.functional.cross_entropy(head(x), y).backward()

    return median_ratio(passes, stepping(erm, backbone, pixels, 1), 5)


@cache
def part_ratio(name: str, part: str, backbone: str, pixels: int) -> float:
    """The time of a pass over a part, with the step of its optimizer if any, over a step of erm."""
    method, erm = (build(registry.find("methods", each), {}) for each in (name, "erm"))
    learner = begun(method, backbone, pixels)
    if part in learner.parts:
        net, shape = learner.parts[part], (learner.model.head.in_features,)
    else:
        net, shape = learner.model.get_submodule(part), (3, pixels, pixels)
    # Images need no gradient, features do.
    x = torch.randn(DOMAINS * BATCH, *shape, requires_grad=len(shape) == 1)
    optimizer = learner.optimizers.get(part)

    def passes() -> None:
        net(x).square().mean().backward()
        if optimizer is not None:
            optimizer.step()
            optimizer.zero_grad()

    return median_ratio(passes, stepping(erm, backbone, pixels, 1), 5)


def quick(names: list[str]) -> None:
    """Print a line for each method: its step time over erm's, and what its passes explain."""
    cases = [(backbone, pixels) for backbone, pixels, _ in CASES]
    print(f"{'method':14}" + "".join(f"{case[0]:>15} {'passes':>7}" for case in cases), flush=True)
    milliseconds = "".join(f"{step_ms(*case):15.1f} {'':7}" for case in cases)
    print(f"{'erm, ms':14}{milliseconds}", flush=True)
    slow = []
    for name in names:
        line = f"{name:14}"
        for case, (steps, batch) in zip(cases, QUICK, strict=True):
            found, due = time_ratio(name, *case, steps, batch), explained(name, *case)
            too_slow = found > (1 + SLACK) * due
            reason = f" ({OTHER_WORK[name]})" if name in OTHER_WORK else ""
            slow += [f"{name} on {case[0]}{reason}"] * too_slow
            mark = "*" if reason else "!"
            line += f"{found:15.2f} {due:6.2f}" + (mark if too_slow else " ")
        print(line, flush=True)
    print(f"slower than passes explain by more than {SLACK:.0%}: {', '.join(slow) or 'none'}")


def full(names: list[str]) -> None:
    """Print time and memory, and what concerns one kind of method only."""
    rows, notes = [], []
    for (backbone, pixels, steps), whole in zip(CASES, WHOLE, strict=True):
        for name in names:
            kind = registry.find("methods", name)
            times = build(kind, {}).batches_per_group
            time = time_ratio(name, backbone, pixels, steps)
            memory, plain = (peak_bytes(n, backbone, pixels, times) for n in (name, "erm"))
            rows.append((backbone, name, time, memory / plain))
            print(f"{backbone} {name}: {time:.2f} × erm's time", flush=True)
            if kind.regroup is not Method.regroup:
                run = run_ratio(name, backbone, pixels, whole)
                speed = reading_speed(name, backbone, pixels)
                ratio_text = f"a run of {whole} steps takes {run:.2f} × erm's time"
                read = f"a regrouping reads at {speed:.2f} × the speed of a bare loop"
                notes.append(f"{backbone} {name}: {ratio_text}, {read}")
            if name == "crossgrad":
                for net in ("small", "same"):
                    pair = pair_ratio(net, backbone, pixels, steps)
                    memory = peak_bytes(name, backbone, pixels, times, {"domain_net": net}) / plain
                    ratio_text = f"{pair:.2f} × the time of a step of erm of both networks"
                    notes.append(
                        f"{backbone} crossgrad, domain_net={net}: {ratio_text}, {memory:.2f} × the "
                        "memory of erm of the one"
                    )
            if name == "dmg":
                one, _ = prediction_ratio("masks", backbone, pixels)
                mean, share = prediction_ratio("predictions", backbone, pixels)
                ratio_text = (
                    f"with the mean of the masks {one:.2f} ×, the mean of predictions {mean:.2f} ×"
                )
                notes.append(
                    f"{backbone} dmg: predicts {ratio_text} the bare network's time; "
                    f"{share:.2f} of that is masked, so at most {1.1 + DOMAINS * share:.2f}"
                )
    print(f"\n{'network':15} {'method':14} {'time':>6} {'memory':>7}   (erm = 1)")
    for backbone, name, time, memory in rows:
        print(f"{backbone:15} {name:14} {time:6.2f} {memory:7.2f}")
    print(*notes, sep="\n")


def main() -> None:
    """Measure and print."""
    torch.set_num_threads(1)
    names = [word for word in sys.argv[1:] if word != "--full"]
    names = names or [name for name in registry.names("methods") if name not in ("erm", *NO_STEP)]
    (full if "--full" in sys.argv else quick)(names)


if __name__ == "__main__":
    main()
