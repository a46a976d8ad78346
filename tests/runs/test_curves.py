import numpy as np
import pytest

from proteinlm.runs.curves import Curve, plot_curves, train_points


def train_row(step, loss, accuracy=0.25, tokens=100):
    return {"kind": "train", "step": step, "loss": loss, "accuracy": accuracy, "counted_tokens": tokens}


def valid_row(step, perplexity):
    return {"kind": "valid", "step": step, "perplexity": perplexity, "accuracy": 0.5}


def test_points_are_means_over_tokens():
    rows = [train_row(1, 1.0, 0.0, 100), train_row(2, 3.0, 0.5, 300), train_row(3, 2.0), train_row(9, 7.0)]
    # Between them what is no line of training, and one in which every step was skipped.
    rows[2:2] = [valid_row(2, 9.0), {**train_row(3, None), "counted_tokens": 0}]
    step, perplexity, accuracy = train_points(rows, 2)
    np.testing.assert_array_equal(step, [2, 3, 9])
    np.testing.assert_allclose(perplexity, np.exp([(1 * 100 + 3 * 300) / 400, 2, 7]))
    np.testing.assert_allclose(accuracy, [0.5 * 300 / 400, 0.25, 0.25])
    fine = train_points(rows, 0.1)
    np.testing.assert_array_equal(fine[0], [1, 2, 3, 9])
    assert [len(x) for x in train_points([], 1)] == [0, 0, 0]


@pytest.mark.parametrize("number", [1, 3, 10])
def test_runs_lie_over_one_another_train_dashed_validation_solid(number):
    curves = [
        Curve(f"run {i}", [train_row(1, 2.0 + i), train_row(50, 1.0 + i), valid_row(25, 3.0), valid_row(50, 2.5)])
        for i in range(number)
    ]
    figure = plot_curves(curves)
    for axes in figure.axes:
        lines = axes.get_lines()
        assert len(lines) == 2 * number
        for dashed, solid in zip(lines[::2], lines[1::2], strict=True):
            assert (dashed.get_linestyle(), solid.get_linestyle()) == ("--", "-")
            assert dashed.get_color() == solid.get_color()
        # Told apart by colour and marker, up to eight by either alone.
        assert len({(line.get_color(), line.get_marker()) for line in lines[1::2]}) == number
        assert axes.get_xlabel() == "Optimizer step"
    np.testing.assert_allclose(figure.axes[0].get_lines()[0].get_ydata(), np.exp([2.0, 1.0]))
    np.testing.assert_allclose(figure.axes[1].get_lines()[1].get_ydata(), [50, 50])
    (legend,) = figure.legends
    names = [text.get_text() for text in legend.get_texts()]
    assert names == [*(curve.label for curve in curves), "train", "validation"]
