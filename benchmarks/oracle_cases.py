"""What `oracle.py` asks for: commands by scenario, and the small data that they read.

Each scenario has a store of its own, which `oracle.py` names. A word with a star stands for the
first path that it matches, and DATA for the data root.
"""

import csv
import random
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image
from safetensors.numpy import save_file

__all__ = ["SCENARIOS", "write_data"]

SHORT = "--steps 4 --set every=2 --workers 1"
QUICK = f"{SHORT} --trials 1 --quiet"
ONE = f"--targets turn10 {QUICK}"
FEW = f"{QUICK} --set limit=2 --set batch=4"
HEART = "data/heart.csv --label diagnosis --domain hospital"
TEXTS = "data/texts.csv --text words"
ENCODER = "--backbone hf:DATA/weights/minilm_l6"
LITE = "timm:tf_efficientnet_lite0 --weights DATA/weights/tf_efficientnet_lite0.safetensors"
EXPERTS = "models/base models/expert1 models/expert2 --force --out"
# Sixteen-digit keys are not known in advance, hence the stars.
SCENARIOS = {
    "methods": f"bench spirals --methods all {ONE}",
    "images": f"""
        bench rotated_digits --methods erm,arm,efdmix,mixstyle,crossgrad --targets 0deg {FEW}
        bench rotated_digits --methods erm --adapt all --backbone small:resnet_2block \
            --targets 15deg {FEW}
        bench rotated_digits --methods erm --backbone small:vit --set freeze_blocks=2 \
            --targets 15deg {FEW}""",
    "draws": "bench spirals --methods erm,vrex --draws 2 --trials 2 --rules all --steps 4 "
    "--set every=2 --workers 2 --quiet",
    "trials": """
        bench spirals --methods erm,groupdro,dmg --draws 2 --trials 3 --steps 6 --workers 1 -q
        power runs/trials
        status runs/trials
        export-domainbed runs/trials exported --dataset Spirals
        fit spirals best --workers 1 --force --out models/best
        predict models/best data/points.npz --threads 1 --abstain 0.2 --probabilities""",
    "fitted": f"""
        fit spirals dmg {SHORT} --trials 2 --force --out models/dmg
        predict models/dmg data/points.npz --threads 1 --domain turn10
        export models/dmg --to torch --force""",
    "starts": f"""
        bench spirals --methods erm,vrex --start linear_probe {ONE}
        bench spirals --methods erm,vrex --start linear_probe --average wise {ONE}
        fit spirals erm --start linear_probe --adapt t3a {SHORT} --force --out models/started
        predict models/started data/points.npz --threads 1""",
    "averages": f"""
        bench spirals --methods erm,mldg --average ema {ONE}
        bench spirals --methods erm,mldg --average swa --draws 2 {ONE}
        bench spirals --methods erm,mldg --average swad {ONE}""",
    "adaptations": f"bench spirals --methods erm,irm --merges average --adapt t3a --draws 2 {ONE}",
    "merges": f"""
        bench spirals --methods erm --merges all --base-steps 3 --draws 2 {ONE}
        bench spirals --merges all --sources turn0,turn20 {QUICK}""",
    "experts": f"""
        bench spirals --merges average,ties,score --expert-method erm,vrex --adapt t3a {ONE}
        bench spirals --merges average,dare --expert-method arith --set dare.scale=0.4 {ONE}""",
    "soups": f"""
        bench spirals --merges average,greedy_soup --expert-draws 3 {QUICK}
        fit spirals best --workers 1 --force --out models/soup
        predict models/soup data/points.npz --threads 1""",
    "held_out": f"""
        bench data/many.npz --methods erm,groupdro --hold-out 0.3 --validate 0.2 \
            --train-on 2,all --trials 2 {SHORT} -q
        bench data/many.npz --methods erm --hold-out 0.3 --domains-per-step 2 {QUICK}
        bench data/many.npz --methods erm --hold-out 0.3 --validate 0 --rules all {QUICK}""",
    "single_source": f"bench spirals --methods erm,sam --single-source --rules all {QUICK}",
    "named_domains": f"""
        bench spirals --methods erm,vrex --targets turn0,turn30 --rules all {QUICK}
        bench spirals --methods erm --targets turn0+turn30 {QUICK}
        bench spirals --methods erm,coral --validate-on turn10 {QUICK}
        bench spirals --methods erm --sources turn0,turn10 --targets turn30 {QUICK}
        bench spirals --methods erm --sources turn10,turn20 --targets turn0 \
            --validate-on turn30 {QUICK}""",
    "metrics": f"""
        bench data/points.npz --methods erm,vrex --metric macro_f1 --group group {QUICK}
        bench data/points.npz --methods erm --metric worst_group --group group {QUICK}""",
    "classes": f"""
        bench data/classes.npz --methods erm --rules all {QUICK}
        bench data/classes.npz --methods erm --classes all {QUICK}
        bench data/classes.npz --methods erm --report whole {QUICK}""",
    "settings": f"""
        bench spirals --methods erm --set precision=bf16 {ONE}
        bench spirals --methods erm,vrex --set epochs=1 --targets turn10 --trials 1 --workers 1 -q
        bench spirals --methods erm,groupdro --set batch_total=24 {ONE}
        bench spirals --methods erm --set batch=all --set optimizer=sgd:momentum=0.9 {ONE}
        bench spirals --methods erm --set lr_schedule=cosine:warmup=0.5 --set clip_norm=0.1 {ONE}
        bench spirals --methods erm --set balance=true --set limit=20 {ONE}
        bench spirals --methods erm --set weight_decay=0.01 --set lr=0.01 {ONE}
        bench spirals --methods vrex --set vrex.penalty=3 --report whole --domains-per-step 2 {ONE}
        diagnose sensitivity runs/settings --set of=lr""",
    "own_code": f"""
        bench spirals --methods erm,./data/own_idea.py --set own_idea.weight=0.5 --draws 2 {ONE}
        --code data/own_idea.py table runs/own_code --format csv""",
    "sweep": "sweep data/sweep.toml --workers 1 --quiet",
    "recipe": """
        recipe list
        recipe show data/recipe.toml --no-measure
        recipe run data/recipe.toml --workers 1 --quiet""",
    "train": f"""
        train spirals dann --target turn10 --target turn20 --steps 4 --trial 1 --draw 1
        train spirals erm --start linear_probe --average wise --steps 4
        train {HEART} erm --target north --steps 4
        train --like runs/train/dann-* --store runs/again""",
    "failures": "bench spirals --methods erm,vrex --set lr=1e30 --set optimizer=sgd "
    "--targets turn10 --trials 1 --steps 4 --workers 1 -q",
    "heart": f"""
        data check {HEART}
        bench {HEART} --methods erm,mixup,coral --group sex --adapt t3a --trials 2 --steps 4 \
            --workers 1 -q
        fit {HEART} erm {SHORT} --force --out models/heart
        predict models/heart data/heart.csv --threads 1 --probabilities""",
    "texts": f"""
        data check data/texts.csv?text=words
        bench {TEXTS} --methods erm,dann,crossgrad --set tokens=32 {QUICK}
        fit {TEXTS} erm --set tokens=32 {SHORT} --force --out models/texts
        predict models/texts data/texts.csv --threads 1""",
    "sentences": f"""
        embed {TEXTS} {ENCODER} --tokens 8 --threads 1 --out sentences
        bench sentences.npz --methods erm,lisa {QUICK}
        bench {TEXTS} --methods erm {ENCODER} --set tokens=8 --set freeze_blocks=5 \
            --targets books {QUICK}""",
    "pictures": f"""
        data check data/pictures
        bench data/pictures --methods erm,cdann --merges average {QUICK}
        bench data/pictures --methods erm --finetune --set size=32 --set freeze_blocks=2 \
            --targets east {QUICK}
        bench data/pictures --methods erm,rsc --backbone small:cnn --set size=16 \
            --set augment=full {QUICK}
        fit data/pictures erm {SHORT} --force --out models/pictures
        predict models/pictures data/pictures/east --threads 1""",
    "features": f"""
        embed data/pictures --backbone {LITE} --size 32 --threads 1 --out features
        bench features.npz --methods erm,linear_probe --draws 2 {QUICK}
        fit features.npz erm {SHORT} --no-estimate --force --out models/features
        predict models/features data/pictures/east --threads 1""",
    "merged_files": f"""
        fit spirals erm {SHORT} --no-estimate --force --out models/base
        fit spirals vrex {SHORT} --no-estimate --force --out models/expert1
        fit spirals arith {SHORT} --no-estimate --force --out models/expert2
        merge score {EXPERTS} models/score
        merge ties {EXPERTS} models/ties --set density=0.5
        merge slerp {EXPERTS} models/slerp --scale 0.5
        merge fisher {EXPERTS} models/fisher --statistics data/squares1.safetensors \
            --statistics data/squares2.safetensors
        merge regmean {EXPERTS} models/regmean --statistics data/gram.safetensors \
            --statistics data/gram.safetensors
        predict models/score data/points.npz --threads 1""",
    "diagnoses": f"""
        bench spirals --methods erm,dmg,crossgrad {ONE}
        diagnose agreement runs/diagnoses/erm-*
        diagnose domain_space runs/diagnoses/crossgrad-*
        diagnose gradient_shares runs/diagnoses/erm-*
        diagnose loss_surface runs/diagnoses/erm-*
        diagnose masks runs/diagnoses/dmg-*
        diagnose patterns runs/diagnoses/erm-*
        diagnose perturbations runs/diagnoses/crossgrad-*""",
    "merge_diagnoses": f"""
        bench spirals --methods erm --merges score --rules all {QUICK}
        diagnose calibration runs/merge_diagnoses
        diagnose conflicts runs/merge_diagnoses/score-*
        diagnose merge_path runs/merge_diagnoses/score-*
        diagnose overlap runs/merge_diagnoses/score-*""",
    "questions": """
        list
        explain erm
        explain score
        explain swad
        explain t3a
        explain rotated_digits""",
    "refusals": f"""
        bench spirals --methods erm --adapt tent {ONE}
        bench spirals --methods emr {ONE}
        bench spirals --methods erm --set epochs=2 {ONE}
        bench spirals --methods erm --set penalty=2 {ONE}
        bench spirals --methods mldg --set batch_total=8 {ONE}
        bench spirals --methods erm --average wise {ONE}
        bench spirals --methods erm --single-source --targets turn0 {QUICK}
        bench data/many.npz --merges average --hold-out 0.3 {QUICK}
        bench data/none.npz {QUICK}
        bench {HEART} --methods mixstyle {QUICK}
        fit spirals best --store runs/none --out models/none
        table runs/none""",
}
# The weights of the network of spirals.
SHAPES = {"features.1.bias": (64,), "features.1.weight": (64, 2), "features.3.bias": (64,)}
SHAPES |= {"features.3.weight": (64, 64), "head.bias": (2,), "head.weight": (2, 64)}
OWN_IDEA = '''"""Own idea: the mean of the risks and a share of the largest."""

from dataclasses import dataclass
from typing import Annotated

from afield.hyperparameters import Uniform
from afield.training import Method, risks

__all__ = ["OwnIdea"]


@dataclass(frozen=True)
class OwnIdea(Method):
    """Mean and maximum."""

    weight: Annotated[float, Uniform(0.0, 1.0)] = 0.1

    def loss(self, learner, batches):
        """The loss of a step."""
        risk = risks(learner.model, batches)
        return risk.mean() + self.weight * risk.max(), {"largest": risk.max().detach()}
'''
SWEEP = """
dataset = ["spirals", "data/points.npz"]
methods = ["erm", "vrex"]
merges = ["average"]
targets = ["turn10", "turn20"]
trials = 1
steps = 4
every = 2
vrex.penalty = 2
"""
RECIPE = """
title = "two turns"
reproduces = "approximate"
differs = "the data"
[options]
dataset = "spirals"
targets = ["turn0"]
trials = 1
steps = 4
[[parts]]
methods = ["erm", "vrex"]
[[parts.numbers]]
columns = ["turn0"]
rows.erm = [99.0]
rows.vrex = [98.0]
"""


def write_data(folder: Path) -> None:
    """Write all small data, a method of one's own, a sweep and a recipe."""
    folder.mkdir(parents=True)
    for name, text in (("own_idea.py", OWN_IDEA), ("sweep.toml", SWEEP), ("recipe.toml", RECIPE)):
        (folder / name).write_text(text)
    _write_tables(folder)
    _write_arrays(folder, np.random.default_rng(0))
    _write_pictures(folder, np.random.default_rng(1))


def _write_tables(folder: Path) -> None:
    """A table of numbers and categories, both with gaps, and one of texts."""
    draw = random.Random(0)
    heart: list[list[Any]] = [["age", "pain", "sex", "hospital", "diagnosis"]]
    texts: list[list[Any]] = [["words", "label", "domain"]]
    for number in range(120):
        sick, place = draw.random() < 0.5, number % 3
        age = draw.choice(["", round(draw.gauss(60 if sick else 50, 9), 1)])
        pain = draw.choice(["", "none", "typical" if sick else "atypical"])
        hospital, domain = ("north", "south", "west")[place], ("books", "kitchen", "music")[place]
        heart.append([age, pain, draw.choice("fm"), hospital, "sick" if sick else "healthy"])
        words = draw.choices(["dull", "poor"] if sick else ["fine", "nice"], k=2)
        words += draw.choices(["a", "story", "pan", "sound", "of", "it"], k=draw.randint(2, 6))
        texts.append([f"{domain} {number} {' '.join(words)}", "bad" if sick else "good", domain])
    for name, rows in (("heart.csv", heart), ("texts.csv", texts)):
        with (folder / name).open("w", newline="") as file:
            csv.writer(file).writerows(rows)


def _write_arrays(folder: Path, draw: np.random.Generator) -> None:
    """Points of ten domains, of three, and with a class of one domain; statistics of experts."""
    domain = draw.permutation(np.repeat([f"turn{number}0" for number in range(10)], 24))
    y, group = draw.integers(0, 2, 240), draw.choice(["a", "b", "c"], 240)
    x = (draw.normal(size=(240, 2)) + y[:, None]).astype(np.float32)
    few = np.isin(domain, ["turn00", "turn10", "turn20"])
    third = np.where((domain == "turn20") & (group == "c"), 2, y)
    np.savez(folder / "many.npz", X=x, y=y, domain=domain)
    np.savez(folder / "points.npz", X=x[few], y=y[few], domain=domain[few], group=group[few])
    np.savez(folder / "classes.npz", X=x[few], y=third[few], domain=domain[few])
    factor = draw.normal(size=(64, 64)).astype(np.float32)
    save_file({"features.3.weight": factor @ factor.T}, folder / "gram.safetensors")
    for number in (1, 2):
        squares = {name: draw.random(shape, dtype=np.float32) for name, shape in SHAPES.items()}
        save_file(squares, folder / f"squares{number}.safetensors")


def _write_pictures(folder: Path, draw: np.random.Generator) -> None:
    """A folder of images: two classes, which differ in the bright half, in three colors."""
    for number in range(48):
        place = folder / "pictures" / ("east", "north", "south")[number % 3] / "ab"[number % 2]
        place.mkdir(parents=True, exist_ok=True)
        pixels = draw.integers(0, 120, (20, 24, 3), dtype=np.uint8)
        pixels[:, (number % 2) * 12 :, number % 3] += 100
        Image.fromarray(pixels).save(place / f"{number}.png")
