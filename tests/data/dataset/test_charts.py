import numpy as np
import pytest
from matplotlib.colors import to_hex

from proteinlm import alphabet
from proteinlm.data.dataset.charts import (
    CLASSES,
    amino_acid_figure,
    family_figure,
    length_figure,
)
from proteinlm.data.dataset.statistics import PUBLISHED, SWISS_PROT_50_8, SplitStatistics
from proteinlm.output.figures import save_figure


def random_split(count, seed):
    generator = np.random.default_rng(seed)
    made = SplitStatistics()
    lengths = np.maximum(2, generator.lognormal(5.6, 0.7, count)).astype(int)
    made.add(lengths, generator.multinomial(lengths.sum(), generator.dirichlet(np.full(25, 3))))
    made.add_families(b"PF%05d" % i if i < 90 else b"" for i in generator.geometric(0.02, count))
    return made


@pytest.fixture
def statistics():
    splits = {"train": random_split(3000, 0), "valid": random_split(40, 1), "test": random_split(300, 2)}
    return {**splits, "ood": SplitStatistics()}


def test_each_residue_has_one_class():
    assert sorted("".join(members for members, _ in CLASSES.values())) == list(alphabet.STANDARD_RESIDUES)
    assert len({colour for _, colour in CLASSES.values()}) == len(CLASSES)


def test_published_frequencies():
    for figures in PUBLISHED.values():
        assert sorted(figures) == list(alphabet.STANDARD_RESIDUES)
        assert 99.8 < sum(figures.values()) < 100.01
    pyhmmer = pytest.importorskip("pyhmmer", reason="needs pyhmmer: pip install -e '.[pfam]'")
    background = pyhmmer.plan7.Background(pyhmmer.easel.Alphabet.amino())
    theirs = dict(zip("ACDEFGHIKLMNPQRSTVWY", background.residue_frequencies, strict=True))
    assert {letter: 100 * share for letter, share in theirs.items()} == pytest.approx(SWISS_PROT_50_8, abs=1e-4)


def test_bars_are_the_frequencies_in_the_colours_of_their_classes(statistics):
    (axes,) = amino_acid_figure(statistics).axes
    counts = sum(s.residues for s in statistics.values())
    labels = [label.get_text() for label in axes.get_xticklabels()]
    heights = {label: bar.get_height() for label, bar in zip(labels, axes.patches, strict=True)}
    assert sum(heights.values()) == pytest.approx(100)
    for letter, count in zip(alphabet.STANDARD_RESIDUES, counts, strict=False):
        assert heights[letter] == pytest.approx(100 * count / counts.sum())
    assert heights["others"] == pytest.approx(100 * counts[20:].sum() / counts.sum())
    assert list(heights.values())[:20] == sorted(list(heights.values())[:20], reverse=True)
    for letter, bar in zip(labels[:20], axes.patches, strict=False):
        (colour,) = (colour for members, colour in CLASSES.values() if letter in members)
        assert to_hex(bar.get_facecolor()).upper() == colour.upper()
    for line, figures in zip(axes.lines, PUBLISHED.values(), strict=True):
        assert line.get_ydata().tolist() == [figures[letter] for letter in labels[:20]]


def test_lengths_are_shares_of_each_split(statistics):
    (axes,) = length_figure(statistics).axes
    drawn = [patch.get_data() for patch in axes.patches]
    assert len(drawn) == 3  # an empty split has no distribution
    for (shares, edges, _), s in zip(drawn, statistics.values(), strict=False):
        assert shares.sum() == pytest.approx(100)
        for place in (5, 9, 14):
            below = sum(count for length, count in s.lengths.items() if length < edges[place])
            assert shares[:place].sum() == pytest.approx(100 * below / s.count)


def test_families_are_shares_and_sizes(statistics):
    left, right = family_figure(statistics).axes
    assert [bar.get_width() for bar in left.patches[1::2]] == pytest.approx(
        [100 * s.with_families / s.count for s in statistics.values() if s.count]
    )
    assert [list(line.get_ydata()) for line in right.lines] == [
        sorted(s.families.values(), reverse=True) for s in statistics.values() if s.families
    ]


@pytest.mark.few(2)
@pytest.mark.parametrize("draw", [amino_acid_figure, length_figure, family_figure])
def test_hardly_anything_can_be_drawn_too(draw, tmp_path):
    alone = SplitStatistics()
    alone.add(np.array([1]), np.eye(25, dtype=int)[24])
    for name, split in (("alone", alone), ("nothing", SplitStatistics())):
        save_figure(draw({"train": split, "ood": SplitStatistics()}), tmp_path / name)
