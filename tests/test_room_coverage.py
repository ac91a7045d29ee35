"""The table of coverage per room."""

from tests.room_coverage import lines_by_room, table


def test_statements_are_counted_by_room_and_the_least_covered_room_comes_first():
    files = {
        "src/afield/tensors.py": (10, 10),
        "src/afield/data/cache.py": (30, 30),
        "src/afield/data/datasets/pacs.py": (10, 4),
        "src/afield/merging/job.py": (50, 20),
    }
    summaries = {
        name: {"summary": {"num_statements": statements, "covered_lines": covered}}
        for name, (statements, covered) in files.items()
    }
    rooms = lines_by_room(summaries)
    assert rooms == {"ground floor": (10, 10), "data": (40, 34), "merging": (50, 20)}
    lines = [line.split() for line in table(rooms).splitlines()]
    assert lines[1] == ["merging", "50", "30", "40.0%"]
    assert lines[2] == ["data", "40", "6", "85.0%"]
    assert lines[-1] == ["all", "100", "36", "64.0%"]
