"""A model to use: fit, model folder, prediction, export, scikit-learn."""
