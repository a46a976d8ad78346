"""The programs in docs/ run as they stand."""

import re
from pathlib import Path

import pytest

DOCS = Path(__file__).parent.parent / "docs"


def test_the_programs_of_data_md(tiny_dataset, tmp_path, monkeypatch):
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "sprot").symlink_to(tiny_dataset)
    monkeypatch.chdir(tmp_path)
    blocks = re.findall(r"```python\n(.*?)```", (DOCS / "data.md").read_text(encoding="utf-8"), re.DOTALL)
    assert len(blocks) == 2
    # The dataset of the tests has fewer residues than 8 windows of 8,192.
    program = "\n".join(blocks).replace("length=8192, batch_size=8", "length=128, batch_size=2")
    found: dict = {}
    exec(compile(program, "data.md", "exec"), found)
    assert set(found["dataset"].counts) == {"train", "valid", "test", "ood"}
    assert next(found["batches"])["tokens"].shape == (2, 128)
    found["batches"].close()


@pytest.mark.parametrize("page", sorted(DOCS.glob("*.md")), ids=lambda page: page.name)
def test_links_lead_somewhere(page):
    for target in re.findall(r"\]\(([^)#:]+)\)", page.read_text(encoding="utf-8")):
        assert (page.parent / target).exists(), target
