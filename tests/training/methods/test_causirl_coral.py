import torch

from afield.training.building_blocks.feature_distances import moment_distance
from afield.training.method import risks
from afield.training.methods.causirl_coral import CausIRLCORAL
from tests.training.methods.references import loss_of, unequal


def with_cut(*cuts: int, **settings) -> CausIRLCORAL:
    method = CausIRLCORAL(**settings)
    object.__setattr__(method, "cut", lambda sizes: torch.tensor(cuts))
    return method


def test_cuts_are_below_the_number_of_samples_of_their_domain():
    torch.manual_seed(0)
    cuts = torch.stack([CausIRLCORAL().cut([3, 1, 5]) for _ in range(200)])
    assert cuts.min(dim=0).values.tolist() == [0, 0, 0]
    assert cuts.max(dim=0).values.tolist() == [2, 0, 4]


def test_the_first_samples_of_all_domains_are_one_set_and_the_others_another(model, task, stream):
    batches = unequal(next(stream))
    features = [model.features(batch.x) for batch in batches]
    first = torch.cat([features[0][:2], features[1][:0], features[2][:4]])
    second = torch.cat([features[0][2:], features[1], features[2][4:]])
    learner = CausIRLCORAL().setup(model, task)
    loss = loss_of(with_cut(2, 0, 4, penalty=3.0), learner, batches)
    expected = risks(model, batches).mean() + 3 * moment_distance([first, second])
    torch.testing.assert_close(loss, expected)


def test_a_set_of_fewer_than_two_samples_has_no_distance(model, task, stream):
    batches, learner = next(stream), CausIRLCORAL().setup(model, task)
    for cuts in ((0, 0, 0), (0, 1, 0)):
        loss, logs = with_cut(*cuts).loss(learner, batches)
        assert logs["distance"] == 0
        torch.testing.assert_close(loss, risks(model, batches).mean())
