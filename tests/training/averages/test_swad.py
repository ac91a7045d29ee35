"""SWAD's default against the authors' code, its other form against what the paper says.

The weights after step s are the s-th unit vector, so what is deployed is the share of every step.
"""

import io
import random
from collections import deque
from itertools import accumulate, takewhile

import numpy as np
import pytest
import torch
from torch import nn

from afield.errors import SpecError
from afield.training.averages.swad import SWAD
from afield.training.scores import Checkpoint, Score, Scores
from tests.files import GOLDEN

REFERENCE = np.load(GOLDEN / "swad.npz")
SEQUENCES = ("early_converge", "never_converges", "converge_then_lower", "converge_last")
SETTINGS = {
    "default_3_6_0.3": {"converge": 3, "patience": 6, "slack": 0.3},
    "vlcs_3_6_0.2": {"converge": 3, "patience": 6, "slack": 0.2},
    "eq_3_3_0.3": {"converge": 3, "patience": 3, "slack": 0.3},
    "small_tol_4_2_0.3": {"converge": 4, "patience": 2, "slack": 0.3},
}
FORMS = ("code", "paper")


def checkpoint(*losses, step=1):
    """A checkpoint with one loss for each source domain."""
    scores = {
        f"domain{i}": Scores(probe=Score(0.5, 0.5, float(loss), 10))
        for i, loss in enumerate(losses)
    }
    return Checkpoint(step, scores, {})


def begun(average, count):
    """The average and what it follows, a model with as many weights as there will be steps."""
    model = nn.Linear(count, 1, bias=False, dtype=torch.float64)
    average.setup(model, steps=count)
    return model


def move(model, step):
    with torch.no_grad():
        model.weight.zero_()
        model.weight[0, step] = 1.0


def moments(losses, sizes):
    """Every step with the loss of the checkpoint that comes after it, if one does."""
    ends = dict(zip(accumulate(sizes), losses, strict=True))
    return [(step, ends.get(step + 1)) for step in range(sum(sizes))]


def go_on(average, model, rest):
    """Take these steps and checkpoints, to the end of them or of the valley; how many steps."""
    taken = 0
    for step, loss in rest:
        move(model, step)
        average.after_step(model)
        taken += 1
        if loss is not None:
            average.after_checkpoint(checkpoint(loss, step=step + 1))
            if average.done:
                break
    return taken


def followed(average, losses, sizes):
    """The share of every step, and how many there were."""
    steps = go_on(average, begun(average, sum(sizes)), moments(losses, sizes))
    return shares(average), steps


def shares(average):
    return average.model.weight.detach()[0].clone()


def agree(result, expected):
    torch.testing.assert_close(result, expected, rtol=0, atol=1e-10)


@pytest.mark.parametrize("setting", SETTINGS)
@pytest.mark.parametrize("sequence", SEQUENCES)
def test_shares_and_end_are_those_of_the_authors_code(sequence, setting):
    losses, every = REFERENCE[f"{sequence}/losses"], int(REFERENCE["freq"])
    known = {
        name: REFERENCE[f"{sequence}/{setting}/{name}"] for name in ("coef", "dead", "stopped")
    }
    average = SWAD(**SETTINGS[setting])
    # Their first segment is the step with number 0 alone.
    result, steps = followed(average, losses, [1] + [every] * (len(losses) - 1))
    agree(result, torch.from_numpy(known["coef"]))
    assert average.done == bool(known["dead"])
    last = int(known["stopped"]) if average.done else (len(losses) - 1) * every
    assert steps - 1 == last


def of_the_paper(losses, sizes, *, converge, patience, slack):
    """The share of every step, and how many there are, by the words of the paper."""
    end, last = len(losses), len(losses)
    start = None
    for seen in range(converge, len(losses) + 1):
        window = losses[seen - converge : seen]
        if start is None and window[0] == min(window):
            start, bound = seen - converge, (1 + slack) * sum(window) / converge
        window = losses[max(0, seen - patience) : seen]
        # A window that is all above the bound lies beyond the end.
        if start is not None and seen - patience >= start and min(window) > bound:
            end, last = seen - patience, seen
            break
    borders = [0, *accumulate(sizes)]
    first = borders[len(losses) - 1 if start is None else start]
    result = torch.zeros(sum(sizes), dtype=torch.float64)
    result[first : borders[end]] = 1 / (borders[end] - first)
    return result, borders[last]


# Falls to 0.5, stays, and leaves for good: with three to converge the bound is 1.3 · 0.51.
VALLEY = [2.0, 1.0, 0.5, 0.51, 0.52, 0.6, 0.55, 0.9, 0.95, 0.97, 0.9, 0.99, 1.2]


@pytest.mark.parametrize(
    ("losses", "settings", "segments", "seen"),
    [
        # Never for six checkpoints above the bound: to the end of training.
        (VALLEY[:12], {"patience": 6}, (2, 12), 12),
        (VALLEY, {"patience": 6}, (2, 7), 13),
        (VALLEY, {"patience": 3}, (2, 7), 10),
        (VALLEY, {"patience": 1}, (2, 7), 8),
        # The bound is 1.1 · 0.51: one checkpoint in the middle of the valley is above it.
        (VALLEY, {"patience": 1, "slack": 0.1}, (2, 5), 6),
        (VALLEY, {"patience": 2, "slack": 0.1}, (2, 7), 9),
        # Never the least of its window: the last segment.
        ([9.0, 8.0, 7.0, 6.0, 5.0], {}, (4, 5), 5),
        ([1.0, 2.0], {}, (1, 2), 2),
        # More to converge than to be patient: what lies between is in the valley.
        (VALLEY, {"converge": 5, "patience": 2}, (2, 7), 9),
        ([0.5, 0.6, 0.6, 3.0, 3.0], {"converge": 5, "patience": 2}, (0, 5), 5),
        ([0.5, 0.6, 0.6, 3.0, 3.0, 3.0], {"converge": 5, "patience": 2}, (0, 4), 6),
        ([0.5, 0.6, 0.6, 0.6, 3.0], {"converge": 5, "patience": 2}, (0, 5), 5),
        # Every checkpoint opens a valley; it ends where the loss has risen.
        ([3.0, 2.0, 3.5, 4.0], {"converge": 1, "patience": 2}, (0, 4), 4),
        ([3.0, 2.0, 4.0, 4.1], {"converge": 1, "patience": 2}, (0, 2), 4),
    ],
    ids=str,
)
def test_the_papers_form_is_the_mean_of_all_steps_from_start_to_end(
    losses, settings, segments, seen
):
    sizes = [3, 4, 1, 5, 2, 4, 4, 3, 1, 2, 6, 1, 2][: len(losses)]
    average = SWAD(form="paper", **settings)
    result, steps = followed(average, losses, sizes)
    first, last = (sum(sizes[:segment]) for segment in segments)
    expected = torch.zeros(sum(sizes), dtype=torch.float64)
    expected[first:last] = 1 / (last - first)
    agree(result, expected)
    assert steps == sum(sizes[:seen])
    assert average.done == (segments[1] < seen)


@pytest.mark.parametrize("setting", SETTINGS)
def test_the_papers_form_is_what_the_paper_says_on_any_losses(setting):
    drawn, ends = random.Random(0), set()
    for _ in range(60):
        count = drawn.randint(1, 25)
        # Falls, then rises, with noise: valleys that begin and end at all places.
        lowest = drawn.uniform(0, count)
        losses = [0.5 + 0.1 * abs(t - lowest) + drawn.uniform(0, 0.3) for t in range(count)]
        sizes = [drawn.randint(1, 5) for _ in range(count)]
        average = SWAD(form="paper", **SETTINGS[setting])
        expected, steps = of_the_paper(losses, sizes, **SETTINGS[setting])
        result, taken = followed(average, losses, sizes)
        agree(result, expected)
        assert taken == steps
        ends.add((average.done, taken < sum(sizes), bool(result[-1])))
    assert len(ends) >= 3, "all of a kind: the test has lost its point"


@pytest.mark.parametrize("form", FORMS)
def test_at_every_checkpoint_shares_are_of_a_mean(form):
    average = SWAD(patience=2, form=form)
    model = begun(average, 5 * len(VALLEY))
    rest = moments(VALLEY, [5] * len(VALLEY))
    for i in range(0, len(rest), 5):
        go_on(average, model, rest[i : i + 5])
        result = shares(average)
        assert (result >= 0).all()
        agree(result.sum(), torch.tensor(1.0, dtype=torch.float64))
        assert not result[i + 5 :].any()
        if average.done:
            break
    assert average.done


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("patience", [1, 2, 3])
def test_nothing_after_the_end_of_the_valley_is_counted(form, patience):
    average = SWAD(patience=patience, form=form)
    result, steps = followed(average, VALLEY, [5] * len(VALLEY))
    assert average.done
    assert steps == 5 * (7 + patience)
    # The checkpoints that tell the end are beyond it, and what lies before the start is not in it.
    assert not result[5 * 7 :].any()
    assert result[5 * 6 : 5 * 7].all()
    assert not result[: 5 * 2].any()


def test_the_valley_does_not_end_before_it_has_begun():
    average = SWAD(converge=3, patience=1)
    followed(average, [1.0, 2.0, 1.9, 1.8, 1.7, 1.6, 1.5], [2] * 7)
    assert not average.done
    followed(average, [1.0, 1.1, 1.2, 1.1, 1.9], [2] * 5)
    assert average.done


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("setting", SETTINGS)
def test_over_a_constant_model_it_is_that_model_wherever_the_valley_is(form, setting):
    average = SWAD(form=form, **SETTINGS[setting])
    model = nn.Linear(4, 3)
    average.setup(nn.Linear(4, 3), steps=100)
    for loss in VALLEY:
        for _ in range(3):
            average.after_step(model)
        average.after_checkpoint(checkpoint(loss))
        for mine, its in zip(average.model.parameters(), model.parameters(), strict=True):
            torch.testing.assert_close(mine, its)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(("converge", "patience"), [(3, 6), (3, 2), (4, 2)])
def test_its_state_survives_a_kill_at_every_step(form, converge, patience):
    settings = {"form": form, "converge": converge, "patience": patience}
    losses, sizes = VALLEY, [1, *[3] * (len(VALLEY) - 1)]
    rest = moments(losses, sizes)
    whole = SWAD(**settings)
    expected, steps = followed(whole, losses, sizes)
    assert whole.done
    for cut in range(steps + 1):
        broken, again = SWAD(**settings), SWAD(**settings)
        go_on(broken, begun(broken, len(rest)), rest[:cut])
        file = io.BytesIO()
        torch.save(broken.state_dict(), file)
        file.seek(0)
        model = begun(again, len(rest))
        again.load_state_dict(torch.load(file, weights_only=True))
        assert torch.equal(shares(again), shares(broken))
        assert again.done == broken.done == (cut == steps)
        if not again.done:
            assert go_on(again, model, rest[cut:]) == steps - cut
        assert torch.equal(shares(again), expected)
        assert again.done


@pytest.mark.parametrize("form", FORMS)
def test_the_loss_is_the_mean_over_the_domains_of_their_probe_parts(form):
    alone, among = SWAD(patience=2, form=form), SWAD(patience=2, form=form)
    expected, steps = followed(alone, VALLEY, [2] * len(VALLEY))
    model = begun(among, 2 * len(VALLEY))
    for t, loss in enumerate(VALLEY[: steps // 2]):
        for step in (2 * t, 2 * t + 1):
            move(model, step)
            among.after_step(model)
        # Neither domain alone has the valley, nor have all samples together.
        noise, falling = Score(0.0, 0.0, 100.0 * (t % 2), 10), 1.0 - 0.05 * t
        small = Score(0.5, 0.5, 2 * loss - falling, 1)
        parts = {
            "small": Scores(main=noise, probe=small, sample=noise),
            "large": Scores(main=noise, probe=Score(0.5, 0.5, falling, 1000)),
            "unread": Scores(main=noise),
        }
        assert not among.done
        among.after_checkpoint(Checkpoint(2 * t + 2, parts, {"loss": 100.0}))
    assert alone.done
    assert among.done
    assert torch.equal(shares(among), expected)


def test_the_default_and_the_papers_form_are_not_the_same():
    both = [followed(SWAD(form=form), VALLEY, [5] * len(VALLEY))[0] for form in FORMS]
    assert not torch.allclose(*both)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"converge": 0}, "swad.converge=0: must not be below 1"),
        ({"patience": -2}, "swad.patience=-2: must not be below 1"),
        ({"slack": -0.5}, "swad.slack=-0.5: must not be below 0"),
    ],
)
def test_settings_without_a_meaning_are_refused(wrong, message):
    with pytest.raises(SpecError, match=f"^{message}$"):
        SWAD(**wrong)


@pytest.mark.parametrize("form", ["code", "paper"])
@pytest.mark.parametrize("sequence", [[2.0, 1.8, 1.6], VALLEY])
def test_the_record_says_which_steps_are_in_the_mean(form, sequence):
    """They are the first and the last whose weight is not zero."""
    every, average = 4, SWAD(form=form)
    model = begun(average, every * len(sequence))
    rest = moments(sequence, [every] * len(sequence))
    for start in range(0, len(rest), every):
        go_on(average, model, rest[start : start + every])
        used = shares(average).nonzero().flatten() + 1
        logs = average.logs()
        assert (logs["averaged_from"], logs["averaged_to"]) == (used[0], used[-1])
        assert logs["valley"] == (average.begin is not None)
        if average.done:
            break


@pytest.mark.parametrize("slack", [0.0, 0.5])
def test_a_loss_that_equals_the_bound_is_in_the_valley_in_the_papers_form(slack):
    # The bound is 1, or 1.5: every loss here equals it or is above.
    edge = 1 + slack
    losses = [1.0, 1.0, edge, edge, edge, 2.0, 2.0]
    for patience in (1, 2, 3):
        settings = {"converge": 2, "patience": patience, "slack": slack}
        expected, steps = of_the_paper(losses, [2] * len(losses), **settings)
        result, taken = followed(SWAD(form="paper", **settings), losses, [2] * len(losses))
        agree(result, expected)
        assert taken == steps


def opening(losses, window, converged, bound):
    """What the authors' LossValley adds when a valley opens."""
    patience_left = len(converged) - window.maxlen
    if patience_left > 0:
        return list(converged)[1 : 1 + patience_left]
    kept = list(window)[: 1 - patience_left]
    above = [i for i, segment in enumerate(kept) if losses[segment] > bound]
    return kept[above[-1] + 2 if above else 1 :]


def ending(losses, window, bound):
    """What it adds at the end of training."""
    rest = takewhile(
        lambda i: min(losses[i:]) <= bound, range(window[0] + 1, len(losses)) if window else ()
    )
    return list(rest)


def of_the_code(losses, *, converge, patience, slack):
    """The segments in the mean by the authors' LossValley, and whether the valley has ended."""
    window, converged, added, bound = deque(maxlen=patience), deque(maxlen=converge), [], None
    for number in range(len(losses)):
        window.append(number)
        if bound is None:
            converged.append(number)
            least = min(losses[segment] for segment in converged)
            if len(converged) == converge and losses[converged[0]] == least:
                bound = sum(losses[segment] for segment in converged) / converge * (1 + slack)
                added += opening(losses, window, converged, bound)
        elif window[0] >= converged[0]:
            if min(losses[segment] for segment in window) > bound:
                return added or [converged[0]], True
            added.append(window[0])
    if bound is None:
        return [len(losses) - 1], False
    return [*added, *ending(losses, window, bound)] or [converged[0]], False


def test_ties_with_the_bound_are_as_in_the_authors_code():
    drawn = random.Random(1)
    for _ in range(150):
        losses = [float(drawn.choice((1, 1, 2, 2, 3, 4))) for _ in range(drawn.randint(1, 14))]
        converge, patience = drawn.randint(1, 4), drawn.randint(1, 5)
        settings = {"converge": converge, "patience": patience, "slack": drawn.choice((0.0, 1.0))}
        segments, dead = of_the_code(losses, **settings)
        average = SWAD(**settings)
        result, _ = followed(average, losses, [1] * len(losses))
        expected = torch.zeros(len(losses), dtype=torch.float64)
        for segment in segments:
            expected[segment] += 1 / len(segments)
        assert average.done == dead, (losses, settings)
        torch.testing.assert_close(result, expected, rtol=0, atol=1e-9, msg=str((losses, settings)))
