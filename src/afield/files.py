"""Files and folders that are there whole or not at all: written beside their place, then renamed.

What a process that was killed has left behind is cleared away by the next that writes there.
"""

import glob
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

__all__ = ["atomic_write"]


@contextmanager
def atomic_write(path: Path) -> Iterator[Path]:
    """A place beside it to write to; it takes its name at the end, or goes with its new folders.

    A folder takes the place of one that is there, which is kept until then.
    """
    part = path.with_name(f"{path.name}.{os.getpid()}.part")
    made = [folder for folder in path.absolute().parents if not folder.exists()]
    path.parent.mkdir(parents=True, exist_ok=True)
    # A process that was killed could not clear away.
    for leftover in path.parent.glob(f"{glob.escape(path.name)}.*.part"):
        if _is_left(leftover.name[len(path.name) + 1 : -len(".part")]):
            _remove(leftover)
    try:
        yield part
        _put(part, path)
    except BaseException:
        _remove(part)
        with suppress(OSError):  # Others may have put something in.
            for folder in made:
                folder.rmdir()
        raise


def _put(part: Path, path: Path) -> None:
    if part.is_dir() and path.is_dir():
        # No folder can be renamed to one that has something in it.
        old = path.with_name(f"{path.name}.{os.getpid()}.old")
        path.rename(old)
        try:
            part.rename(path)
        except OSError:
            old.rename(path)
            raise
        shutil.rmtree(old)
    else:
        part.replace(path)


def _is_left(process: str) -> bool:
    """Whether this is the number of a process that is no more, or of this one, now to begin."""
    if not process.isdecimal():
        return False
    try:
        # Signal 0 is not sent; it only fails where there is nobody to get it.
        os.kill(int(process), 0)
    except ProcessLookupError:
        return True
    except (OSError, OverflowError):
        return False
    return int(process) == os.getpid()


def _remove(part: Path) -> None:
    if part.is_dir():
        shutil.rmtree(part)
    else:
        part.unlink(missing_ok=True)
