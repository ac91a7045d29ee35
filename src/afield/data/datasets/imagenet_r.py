"""ImageNet-R: 30,000 images of 200 classes in 15 styles; plain photographs are not among them.

Hendrycks et al., *The Many Faces of Robustness*, ICCV 2021. The domains are the styles. Their sizes
differ a lot, and not every style has every class. License: the images belong to their owners.

In the data root: ``imagenet-r/<class>/<style>_<number>.jpg``, where a class is a WordNet id such as
n01443537. Classes are in the order of these ids.

Differs from the original: there it is a test set for networks trained on ImageNet, and styles are
not distinguished.
"""

from functools import partial
from pathlib import Path

from afield.data.domains import Domain, DomainSet, Download, Published, ReadOptions
from afield.data.modalities.image import Image
from afield.data.sources.folders import LabeledFile, read_files
from afield.data.training_settings import DOMAINBED_DEFAULTS
from afield.errors import DataError

__all__ = ["imagenet_r"]

FOLDER = "imagenet-r"
STYLES = (
    *("art", "cartoon", "deviantart", "embroidery", "graffiti", "graphic", "misc", "origami"),
    *("painting", "sculpture", "sketch", "sticker", "tattoo", "toy", "videogame"),
)
CLASSES = 200
# The names that CLIP's authors gave to these classes of ImageNet.
NAMES = """
n01443537 goldfish; n01484850 great white shark; n01494475 hammerhead shark; n01498041 stingray;
n01514859 hen; n01518878 ostrich; n01531178 goldfinch; n01534433 junco; n01614925 bald eagle;
n01616318 vulture; n01630670 smooth newt; n01632777 axolotl; n01644373 tree frog; n01677366 green
iguana; n01694178 chameleon; n01748264 Indian cobra; n01770393 scorpion; n01774750 tarantula;
n01784675 centipede; n01806143 peafowl; n01820546 lorikeet; n01833805 hummingbird; n01843383
toucan; n01847000 duck; n01855672 goose; n01860187 black swan; n01882714 koala; n01910747
jellyfish; n01944390 snail; n01983481 American lobster; n01986214 hermit crab; n02007558 flamingo;
n02009912 great egret; n02051845 pelican; n02056570 king penguin; n02066245 grey whale; n02071294
killer whale; n02077923 sea lion; n02085620 Chihuahua; n02086240 Shih Tzu; n02088094 Afghan Hound;
n02088238 Basset Hound; n02088364 Beagle; n02088466 Bloodhound; n02091032 Italian Greyhound;
n02091134 Whippet; n02092339 Weimaraner; n02094433 Yorkshire Terrier; n02096585 Boston Terrier;
n02097298 Scottish Terrier; n02098286 West Highland White Terrier; n02099601 Golden Retriever;
n02099712 Labrador Retriever; n02102318 Cocker Spaniel; n02106030 collie; n02106166 Border Collie;
n02106550 Rottweiler; n02106662 German Shepherd Dog; n02108089 Boxer; n02108915 French Bulldog;
n02109525 St. Bernard; n02110185 Siberian Husky; n02110341 Dalmatian; n02110958 pug; n02112018
Pomeranian; n02112137 Chow Chow; n02113023 Pembroke Welsh Corgi; n02113624 Toy Poodle; n02113799
Standard Poodle; n02114367 grey wolf; n02117135 hyena; n02119022 red fox; n02123045 tabby cat;
n02128385 leopard; n02128757 snow leopard; n02129165 lion; n02129604 tiger; n02130308 cheetah;
n02134084 polar bear; n02138441 meerkat; n02165456 ladybug; n02190166 fly; n02206856 bee; n02219486
ant; n02226429 grasshopper; n02233338 cockroach; n02236044 praying mantis; n02268443 dragonfly;
n02279972 monarch butterfly; n02317335 starfish; n02325366 cottontail rabbit; n02346627 porcupine;
n02356798 fox squirrel; n02363005 beaver; n02364673 guinea pig; n02391049 zebra; n02395406 pig;
n02398521 hippopotamus; n02410509 bison; n02423022 gazelle; n02437616 llama; n02445715 skunk;
n02447366 badger; n02480495 orangutan; n02480855 gorilla; n02481823 chimpanzee; n02483362 gibbon;
n02486410 baboon; n02510455 giant panda; n02526121 eel; n02607072 clownfish; n02655020 pufferfish;
n02672831 accordion; n02701002 ambulance; n02749479 assault rifle; n02769748 backpack; n02793495
barn; n02797295 wheelbarrow; n02802426 basketball; n02808440 bathtub; n02814860 lighthouse;
n02823750 beer glass; n02841315 binoculars; n02843684 birdhouse; n02883205 bow tie; n02906734
broom; n02909870 bucket; n02939185 cauldron; n02948072 candle; n02950826 cannon; n02951358 canoe;
n02966193 carousel; n02980441 castle; n02992529 mobile phone; n03124170 cowboy hat; n03272010
electric guitar; n03345487 fire truck; n03372029 flute; n03424325 gas mask or respirator; n03452741
grand piano; n03467068 guillotine; n03481172 hammer; n03494278 harmonica; n03495258 harp; n03498962
hatchet; n03594945 jeep; n03602883 joystick; n03630383 lab coat; n03649909 lawn mower; n03676483
lipstick; n03710193 mailbox; n03773504 missile; n03775071 mitten; n03888257 parachute; n03930630
pickup truck; n03947888 pirate ship; n04086273 revolver; n04118538 rugby ball; n04133789 sandal;
n04141076 saxophone; n04146614 school bus; n04147183 schooner; n04192698 shield; n04254680 soccer
ball; n04266014 space shuttle; n04275548 spider web; n04310018 steam locomotive; n04325704 scarf;
n04347754 submarine; n04389033 tank; n04409515 tennis ball; n04465501 tractor; n04487394 trombone;
n04522168 vase; n04536866 violin; n04552348 military aircraft; n04591713 wine bottle; n07614500 ice
cream; n07693725 bagel; n07695742 pretzel; n07697313 cheeseburger; n07697537 hot dog; n07714571
cabbage; n07714990 broccoli; n07718472 cucumber; n07720875 bell pepper; n07734744 mushroom;
n07742313 Granny Smith apple; n07745940 strawberry; n07749582 lemon; n07753275 pineapple; n07753592
banana; n07768694 pomegranate; n07873807 pizza; n07880968 burrito; n07920052 espresso; n09472597
volcano; n09835506 baseball player; n10565667 scuba diver; n12267677 acorn
"""
# The templates that CLIP's authors found to suffice for ImageNet.
TEMPLATES = (
    *("itap of a {}.", "a bad photo of the {}.", "a origami {}.", "a photo of the large {}."),
    *("a {} in a video game.", "art of the {}.", "a photo of the small {}."),
)


def imagenet_r(root: Path) -> DomainSet:
    """Dataset with the classes that are in this data root."""
    folders = (path for path in (root / FOLDER).glob("[!.]*") if path.is_dir())
    classes = tuple(sorted(path.name for path in folders))
    return DomainSet(
        name="imagenet_r",
        domains=STYLES,
        classes=classes,
        reader=partial(_read, classes),
        training=DOMAINBED_DEFAULTS,
        class_names=_class_names(),
        templates=TEMPLATES,
        modality=Image(),
        needs=(FOLDER,),
        download=Download(
            instructions="download https://people.eecs.berkeley.edu/~hendrycks/imagenet-r.tar "
            f"(2.2 GB) and unpack it in the data root, as {FOLDER}",
            license="the images belong to their owners; research use",
        ),
        published=Published(30_000),
    )


def _class_names() -> dict[str, str]:
    """Readable names by WordNet id."""
    pairs = (entry.split(maxsplit=1) for entry in " ".join(NAMES.split("\n")).split(";"))
    return {number: name.strip() for number, name in pairs}


def _read(classes: tuple[str, ...], options: ReadOptions) -> dict[str, Domain]:
    root = options.root.resolve() / FOLDER
    if len(classes) != CLASSES:
        raise DataError(
            f"{root}: {len(classes)} class folders, not {CLASSES}; unpack the archive again"
        )
    files: dict[str, list[LabeledFile]] = {style: [] for style in STYLES}
    for label, name in enumerate(classes):
        for file in sorted((root / name).glob("[!.]*")):
            style = file.name.rpartition("_")[0]
            if style not in files:
                styles = ", ".join(STYLES)
                raise DataError(
                    f"{file}: not named <style>_<number>; styles are {styles}; move it elsewhere"
                )
            files[style].append(LabeledFile(file, label))
    return read_files(root, files, Image(), options)
