"""Made-up models that say how sure they are, and are right as often as we decide."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from legible import check_legible

from proteinlm import alphabet
from proteinlm.evaluation.breakdowns import BY_CONFIDENCE
from proteinlm.evaluation.calibration import calibration, expected_error, plot_reliability
from proteinlm.evaluation.metrics import FEW_TOKENS, Sums
from proteinlm.evaluation.sums import sum_groups
from proteinlm.evaluation.tables import score_token_groups
from proteinlm.models.objective import token_values

ABOUT = {"split": "test", "objective": "causal", "model": "made up", "tokens": "residues"}


def measured(confidence, is_correct):
    """Sums of a model whose first choice (A) has these probabilities, and is right where `is_correct`; both [N, L]."""
    rest = (1 - confidence) / (alphabet.SIZE - 1)
    probabilities = np.repeat(rest[:, :, None], alphabet.SIZE, axis=2)
    probabilities[:, :, alphabet.FIRST_RESIDUE] = confidence
    targets = jnp.asarray(np.where(is_correct, alphabet.FIRST_RESIDUE, alphabet.FIRST_RESIDUE + 1), jnp.int32)
    values = token_values(jnp.log(jnp.asarray(probabilities, jnp.float32)), targets)
    sums = sum_groups(BY_CONFIDENCE, values, targets, jnp.ones(targets.shape), None, targets.shape[1])
    (nll, correct, count), summed = jax.tree.map(lambda x: np.asarray(x, np.float64), sums)
    return Sums(nll, correct, count), summed


def calibration_of(confidence, is_correct):
    sums, summed = measured(confidence, is_correct)
    return calibration(
        sums, summed, score_token_groups("confidence", sums, BY_CONFIDENCE.groups(), ABOUT), num_resamples=200
    )


def test_known_errors_are_found():
    # Half of the tokens say 0.62 and are right in 50 %, half say 0.93 and are right in 90 %: 0.5 (0.12 + 0.03).
    confidence = np.tile([0.62, 0.93], (20, 20))
    is_correct = np.zeros((20, 40), bool)
    is_correct[:10, ::2] = True
    is_correct[:18, 1::2] = True
    found = calibration_of(confidence, is_correct)
    assert found.error == pytest.approx(0.5 * (0.62 - 0.5) + 0.5 * (0.93 - 0.9), abs=1e-5)
    assert [one.group.label for one in found.bins] == ["0.60-0.65", "0.90-0.95"]
    np.testing.assert_allclose(found.confidence, [0.62, 0.93], rtol=1e-5)
    assert [one.score.accuracy for one in found.bins] == [0.5, 0.9]
    assert [one.score.num_tokens for one in found.bins] == [400, 400]
    assert found.low <= found.error <= found.high


def test_a_calibrated_model_has_a_small_error_and_the_same_one_sharpened_a_large_one():
    generator = np.random.default_rng(0)
    confidence = generator.uniform(0.1, 0.99, (300, 100))
    is_correct = generator.uniform(size=confidence.shape) < confidence
    assert calibration_of(confidence, is_correct).error < 0.02
    # It says sqrt(p): the mean of sqrt(p) - p over the same p.
    sharper = calibration_of(np.sqrt(confidence), is_correct)
    assert sharper.error == pytest.approx((np.sqrt(confidence) - confidence).mean(), abs=0.01)
    assert sharper.low > 0.1


def test_full_confidence_is_in_the_last_bin_and_nothing_gives_nan():
    found = calibration_of(np.ones((2, 3)), np.ones((2, 3), bool))
    assert [one.group.label for one in found.bins] == ["0.95-1.00"]
    assert found.error == 0
    nothing = Sums(*(np.zeros((0, 20)),) * 3)
    empty = calibration(
        nothing, np.zeros((0, 20)), score_token_groups("confidence", nothing, BY_CONFIDENCE.groups(), ABOUT)
    )
    assert np.isnan([empty.error, empty.low, empty.high]).all()
    assert empty.bins == []
    assert np.isnan(expected_error(np.zeros((3, 4))))


def test_the_diagram_shows_accuracy_over_confidence():
    generator = np.random.default_rng(1)
    confidence = generator.triangular(0.1, 0.4, 0.99, (20, 50))
    one = calibration_of(confidence, generator.uniform(size=confidence.shape) < confidence)
    # A bin of one sequence has no whiskers.
    one.bins[0] = dataclasses.replace(
        one.bins[0], score=dataclasses.replace(one.bins[0].score, accuracy_low=np.nan, accuracy_high=np.nan)
    )
    for found in ({"test": one}, {"test": one, "ood": one}):
        figure, axes = plot_reliability(found, "a title")
        assert axes.shape == (2, len(found))
        many, few = (container.lines[0].get_xydata() for container in axes[0, 0].containers[:2])
        tokens = np.array([c.score.num_tokens for c in one.bins])
        points = np.stack([100 * one.confidence, [100 * c.score.accuracy for c in one.bins]], axis=1)
        np.testing.assert_allclose(many, points[tokens >= FEW_TOKENS])
        np.testing.assert_allclose(few, points[tokens < FEW_TOKENS])
        np.testing.assert_array_equal([bar.get_height() for bar in axes[1, 0].patches], tokens)
        assert figure.get_suptitle() == "a title"
        # Colours of a split are the same whichever others are drawn.
        colours = [upper.containers[0].lines[0].get_color() for upper in axes[0]]
        assert colours == ["#0072B2", "#D55E00"][: len(found)]
        assert "no interval: fewer than 5 sequences" in [t.get_text() for t in figure.legends[0].get_texts()]
        title = "a_run_of_a_long_name, step 20000; objective masked; masked residues counted; one sequence a row"
        check_legible(plot_reliability(found, title)[0])
