"""Help texts of the options of a benchmark that are longer than a line."""

from afield import registry
from afield.experiments.selection import describe_rules

__all__ = [
    "ADAPT_HELP",
    "AVERAGE_HELP",
    "BASE_STEPS_HELP",
    "CLASSES_HELP",
    "DEFAULT_MERGES",
    "DEFAULT_METHODS",
    "DOMAIN_HELP",
    "EXPERT_DRAWS_HELP",
    "FINETUNE_HELP",
    "LABEL_HELP",
    "METHODS_HELP",
    "ON_HELP",
    "RULES_HELP",
    "SINGLE_SOURCE_HELP",
    "SOURCES_HELP",
    "START",
    "START_HELP",
    "STORE_HELP",
    "TARGETS_HELP",
    "TEXT_HELP",
    "VALIDATE_ON_HELP",
]

# The method from whose head other methods can start.
START = "linear_probe"
# The methods and merges of a benchmark that names neither.
DEFAULT_METHODS = ("erm", "arith", "seed_category", "dmg", "crossgrad")
DEFAULT_MERGES = ("score", "average")
METHODS_HELP = (
    "Methods to compare, separated by commas, or 'all'. "
    f"Default, without --merges: {', '.join(DEFAULT_METHODS)}, and the merges "
    f"{' and '.join(DEFAULT_MERGES)}. See `afield list methods`."
)
RULES_HELP = (
    "Rules that select a model, separated by commas, or 'all'; one table per rule. "
    f"{describe_rules()}. Default: the rules that need no additional runs."
)
LABEL_HELP = "Column of a table with the class of each sample. Default: the one called label or y."
DOMAIN_HELP = "Column of a table with the domain of each sample. Default: the one called domain."
TEXT_HELP = "Column of a table with texts to classify. Default: the one called text or sentence."
BASE_STEPS_HELP = (
    "Training steps of the base model, from which all experts start, if the network has no "
    "pretrained weights. Default: a fifth of the experts' steps."
)
AVERAGE_HELP = (
    f"Weight averaging during training: {', '.join(registry.names('averages'))}. 'last' uses the "
    "last weights, without averaging."
)
CLASSES_HELP = (
    "Classes that a network has outputs for: those of its sources, or all classes of the dataset. "
    "Samples of other classes are left out of the accuracy and reported apart. Default: sources "
    "for your own data, all for the datasets of `afield list datasets`."
)
START_HELP = (
    f"Where training starts: {START} (a head fitted on frozen features). Default: the "
    "network's initial weights, with a new head."
)
ADAPT_HELP = (
    "Test-time adaptations, separated by commas, or 'all'. Each adds a row per method or merge, "
    f"which sees unlabelled samples of the target: {', '.join(registry.names('adaptations'))}."
)
FINETUNE_HELP = (
    "Whether to train the whole network, or only a small one on the features that the frozen "
    "network computes once. Default: a network given by --backbone is trained; for a folder of "
    "photographs without --backbone, the pretrained network whose weights are at hand is frozen."
)
EXPERT_DRAWS_HELP = (
    "Merge this many hyperparameter samples of one method, trained on all sources (model soups), "
    "instead of one expert per source."
)
ON_HELP = (
    "Where to run: local (processes on this machine), ray (a Ray cluster that runs here, or else "
    "a new one on this machine), or ray://HOST:PORT (another cluster)."
)
STORE_HELP = (
    "Folder for records and weights, or an address such as s3://bucket/runs. Runs that it already "
    "holds are not repeated."
)
TARGETS_HELP = (
    "Domains to test on, each left out in turn: sketch,photo. With a plus sign they are left out "
    "together: sketch+photo. Default: every domain."
)
SOURCES_HELP = "Domains to train one model on, for all targets. Default: all other domains."
VALIDATE_ON_HELP = (
    "Domains to select a model with (rule 'validation'); they are neither trained nor tested on."
)
SINGLE_SOURCE_HELP = (
    "Train on each domain alone in turn and test on all others. The table has one column per "
    "source, with the mean over the others."
)
