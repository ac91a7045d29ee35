"""The scikit-learn classifier, under the name by which it is imported."""

from afield.deployment.sklearn import DomainClassifier as DomainClassifier
