"""Embed pictures once, then compare methods with scikit-learn's own tools, one domain left out.

    python examples/leave_one_group_out.py

The network has random weights, so that this runs offline; without `weights` they are the hub's.
"""

import numpy as np
import sklearn
from sklearn.model_selection import LeaveOneGroupOut, cross_val_score

import afield
from afield.sklearn import DomainClassifier


def main() -> None:
    """Embed, leave each angle out once, say."""
    path = afield.embed("rotated_digits", "emb", backbone="timm:test_efficientnet", weights="none")
    with np.load(path) as file:
        features, label, angle = file["X"], file["y"], file["domain"]
    # Who is left out, and what is trained on: the same array for the splitter and for the method.
    params = {"groups": angle, "domains": angle}
    with sklearn.config_context(enable_metadata_routing=True):
        for method in ("erm", "arith"):
            scores = cross_val_score(
                DomainClassifier(method, steps=100, random_state=0),
                features,
                label,
                cv=LeaveOneGroupOut(),
                params=params,
            )
            print(f"{method}: mean {100 * scores.mean():.1f} %, worst {100 * scores.min():.1f} %")


if __name__ == "__main__":
    main()
