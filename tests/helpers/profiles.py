"""Profiles of families as Pfam publishes them, each made by pyhmmer of a single sequence."""

import io

import pytest


def profile(sequence: str, name="Kunitz_BPTI", accession="PF00014.99", gathering=(30.0, 30.0)):
    """Return a profile; the test is skipped without pyhmmer."""
    pyhmmer = pytest.importorskip("pyhmmer", reason="needs pyhmmer: pip install -e '.[pfam]'")
    amino = pyhmmer.easel.Alphabet.amino()
    query = pyhmmer.easel.TextSequence(name=name.encode(), sequence=sequence).digitize(amino)
    made, _, _ = pyhmmer.plan7.Builder(amino).build(query, pyhmmer.plan7.Background(amino))
    made.accession = accession and accession.encode()
    if gathering:
        made.cutoffs.gathering = gathering
    return made


def written(*profiles) -> bytes:
    """Return the profiles as a file holds them."""
    text = io.BytesIO()
    for one in profiles:
        one.write(text)
    return text.getvalue()
