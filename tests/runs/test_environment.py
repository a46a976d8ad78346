"""Where and with which versions a run was trained."""

import subprocess

from proteinlm.runs.environment import git_state, read_environment, write_environment


def test_starts_are_added_and_changed_versions_said(tmp_path):
    assert read_environment(tmp_path) == []
    assert write_environment(tmp_path, 0, {"versions": {"jax": "1", "python": "3"}}) == []
    assert write_environment(tmp_path, 7, {"versions": {"jax": "2", "python": "3"}}) == ["jax was 1, is 2"]
    assert [start["step"] for start in read_environment(tmp_path)] == [0, 7]
    (tmp_path / "environment.json").write_text("{")
    assert write_environment(tmp_path, 9, {"versions": {}}) == []


def test_a_checkout_says_its_commit_and_whether_it_was_changed(tmp_path):
    assert git_state(tmp_path) is None
    identity = ["-c", "user.name=a", "-c", "user.email=a@b"]
    (tmp_path / "file").write_text("one")
    for words in (["init", "-q"], ["add", "file"], [*identity, "commit", "-qm", "first"]):
        subprocess.run(["git", "-C", tmp_path, *words], check=True)
    head = subprocess.run(["git", "-C", tmp_path, "rev-parse", "HEAD"], capture_output=True, text=True, check=True)
    assert git_state(tmp_path) == {"commit": head.stdout.strip(), "dirty": False}
    (tmp_path / "file").write_text("two")
    assert git_state(tmp_path) == {"commit": head.stdout.strip(), "dirty": True}
