"""A register of networks for tests, so that a tiny network can be the one at hand."""

import pytest

from afield.networks import facts, pretrained
from afield.networks.facts import NetworkFacts


def register_only(monkeypatch: pytest.MonkeyPatch, *names: str) -> None:
    """Make these the networks of the level "at hand", with a default that cannot be had."""
    tiny = [NetworkFacts(name, "MIT", "ImageNet-1k labels", level="at hand") for name in names]
    default = NetworkFacts("timm:test_vit.nowhere", "MIT", "nothing", level="fast")
    register = (default, *tiny)
    monkeypatch.setattr(facts, "REGISTER", register)
    monkeypatch.setattr(pretrained, "REGISTER", register)
    monkeypatch.setattr(pretrained, "_download", lambda facts: None)
