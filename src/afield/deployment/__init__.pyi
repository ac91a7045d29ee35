from .exporting import export as export
from .fitting import fit as fit
from .hub import push as push
from .merged_model import merge_model as merge_model
from .model import Model as Model
from .model import Prediction as Prediction
from .model import load as load
from .sklearn import DomainClassifier as DomainClassifier
