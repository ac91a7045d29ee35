from . import (
    cli as cli,
    data as data,
    deployment as deployment,
    diagnosis as diagnosis,
    errors as errors,
    hyperparameters as hyperparameters,
    merging as merging,
    networks as networks,
    reporting as reporting,
    runs as runs,
    sklearn as sklearn,
    studies as studies,
    training as training,
)
from .data import find_dataset as find_dataset
from .data import get_dataset as get_dataset
from .data import inspect_dataset as inspect_dataset
from .deployment import Model as Model
from .deployment import estimate as estimate
from .deployment import evaluate as evaluate
from .deployment import export as export
from .deployment import fit as fit
from .deployment import load as load
from .deployment import merge_model as merge_model
from .deployment import push as push
from .diagnosis import diagnose as diagnose
from .errors import AfieldError as AfieldError
from .runs import Failure as Failure
from .runs import Local as Local
from .runs import Pick as Pick
from .runs import Ray as Ray
from .runs import Record as Record
from .runs import Run as Run
from .runs import Store as Store
from .studies import embed as embed
from .studies import train as train
from .merging import merge as merge
from .merging import merge_files as merge_files
from .registry import find as find
from .registry import names as names
from .reporting import bench as bench
from .reporting import tabulate as tabulate
from .reporting import write_report as write_report
