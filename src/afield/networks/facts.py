"""Facts about pretrained networks: licence, cost, accuracies, and the data that they have seen.

`REGISTER` has the networks that afield proposes, best first in each level. What is said of other
networks is read from timm and open_clip, and from the tag of their weights.

The accuracies on ImageNet-R and ImageNet-Sketch are those of timm's
``results/results-imagenet-r.csv`` and ``results/results-sketch.csv`` (commit 4e5207c7 of 30 October
2025), at the size given here, and of open_clip's ``docs/openclip_results.csv`` (commit 29b90b8 of
22 November 2023), zero-shot. Networks without numbers are not in these files. Parameters and
multiplications are those of the network without its classifier, counted by `afield.networks.cost`.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Literal

Level = Literal["fast", "strong", "large", "at hand"]
# Levels that can be asked for by name; networks at hand are used if `fast` cannot be had.
LEVELS: dict[str, str] = {
    "fast": "the default for photographs, for any machine",
    "strong": "a CLIP: class names alone are a classifier",
    "large": "for a GPU",
}
NOT_STATED = "not stated"
UNKNOWN_DATA = "unknown data"


@dataclass(frozen=True)
class NetworkFacts:
    """What is known about a network and its weights.

    Attributes
    ----------
    name
        The name for ``--backbone``.
    license
        The licence of the weights.
    pretraining
        The data of its pretraining, in words.
    of_web
        Whether these are data of the web; None if that is not known.
    repository
        The repository of the weights on the Hugging Face hub.
    level
        When to use it; empty for a network that is used by its name only.
    size
        The side of the images in pixels; 0 means unknown, as do the other numbers.
    parameters, gmacs
        Millions of parameters, and billions of multiplications for an image.
    imagenet_r, sketch
        Accuracy on ImageNet-R and ImageNet-Sketch in percent; of a CLIP, zero-shot.
    """

    name: str
    license: str
    pretraining: str
    of_web: bool | None = False
    repository: str = ""
    level: Level | Literal[""] = ""
    size: int = 0
    parameters: float = 0.0
    gmacs: float = 0.0
    imagenet_r: float | None = None
    sketch: float | None = None

    @property
    def file_stem(self) -> str:
        """The name without suffix of a file with the weights, in a folder of weights."""
        return self.name.partition(":")[2].replace("/", "-")

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the network: as it is listed, and with the tag of its weights."""
        family = self.name.partition(":")[0]
        tagged = f"{family}:{self.repository.partition('/')[2]}"
        return (self.name, tagged) if tagged.startswith(f"{self.name}.") else (self.name,)

    def describe(self) -> str:
        """Licence and cost in a few words."""
        words = [f"licence {self.license}"]
        words += [f"{self.parameters:.1f} M parameters"] if self.parameters else []
        words += [f"{self.gmacs:.2g} GMACs for an image of {self.size} px"] if self.gmacs else []
        return ", ".join(words)


_LABELS = "ImageNet-1k labels"
REGISTER = (
    NetworkFacts(
        "timm:hgnetv2_b1.ssld_stage1_in22k_in1k",
        "Apache-2.0",
        "images of ImageNet-22k and ImageNet-1k with the predictions of a larger network",
        repository="timm/hgnetv2_b1.ssld_stage1_in22k_in1k",
        level="fast",
        size=224,
        parameters=4.3,
        gmacs=0.49,
        imagenet_r=48.7,
        sketch=34.7,
    ),
    NetworkFacts(
        "clip:ViT-B-32-256/datacomp_s34b_b86k",
        "MIT",
        "DataComp-1B: 1.4 B image–text pairs of the web",
        of_web=True,
        repository="laion/CLIP-ViT-B-32-256x256-DataComp-s34B-b86K",
        level="strong",
        size=256,
        parameters=87.9,
        gmacs=5.8,
        imagenet_r=83.4,
        sketch=60.7,
    ),
    NetworkFacts(
        "clip:ViT-B-16-SigLIP2/webli",
        "Apache-2.0",
        "WebLI: 10 B images of the web with texts in many languages",
        of_web=True,
        repository="timm/ViT-B-16-SigLIP2",
        level="large",
        size=224,
        parameters=92.9,
        gmacs=17.7,
    ),
    NetworkFacts(
        "timm:vit_base_patch14_reg4_dinov2.lvd142m",
        "Apache-2.0",
        "LVD-142M: 142 M images of the web, without labels or captions",
        of_web=True,
        repository="timm/vit_base_patch14_reg4_dinov2.lvd142m",
        level="large",
        size=224,
        parameters=85.7,
        gmacs=23.5,
    ),
    NetworkFacts(
        "timm:tf_efficientnet_lite2",
        "Apache-2.0",
        _LABELS,
        repository="timm/tf_efficientnet_lite2.in1k",
        level="at hand",
        size=260,
        parameters=4.8,
        gmacs=0.86,
        imagenet_r=36.9,
        sketch=24.6,
    ),
    NetworkFacts(
        "timm:tf_efficientnet_lite1",
        "Apache-2.0",
        _LABELS,
        repository="timm/tf_efficientnet_lite1.in1k",
        level="at hand",
        size=240,
        parameters=4.1,
        gmacs=0.60,
        imagenet_r=36.7,
        sketch=25.5,
    ),
    NetworkFacts(
        "timm:tf_efficientnet_lite0",
        "Apache-2.0",
        _LABELS,
        repository="timm/tf_efficientnet_lite0.in1k",
        level="at hand",
        size=224,
        parameters=3.4,
        gmacs=0.38,
        imagenet_r=36.0,
        sketch=24.4,
    ),
    NetworkFacts(
        "torchvision:mobilenet_v2",
        "BSD-3-Clause",
        _LABELS,
        level="at hand",
        size=224,
        parameters=2.2,
        gmacs=0.30,
    ),
)

# Words for the parts of a weight tag: what the network has seen, and whether that is web data.
# Longer words come before those that they begin with.
_SEEN: dict[str, tuple[str, bool]] = {
    "openai": ("400 M image–text pairs of the web (OpenAI)", True),
    "laion400m": ("LAION-400M: 400 M image–text pairs of the web", True),
    "laion2b": ("LAION-2B: 2 B image–text pairs of the web", True),
    "laion5b": ("LAION-5B: 5 B image–text pairs of the web", True),
    "laion": ("image–text pairs of the web (LAION)", True),
    "datacomp": ("image–text pairs of the web (DataComp)", True),
    "commonpool": ("image–text pairs of the web (CommonPool)", True),
    "dfn": ("image–text pairs of the web (DFN)", True),
    "metaclip": ("image–text pairs of the web (MetaCLIP)", True),
    "meta": ("image–text pairs and videos of the web (Perception Encoder)", True),
    "merged2b": ("2 B image–text pairs of the web (LAION and COYO)", True),
    "webli": ("WebLI: 10 B images of the web with texts", True),
    "cc12m": ("CC12M: 12 M image–text pairs of the web", True),
    "yfcc": ("images of Flickr with their texts (YFCC)", True),
    "mclip": ("image–text pairs of the web (MobileCLIP)", True),
    "lvd142m": ("LVD-142M: 142 M images of the web, without labels or captions", True),
    "lvd1689m": ("LVD-1689M: 1.7 B images of the web, without labels or captions", True),
    "ig1b": ("1 B images of Instagram with their hashtags", True),
    "swag": ("3.6 B images of Instagram with their hashtags", True),
    "seer": ("1 B images of Instagram, without labels", True),
    "jft": ("JFT: 300 M images of the web", True),
    "in22k": ("ImageNet-22k labels", False),
    "in21k": ("ImageNet-21k labels", False),
    "in12k": ("ImageNet-12k labels", False),
    "in1k": (_LABELS, False),
}
# Families whose networks may have pretrained weights.
PRETRAINED_FAMILIES = ("timm", "torchvision", "clip", "hf")
# Networks of torchvision whose default weights are not those of ImageNet-1k alone.
SWAG_NETWORKS = ("regnet_y_128gf", "vit_h_14")
SWAG_DATA = (f"{_SEEN['swag'][0]}, then {_LABELS}", True)
# Licences of open_clip's weights by the first word of their tags, as its docs/PRETRAINED.md and the
# repositories of the weights state them.
_CLIP_LICENSES = {
    "openai": "MIT",
    "laion": "MIT",
    "datacomp1b": "Apache-2.0",
    "datacompdr": "apple-amlr",
    "datacomp": "MIT",
    "commonpool": "MIT",
    "metaclip": "CC-BY-NC-4.0",
    "meta": "Apache-2.0",
    "dfn": "apple-amlr",
    "merged2b": "MIT",
    "webli": "Apache-2.0",
}
_TORCHVISION_LICENSE = "BSD-3-Clause"


def find_registered(name: str) -> NetworkFacts | None:
    """The network of the register that has this name; None if there is none."""
    return next((facts for facts in REGISTER if name in facts.names), None)


def network_facts(name: str) -> NetworkFacts | None:
    """What is known about a network with pretrained weights; None if it has none.

    >>> network_facts("timm:tf_efficientnet_lite0.in1k").sketch
    24.4
    >>> network_facts("small:cnn") is None
    True
    """
    from afield.networks.backbone import find_backbone

    backbone = find_backbone(name)
    if not backbone.is_pretrained():
        return None
    full = backbone.tagged_name()
    registered = find_registered(name) or find_registered(full)
    if registered is not None:
        return registered
    pretraining, of_web = pretraining_data(full) or (UNKNOWN_DATA, None)
    form = backbone.input_form()
    return NetworkFacts(
        full, _license(full), pretraining, of_web=of_web, size=form.size if form else 0
    )


def networks_of_level(level: str) -> tuple[NetworkFacts, ...]:
    """The networks of a level, best first."""
    return tuple(facts for facts in REGISTER if facts.level == level)


def pretraining_data(name: str) -> tuple[str, bool | None] | None:
    """The data of a network's pretraining in words, and whether they are of the web.

    None if a network of this family is never pretrained. Only the name is read, so the words say
    what weights of this name have seen; no library is imported.

    >>> pretraining_data("timm:resnet50.fb_swsl_ig1b_ft_in1k")
    ('1 B images of Instagram with their hashtags, then ImageNet-1k labels', True)
    """
    registered = find_registered(name)
    if registered is not None:
        return registered.pretraining, registered.of_web
    family, _, model = name.partition(":")
    if family not in PRETRAINED_FAMILIES:
        return None
    if family == "torchvision":
        return SWAG_DATA if model in SWAG_NETWORKS else _SEEN["in1k"]
    _, _, tag = model.partition("/" if family == "clip" else ".")
    found: dict[str, bool] = {}
    for word in re.split(r"[._]", tag) if family != "hf" else ():
        words = next((value for key, value in _SEEN.items() if word.startswith(key)), None)
        if words:
            found[words[0]] = words[1]
    if not found:
        return UNKNOWN_DATA, None
    return ", then ".join(found), any(found.values())


def pretraining_sentence(networks: Iterable[str]) -> str:
    """What pretrained networks have seen, and what is not new to them; empty if there are none.

    Networks that have seen the same are named together.
    """
    seen: dict[tuple[str, bool | None], list[str]] = {}
    for name in dict.fromkeys(networks):
        data = pretraining_data(name)
        if data is not None:
            seen.setdefault(data, []).append(name)
    if not seen:
        return ""
    parts = [f"{', '.join(names)} on {data}" for (data, _), names in seen.items()]
    sentences = [f"pretrained: {'; '.join(parts)}"]
    if len(seen) > 1:
        sentences.append(
            "These networks differ in what they have seen, so a difference between them is not one "
            "of methods"
        )
    if any(of_web for _, of_web in seen):
        sentences.append(
            "Web data contain drawings, sketches and products: such domains are unseen in training "
            "here, but not to these networks"
        )
    return ". ".join(sentences)


def _license(name: str) -> str:
    family, _, model = name.partition(":")
    if family == "timm":
        from timm.models import get_pretrained_cfg

        config: Any = get_pretrained_cfg(model)
        stated = str(config.license or NOT_STATED)
        return {"apache-2.0": "Apache-2.0", "mit": "MIT", "unknown": NOT_STATED}.get(stated, stated)
    if family == "torchvision":
        return "CC-BY-NC-4.0" if model in SWAG_NETWORKS else _TORCHVISION_LICENSE
    tag = model.partition("/")[2] if family == "clip" else ""
    known = (text for word, text in _CLIP_LICENSES.items() if tag.startswith(word))
    return next(known, NOT_STATED)
