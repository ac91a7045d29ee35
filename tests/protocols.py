"""Runs for tests: the usual protocols, asked for in one call."""

from afield.runs.selection import DEFAULT_RULES
from afield.studies import merge_protocol
from afield.studies.planning import method_runs
from afield.studies.protocol import ALL_DOMAINS, Protocol


def leave_one_out(dataset, methods, *, choice=ALL_DOMAINS, trials=3, draws=1, rules=(), **training):
    """The runs that leave each domain out once, or divide the domains as a choice says."""
    protocol = Protocol(choice, trials=trials, draws=draws, rules=tuple(rules))
    return method_runs(dataset, methods, protocol, **training)


def hold_out(dataset, methods, *, hold_out=0.25, validate=0.1, train_on=(), rules=(), **options):
    """The runs that hold out a share of the domains."""
    shares = {"hold_out": hold_out, "validate": validate, "train_on": tuple(train_on)}
    counts = {name: options.pop(name) for name in ("trials", "draws") if name in options}
    protocol = Protocol(**shares, **counts, rules=tuple(rules))
    return method_runs(dataset, methods, protocol, **options)


def merging_runs(
    dataset, merges, *, choice=ALL_DOMAINS, trials=3, draws=1, rules=DEFAULT_RULES, **options
):
    """The runs that merge the experts of the sources of each fold."""
    protocol = Protocol(choice, trials=trials, draws=draws, rules=tuple(rules))
    return merge_protocol.merging_runs(dataset, merges, protocol, **options)
