"""NICO++: 88,866 photographs of 60 classes in six contexts.

Zhang, He, Xu, Yu, Shen, Cui, *NICO++: Towards Better Benchmarking for Domain Generalization*, CVPR
2023. The domains are the six contexts that all classes share in the public training set of track 1
of the NICO challenge. License: free for research, not for economic purposes.

In the data root: ``nico_pp/public_dg_0416/train/<domain>/<class>/<file>``, as unpacked.

Differs from the original benchmark: here one domain at a time is left out; there two are, with
lists that are not used here. All of NICO++ has 80 classes and more contexts.
"""

from afield.data.domains import DomainSet, Download, Published
from afield.data.modalities.image import Image
from afield.data.sources.folders import folder_reader
from afield.data.training_settings import DOMAINBED_DEFAULTS

__all__ = ["nico_pp"]

FOLDER = "nico_pp/public_dg_0416/train"
DOMAINS = ("autumn", "dim", "grass", "outdoor", "rock", "water")
NAMES = """
airplane, bear, bicycle, bird, bus, butterfly, cactus, car, cat, chair, clock, corn, cow, crab,
crocodile, dog, dolphin, elephant, fishing rod, flower, football, fox, frog, giraffe, goose,
gun, hat, helicopter, horse, hot air balloon, kangaroo, lifeboat, lion, lizard, mailbox, monkey,
motorcycle, ostrich, owl, pineapple, pumpkin, rabbit, racket, sailboat, scooter, seal, sheep,
ship, shrimp, spider, squirrel, sunflower, tent, tiger, tortoise, train, truck, umbrella, wheat,
wolf
"""
CLASSES = tuple(name.strip() for name in NAMES.split(","))

nico_pp = DomainSet(
    name="nico_pp",
    domains=DOMAINS,
    classes=CLASSES,
    reader=folder_reader(FOLDER, DOMAINS, CLASSES),
    training=DOMAINBED_DEFAULTS,
    modality=Image(),
    needs=tuple(f"{FOLDER}/{domain}" for domain in DOMAINS),
    download=Download(
        instructions="download the training set of track 1 from https://nicochallenge.com/dataset "
        f"and unpack it as {FOLDER} in the data root",
        license="research, no economic purposes (https://nicochallenge.com/dataset)",
    ),
    published=Published(88_866),
)
