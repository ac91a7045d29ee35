"""`afield new method`: a file and a test that work as they are."""

import subprocess
import sys

import pytest


@pytest.mark.slow
def test_the_new_method_passes_its_new_test(afield, tmp_path):
    code, out, _ = afield("new", "method", "my_idea")
    assert code == 0
    assert "my_idea.py" in out
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "test_my_idea.py"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-2000:]
    assert "2 passed" in done.stdout


def test_an_existing_file_is_not_replaced(afield, refusal):
    assert afield("new", "method", "twice")[0] == 0
    assert "exists already" in refusal("new", "method", "twice")


@pytest.mark.parametrize("name", ["class", "true", "_", "erm", "best", "no-name", ""])
def test_a_word_of_python_or_of_afield_is_no_name(refusal, name):
    assert "not a name" in refusal("new", "method", name)
