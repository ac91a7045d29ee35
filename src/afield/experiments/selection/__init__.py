"""Selection: rules that pick a checkpoint, and the values of the checkpoints to pick from."""

from afield.experiments.selection.candidates import (
    selection_value,
    selection_values,
    source_accuracies,
    source_accuracy,
    validation_accuracies,
    validation_accuracy,
)
from afield.experiments.selection.rules import (
    DEFAULT_RULES,
    RULES,
    Division,
    Pick,
    Rule,
    default_rules,
    describe_rules,
    resolve_rules,
)

__all__ = ["DEFAULT_RULES", "RULES", "Division", "Pick", "Rule", "default_rules", "describe_rules"]
__all__ += ["resolve_rules", "selection_value", "selection_values", "source_accuracies"]
__all__ += ["source_accuracy", "validation_accuracies", "validation_accuracy"]
