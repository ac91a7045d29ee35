"""Seeds derived from names, and the state of torch's global generators.

A run draws its random numbers from torch's global generators, seeded once, or from generators
seeded by `derive_seed`. So the state of torch's generators is the whole random state of a run.
Only the functions that need torch import it: seeds are part of keys, which `afield table` reads.
"""

import hashlib
import json
from collections.abc import Mapping
from typing import Any


def derive_seed(*words: Any) -> int:
    """Seed that depends only on these words: the same on every machine.

    >>> derive_seed("a", 1) == derive_seed("a", 1) != derive_seed("a", 2)
    True
    """
    digest = hashlib.sha256(json.dumps(words).encode()).digest()
    return int.from_bytes(digest[:8], "big") >> 1


def capture_rng_state() -> dict[str, Any]:
    """State of torch's generators on all devices."""
    import torch

    cuda = torch.cuda.get_rng_state_all() if torch.cuda.is_available() else []
    return {"cpu": torch.get_rng_state(), "cuda": cuda}


def restore_rng_state(state: Mapping[str, Any]) -> None:
    """Set torch's generators to a saved state."""
    import torch

    torch.set_rng_state(state["cpu"])
    if state["cuda"]:
        torch.cuda.set_rng_state_all(state["cuda"])
