import math

import pytest

from proteinlm.errors import InputError, check_range


@pytest.mark.parametrize(
    ("value", "limits", "words"),
    [
        (0, {"at_least": 1}, "x.y is 0; it must be at least 1."),
        (0.0, {"above": 0, "at_most": 1}, "x.y is 0.0; it must be above 0 and at most 1."),
        (1.0, {"at_least": 0, "below": 1}, "x.y is 1.0; it must be at least 0 and below 1."),
        (1.5, {"above": 0, "at_most": 1}, "x.y is 1.5; it must be above 0 and at most 1."),
        (math.nan, {}, "x.y is nan; it must be a finite number."),
        (-math.inf, {"below": 1}, "x.y is -inf; it must be a finite number."),
    ],
)
def test_a_number_outside_its_range_is_refused(value, limits, words):
    with pytest.raises(InputError) as error:
        check_range("x.y", value, **limits)
    assert str(error.value) == words


def test_limits_that_are_allowed():
    check_range("x", 0, at_least=0, at_most=0)
    check_range("x", 0.5, above=0, below=1)
    check_range("x", -7)
