"""Seeds depend on words alone, and saved generators go on as if nothing had happened."""

import numpy as np
import torch

from afield.seeds import capture_rng_state, derive_seed, restore_rng_state


def test_a_seed_is_the_same_number_on_every_machine():
    assert derive_seed("parts", 0, "sketch") == 1615256764170771137
    assert derive_seed("run", ("photo", "cartoon"), 1, 2) == 9140904745680890112


def test_other_words_or_another_order_give_another_seed():
    words = [("a", 1), ("a", 2), (1, "a"), ("a", "1"), ("a1",), ("a", 1, None), (("a", 1),)]
    assert len({derive_seed(*each) for each in words}) == len(words)


def test_a_seed_fits_the_generators_of_torch_and_numpy():
    seeds = [derive_seed("fits", i) for i in range(200)]
    assert all(0 <= each < 2**63 for each in seeds)
    assert max(seeds) > 2**62
    torch.Generator().manual_seed(max(seeds))
    np.random.default_rng(max(seeds))


def test_a_restored_generator_draws_what_it_drew_before(tmp_path):
    torch.manual_seed(0)
    torch.rand(3)
    torch.save(capture_rng_state(), tmp_path / "state.pt")
    expected = torch.rand(5), torch.randperm(10)
    torch.manual_seed(1)
    restore_rng_state(torch.load(tmp_path / "state.pt", weights_only=True))
    assert torch.equal(torch.rand(5), expected[0])
    assert torch.equal(torch.randperm(10), expected[1])
