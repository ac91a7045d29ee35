"""Sources of backbones: one file for each prefix of a backbone's name."""
