"""Office-Home: 15,588 pictures of 65 things of home and office in four styles.

Venkateswara, Eusebio, Chakraborty, Panchanathan, *Deep Hashing Network for Unsupervised Domain
Adaptation*, CVPR 2017. The domains are art, clip art, pictures of products and photographs:
``office_home/<domain>/<class>/<file>`` under the data root, as in DomainBed. The last domain's
folder is ``Real World``, with a space; some copies write RealWorld or Real_World and must be
renamed. Classes are in the order of their folders' names, capitals first. The authors' page has
the terms of use; it is used for research.
"""

from afield.data.domains import DOMAINBED_DEFAULTS, DomainSet, Download
from afield.data.modality import IMAGE
from afield.data.sources.folders import folder_reader

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

office_home = DomainSet(
    name="office_home",
    domains=tuple(SIZES),
    classes=CLASSES,
    reader=folder_reader("office_home", tuple(SIZES), CLASSES),
    training=DOMAINBED_DEFAULTS,
    modality=IMAGE,
    needs=tuple(f"office_home/{domain}" for domain in SIZES),
    download=Download(
        instructions="get OfficeHomeDataset_10072016.zip from "
        "https://www.hemanthdv.org/officeHomeDataset.html, unpack it in the data root and rename "
        "its folder to office_home (the domain 'Real World' is written with a space)",
        license="see the authors' page; research use",
    ),
    sizes=SIZES,
)
