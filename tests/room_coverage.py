"""Print how much of each room the tests execute, from the JSON report of coverage.py."""

import json
import sys
from collections import defaultdict
from pathlib import Path

GROUND_FLOOR = "ground floor"


def lines_by_room(files: dict[str, dict]) -> dict[str, tuple[int, int]]:
    """Statements of each room, and how many of them were executed."""
    result: dict[str, list[int]] = defaultdict(lambda: [0, 0])
    for name, file in files.items():
        parts = name.partition("afield/")[2].split("/")
        room = parts[0] if len(parts) > 1 else GROUND_FLOOR
        result[room][0] += file["summary"]["num_statements"]
        result[room][1] += file["summary"]["covered_lines"]
    return {room: (statements, covered) for room, (statements, covered) in result.items()}


def table(rooms: dict[str, tuple[int, int]]) -> str:
    """One line for each room, the least covered first, and one for all."""
    ranked = sorted(rooms.items(), key=lambda item: item[1][1] / max(1, item[1][0]))
    total = tuple(map(sum, zip(*rooms.values(), strict=True)))
    rows = [f"{'room':<14}{'statements':>12}{'missed':>8}{'covered':>9}"]
    for room, (statements, covered) in [*ranked, ("all", total)]:
        share = f"{covered / max(1, statements):.1%}"
        rows.append(f"{room:<14}{statements:>12}{statements - covered:>8}{share:>9}")
    return "\n".join(rows)


if __name__ == "__main__":
    report = json.loads(Path(sys.argv[1]).read_text())
    print(table(lines_by_room(report["files"])))  # noqa: T201  it is what this is for
