"""Families of backbones, one per file; `afield.networks.backbone` defines what a family is."""
