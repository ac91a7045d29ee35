"""Retina: photographs of the back of the eye from four datasets, in five grades of a disease.

The domains are four datasets of diabetic retinopathy: APTOS 2019 (Karthik, Maggie, Dane, Kaggle);
DDR (Li et al., *Diagnostic assessment of deep learning algorithms for diabetic retinopathy
screening*, Information Sciences 2019); IDRiD (Porwal et al., Data 2018); Messidor (Decencière et
al., *Feedback on a publicly distributed image database*, Image Anal. Stereol. 2014). Each has its
own page, terms and table of grades, so a person sorts the pictures:
``retina_domains/<domain>/<grade>/<file>`` under the data root, with the folders nodr, mild_npdr,
moderate_npdr, severe_npdr and pdr for the grades 0 to 4. This is the layout of GDRBench (Che et
al., MICCAI 2023), and classes are in the order of the grades.

- APTOS: ``train_images``, graded by ``diagnosis`` in train.csv.
- DDR: ``DR_grading``, all three parts, graded by the lists beside them; grade 5 is ungradable and
  left out.
- IDRID: "B. Disease Grading", both parts, graded by the column ``Retinopathy grade``; the parts
  share names, so rename the files of one.
- MESSIDOR: Messidor-2 and ``adjudicated_dr_grade`` of Kaggle's google-brain/messidor2-dr-grades;
  the first Messidor has only the grades 0 to 3.

How many files there are depends on this sorting, so sizes are not checked.
"""

from afield.data.domains import DOMAINBED_DEFAULTS, DomainSet, Download
from afield.data.modality import IMAGE
from afield.data.sources.folders import folder_reader

__all__ = ["retina_domains"]

DOMAINS = ("APTOS", "DDR", "IDRID", "MESSIDOR")
GRADES = ("nodr", "mild_npdr", "moderate_npdr", "severe_npdr", "pdr")

retina_domains = DomainSet(
    name="retina_domains",
    domains=DOMAINS,
    classes=GRADES,
    reader=folder_reader("retina_domains", DOMAINS, GRADES),
    training=DOMAINBED_DEFAULTS,
    modality=IMAGE,
    needs=tuple(f"retina_domains/{domain}" for domain in DOMAINS),
    download=Download(
        instructions="get APTOS 2019, DDR, IDRiD and Messidor-2 from their pages and sort the "
        "pictures "
        "into retina_domains/<domain>/<grade> in the data root, with the grades "
        f"{', '.join(GRADES)} (`afield explain retina_domains` says more)",
        license="four different ones; Messidor: research and education, no redistribution",
    ),
)
