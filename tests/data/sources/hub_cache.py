"""Writes repositories into a folder in the layout of the cache of `huggingface_hub`."""

import hashlib
import os
from pathlib import Path

COMMIT = "0123456789abcdef0123456789abcdef01234567"


def put(
    cache: Path, repository: str, files: dict[str, bytes], *, commit=COMMIT, kind="dataset"
) -> Path:
    """Add a repository at a commit, which is its newest; return the folder of the commit."""
    folder = cache / f"{kind}s--{repository.replace('/', '--')}"
    snapshot = folder / "snapshots" / commit
    (folder / "refs").mkdir(parents=True)
    (folder / "blobs").mkdir()
    (folder / "refs" / "main").write_text(commit)
    for name, content in files.items():
        blob = folder / "blobs" / hashlib.sha256(content).hexdigest()
        blob.write_bytes(content)
        target = snapshot / name
        target.parent.mkdir(parents=True, exist_ok=True)
        target.symlink_to(os.path.relpath(blob, target.parent))
    return snapshot
