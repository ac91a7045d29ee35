"""Domains that are chosen by name: how they divide a dataset, and what tables say about them."""

from afield.experiments.domain_choice.folds import (
    ALL_DOMAINS,
    TARGETS,
    DomainChoice,
    Fold,
    check_domain_options,
)
from afield.experiments.domain_choice.titles import (
    choice_identity,
    describe_choice,
    is_held_out_share,
    is_single_source,
    named_targets,
)

__all__ = ["ALL_DOMAINS", "TARGETS", "DomainChoice", "Fold", "check_domain_options"]
__all__ += ["choice_identity", "describe_choice", "is_held_out_share", "is_single_source"]
__all__ += ["named_targets"]
