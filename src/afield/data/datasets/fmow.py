"""FMoW: satellite pictures of 62 kinds of land use and buildings in six regions of the world.

Christie, Fendley, Wilson, Mukherjee, *Functional Map of the World*, CVPR 2018, as pictures of
224 × 224 by Koh, Sagawa, Marklund et al., *WILDS*, ICML 2021. The domains are the continents and
``Other``, for countries that are of none. It lies in ``fmow_v1.1`` under the data root, where the
package wilds puts it. FMoW Challenge Public License.

Differs from WILDS: its parts, which go by years, are not used; every labelled picture is in the
domain of its region, those that no part of WILDS has as well. Differs from DomainBed: there the
same domains are called region_0 to region_5. How many pictures a region has could not be confirmed,
so sizes are not checked.
"""

from dataclasses import replace

from afield.data.domains import DOMAINBED_DEFAULTS, DomainSet
from afield.data.modality import IMAGE
from afield.data.sources.wilds import WildsSet

__all__ = ["fmow"]

WILDS = WildsSet(
    name="fmow",
    version="1.1",
    field="region",
    pictures=lambda whole: (f"images/rgb_img_{number}.png" for number in whole.full_idxs),
    table="rgb_metadata.csv",
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
    modality=IMAGE,
    needs=WILDS.needs,
    download=WILDS.source("54 GB", license_name="FMoW Challenge Public License"),
)
