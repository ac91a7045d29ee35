"""The scikit-learn classifier, under the name by which it is imported."""
