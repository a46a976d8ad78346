import pytest

from proteinlm.errors import InputError
from proteinlm.training.profiling import Profile


def traced(text, start, num_steps, tmp_path):
    profile = Profile(text)
    profile.plan(tmp_path, start, num_steps)
    return [(step, profile.starts(step), profile.ends(step)) for step in range(start + 1, num_steps + 1)]


def test_which_steps_are_traced(tmp_path):
    assert [(s, a, z) for s, a, z in traced("3:5", 0, 9, tmp_path) if a or z] == [(3, True, False), (5, False, True)]
    # Two steps after the first two of this start.
    assert [(s, a, z) for s, a, z in traced("2", 100, 110, tmp_path) if a or z] == [
        (103, True, False), (104, False, True),
    ]  # fmt: skip
    assert [s for s, a, z in traced("", 0, 9, tmp_path) if a or z] == []
    Profile("").stop()


@pytest.mark.parametrize("text", ["x", "5:3", "0:3", "0", "3:", "-1"])
def test_what_names_no_steps_is_refused(text):
    with pytest.raises(InputError, match="give START:STOP"):
        Profile(text)


def test_a_finished_run_has_nothing_to_trace(tmp_path):
    with pytest.raises(InputError, match="--profile 1 has no step to trace: the run is finished, at step 9"):
        traced("1", 9, 9, tmp_path)


@pytest.mark.parametrize(("text", "start"), [("3:5", 3), ("8:12", 0), ("9", 0)])
def test_steps_that_this_start_does_not_train_are_refused(text, start, tmp_path):
    with pytest.raises(InputError, match=f"this start trains the steps {start + 1} to 10"):
        traced(text, start, 10, tmp_path)
