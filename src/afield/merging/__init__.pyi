from .files import FileMerge as FileMerge
from .files import merge_files as merge_files
from .order_statistics import Deltas as Deltas
from .state_dicts import merge as merge
from .state_dicts import scope as scope
from .state_dicts import share as share
