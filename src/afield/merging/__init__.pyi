from .files import FileMerge as FileMerge
from .files import merge_files as merge_files
from .order_statistics import Deltas as Deltas
from .scopes import scope as scope
from .scopes import share as share
from .job import merge as merge
