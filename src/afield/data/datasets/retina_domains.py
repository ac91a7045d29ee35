"""Retina: photographs of the retina from four datasets, with five grades of a disease.

The domains are four datasets of diabetic retinopathy: APTOS 2019 (Karthik, Maggie, Dane, Kaggle);
DDR (Li et al., *Diagnostic assessment of deep learning algorithms for diabetic retinopathy
screening*, Information Sciences 2019); IDRiD (Porwal et al., Data 2018); Messidor (Decencière et
al., *Feedback on a publicly distributed image database*, Image Anal. Stereol. 2014).

Each dataset has its own page, terms and table of grades, so you have to sort the images yourself.
In the data root: ``retina_domains/<domain>/<grade>/<file>``, with the folders nodr, mild_npdr,
moderate_npdr, severe_npdr and pdr for the grades 0 to 4. This is the layout of GDRBench (Che et
al., MICCAI 2023). Classes are in the order of the grades.

- APTOS: ``train_images``; the grade is ``diagnosis`` in train.csv.
- DDR: all three splits of ``DR_grading``; the grades are in the lists beside them. Leave out grade
  5, which means ungradable.
- IDRID: both splits of "B. Disease Grading"; the grade is in the column ``Retinopathy grade``. The
  splits share file names, so rename the files of one.
- MESSIDOR: Messidor-2; the grade is ``adjudicated_dr_grade`` of google-brain/messidor2-dr-grades on
  Kaggle. The first Messidor has only the grades 0 to 3.

The number of files depends on this sorting, so sizes are not checked.
"""

from afield.data.domains import DomainSet, Download, Published
from afield.data.modalities.image import Image
from afield.data.sources.folders import folder_reader
from afield.data.training_settings import DOMAINBED_DEFAULTS

__all__ = ["retina_domains"]

# As published: gradable photographs only.
SIZES = {"APTOS": 3662, "DDR": 12_522, "IDRID": 516, "MESSIDOR": 1744}
DOMAINS = tuple(SIZES)
GRADES = ("nodr", "mild_npdr", "moderate_npdr", "severe_npdr", "pdr")
CLASS_NAMES = {
    "nodr": "no diabetic retinopathy",
    "mild_npdr": "mild nonproliferative diabetic retinopathy",
    "moderate_npdr": "moderate nonproliferative diabetic retinopathy",
    "severe_npdr": "severe nonproliferative diabetic retinopathy",
    "pdr": "proliferative diabetic retinopathy",
}
TEMPLATES = (
    "a fundus photograph of {}.",
    "a color fundus image showing {}.",
    "a retinal image of an eye with {}.",
    "a photo of a retina with {}.",
)

retina_domains = DomainSet(
    name="retina_domains",
    domains=DOMAINS,
    classes=GRADES,
    reader=folder_reader("retina_domains", DOMAINS, GRADES),
    training=DOMAINBED_DEFAULTS,
    class_names=CLASS_NAMES,
    templates=TEMPLATES,
    modality=Image(),
    needs=tuple(f"retina_domains/{domain}" for domain in DOMAINS),
    download=Download(
        instructions="download APTOS 2019, DDR, IDRiD and Messidor-2 from their pages and sort the "
        "images into retina_domains/<domain>/<grade> in the data root, with the grades "
        f"{', '.join(GRADES)} (see `afield explain retina_domains`)",
        license="four different ones; Messidor: research and education, no redistribution",
    ),
    published=Published(SIZES),
)
