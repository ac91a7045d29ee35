"""Train a model, and look where its weights lie: the loss around the experts of its domains.

    python examples/look_inside.py

Takes seconds, and writes surface.png and surface.csv.
"""

import afield


def main() -> None:
    """Train, look, save, say."""
    record = afield.train("spirals", "arith", target="turn30", store="runs")
    finding = afield.diagnose("loss_surface", f"runs/{record.run.key}", settings={"points": 9})
    picture, table = finding.save("surface.png")
    score = record.checkpoints[-1].scores["turn30"].main
    print(f"{100 * score.accuracy:.1f} % on the unseen domain; {finding.summary}")
    print(f"{len(finding.data)} numbers in {table}, drawn in {picture}")


if __name__ == "__main__":
    main()
