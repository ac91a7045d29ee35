"""Whether a dataset exists, without large imports: a mistyped path is reported at once."""

from difflib import get_close_matches
from pathlib import Path

from afield import registry
from afield.errors import AfieldError, DataError, UnknownNameError

__all__ = ["check_dataset_exists", "dataset_path", "similar_path", "unknown_dataset"]


def dataset_path(name: str) -> Path | None:
    """The file or folder of this name; None if there is none. The suffix .npz may be missing."""
    try:
        path = Path(name).expanduser()
        if name and not path.exists() and path.with_name(f"{path.name}.npz").exists():
            path = path.with_name(f"{path.name}.npz")
        return path if name and path.exists() else None
    except (OSError, RuntimeError, ValueError) as error:
        raise DataError(f"no file or folder {name!r} ({error})") from None


def unknown_dataset(name: str) -> AfieldError:
    """The error about a name that is neither a dataset nor a path, with a guess."""
    if "/" not in name and "." not in name:
        advice = registry.hint(name, registry.names("datasets"))
        return UnknownNameError(f"no dataset, file or folder is called {name!r}; {advice}")
    guess = similar_path(Path(name).expanduser())
    if guess is not None:
        return DataError(f"no file or folder {name}; did you mean {guess}?")
    return DataError(
        f"no file or folder {name}; give a folder root/<domain>/<class>/<file>, an .npz file, "
        "or a table (.csv, .parquet, .jsonl)"
    )


def check_dataset_exists(spec: str) -> None:
    """Raise an error unless this is the name of a dataset, or the path of a file or folder."""
    if spec in registry.names("datasets"):
        return
    # The columns of a table may be named after a question mark.
    name = spec if dataset_path(spec) else spec.partition("?")[0]
    if dataset_path(name) is None:
        raise unknown_dataset(name)


def similar_path(path: Path) -> Path | None:
    """A file or folder beside the missing one with a similar name, in any case."""
    try:
        names = {child.name.lower(): child.name for child in path.parent.iterdir()}
    except OSError:
        return None
    close = get_close_matches(path.name.lower(), names, n=1)
    return path.with_name(names[close[0]]) if close else None
