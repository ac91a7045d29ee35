"""Office-Home: 15,588 images of 65 objects from homes and offices in four styles.

Venkateswara, Eusebio, Chakraborty, Panchanathan, *Deep Hashing Network for Unsupervised Domain
Adaptation*, CVPR 2017. The domains are art, clip art, product images and photographs. License: see
the terms of use on the authors' page; the dataset is used for research.

`afield data get office_home` takes the images from the hub (flwrlabs/office-home). In the data
root: ``office_home/<domain>/<class>/<file>``, as in DomainBed. The folder of the last
domain is ``Real World``, with a space; rename it if your copy has RealWorld or Real_World. Classes
are in the order of the names of their folders, upper case first.
"""

from afield.data.domains import DomainSet, Download
from afield.data.modalities.image import Image
from afield.data.sources.folders import folder_reader
from afield.data.training_settings import DOMAINBED_AVERAGES, DOMAINBED_DEFAULTS

__all__ = ["office_home"]

SIZES = {"Art": 2427, "Clipart": 4365, "Product": 4439, "Real World": 4357}
NAMES = """
Alarm_Clock Backpack Batteries Bed Bike Bottle Bucket Calculator Calendar Candles Chair
Clipboards Computer Couch Curtains Desk_Lamp Drill Eraser Exit_Sign Fan File_Cabinet Flipflops
Flowers Folder Fork Glasses Hammer Helmet Kettle Keyboard Knives Lamp_Shade Laptop Marker
Monitor Mop Mouse Mug Notebook Oven Pan Paper_Clip Pen Pencil Postit_Notes Printer Push_Pin
Radio Refrigerator Ruler Scissors Screwdriver Shelf Sink Sneakers Soda Speaker Spoon TV Table
Telephone ToothBrush Toys Trash_Can Webcam
"""
CLASSES = tuple(NAMES.split())
# Other names are in lower case, with spaces.
SPECIAL_NAMES = {
    "Flipflops": "flip-flops",
    "Postit_Notes": "post-it notes",
    "Soda": "soda can",
    "TV": "TV",
    "ToothBrush": "toothbrush",
}
CLASS_NAMES = {name: name.replace("_", " ").lower() for name in CLASSES} | SPECIAL_NAMES

office_home = DomainSet(
    name="office_home",
    domains=tuple(SIZES),
    classes=CLASSES,
    reader=folder_reader("office_home", tuple(SIZES), CLASSES),
    training=DOMAINBED_DEFAULTS,
    class_names=CLASS_NAMES,
    averages=DOMAINBED_AVERAGES,
    modality=Image(),
    needs=tuple(f"office_home/{domain}" for domain in SIZES),
    download=Download(
        hub="hf:flwrlabs/office-home@d430d44779e929b335be368ab3456484e5de36bb",
        folder="office_home",
        instructions="download OfficeHomeDataset_10072016.zip from "
        "https://www.hemanthdv.org/officeHomeDataset.html, unpack it in the data root and rename "
        "its folder to office_home (the folder of the domain 'Real World' has a space)",
        license="see the authors' page; research use",
    ),
    sizes=SIZES,
)
