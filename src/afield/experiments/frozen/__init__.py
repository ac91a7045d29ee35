"""Frozen pretrained networks: which weights are at hand, and the features that they compute."""
