"""FMoW: satellite images of 62 kinds of buildings and land use in six regions of the world.

Christie, Fendley, Wilson, Mukherjee, *Functional Map of the World*, CVPR 2018, as images of
224 × 224 by Koh, Sagawa, Marklund et al., *WILDS*, ICML 2021. The domains are the continents and
``Other``, for countries on none of them. The data are in ``fmow_v1.1`` in the data root, where the
package wilds puts them. License: FMoW Challenge Public License.

The number of images per region could not be confirmed, so sizes are not checked.

Differs from WILDS: its splits, which are by year, are not used. Every labeled image is in the
domain of its region, including images that are in no split of WILDS. `fmow_wilds` uses the splits.

Differs from DomainBed: there the same domains are called region_0 to region_5.
"""

from dataclasses import replace

from afield.data.domains import DomainSet
from afield.data.modalities.image import Image
from afield.data.sources.wilds import WildsSet
from afield.data.training_settings import DOMAINBED_DEFAULTS

__all__ = ["fmow"]

WILDS = WildsSet(
    name="fmow",
    version="1.1",
    field="region",
    image_paths=lambda dataset: (f"images/rgb_img_{number}.png" for number in dataset.full_idxs),
    table="rgb_metadata.csv",
    groups=("region", "year"),
    ungrouped=("Other",),
)
REGIONS = ("Africa", "Americas", "Asia", "Europe", "Oceania", "Other")
NAMES = """
airport airport_hangar airport_terminal amusement_park aquaculture archaeological_site barn
border_checkpoint burial_site car_dealership construction_site crop_field dam debris_or_rubble
educational_institution electric_substation factory_or_powerplant fire_station flooded_road fountain
gas_station golf_course ground_transportation_station helipad hospital impoverished_settlement
interchange lake_or_pond lighthouse military_facility multi-unit_residential nuclear_powerplant
office_building oil_or_gas_facility park parking_lot_or_garage place_of_worship police_station port
prison race_track railway_bridge recreational_facility road_bridge runway shipyard shopping_mall
single-unit_residential smokestack solar_farm space_facility stadium storage_tank surface_mine
swimming_pool toll_booth tower tunnel_opening waste_disposal water_treatment_facility wind_farm zoo
"""

fmow = DomainSet(
    name="fmow",
    domains=REGIONS,
    classes=tuple(NAMES.split()),
    reader=WILDS.reader(REGIONS),
    training=replace(DOMAINBED_DEFAULTS, every=100),
    modality=Image(),
    needs=WILDS.needs,
    download=WILDS.download("54 GB", license_name="FMoW Challenge Public License"),
)
