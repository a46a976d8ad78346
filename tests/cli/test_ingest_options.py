import re
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path

import pytest

from proteinlm.cli.ingest_options import parse_ingest
from proteinlm.data.ingest.config import IngestConfig
from proteinlm.data.splits.rules import SplitsConfig

OPTIONS = (
    "--output", "--name", "--release", "--section", "--format", "--downloads", "--release-url", "--families",
    "--pfam-hmm", "--pfam-hmm-all", "--held-out", "--valid", "--test", "--split-identity", "--splits", "--engine",
    "--beam-args", "--workers", "--shards",
)  # fmt: skip


def test_defaults_are_those_of_the_config():
    options = parse_ingest(["a", "--output", "out"])
    assert (options.sources, options.output, options.name) == (("a",), Path("out"), IngestConfig().name)
    assert asdict(options.split) == asdict(SplitsConfig()) | {"held_out": "paper"}
    config = asdict(IngestConfig())
    for group in (options.family, options.engine):
        assert asdict(group).items() <= config.items()
    assert asdict(options.release) == {
        "release": None, "section": (), "format": "dat", "downloads": None,
        "release_url": "https://ftp.uniprot.org/pub/databases/uniprot",
    }  # fmt: skip


def test_each_option_sets_a_field():
    line = (
        "--output out --name n --release 2019_01 --section sprot trembl --format fasta --downloads d "
        "--release-url file:///x --families t u --pfam-hmm x.hmm --pfam-hmm-all --held-out none --valid 0.1 "
        "--test 0.2 --split-identity 0.5 --splits m --engine beam --beam-args --x --workers 3 --shards 4"
    )
    options = parse_ingest(["a", "b c", *line.split()])
    assert (options.sources, options.name) == (("a", "b c"), "n")
    assert tuple(vars(options.release).values()) == ("2019_01", ("sprot", "trembl"), "fasta", Path("d"), "file:///x")
    assert vars(options.family) == {"families": ("t", "u"), "profiles": ("x.hmm",), "search_all": True}
    assert vars(options.split) == {
        "held_out": "none", "valid": 0.1, "test": 0.2, "identity": 0.5, "manifest": Path("m"),
    }  # fmt: skip
    assert vars(options.engine) == {"engine": "beam", "beam_args": "--x", "workers": 3, "shards": 4}


def test_each_option_is_explained_and_the_page_fits_a_terminal(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    with pytest.raises(SystemExit) as left:
        parse_ingest(["--help"])
    assert left.value.code == 0
    page = capsys.readouterr().out
    assert max(map(len, page.splitlines())) <= 80
    headings = ("Sources", "Errors in the sources", "Interruption", "Resources", "Exit status", "Examples")
    for heading in headings:
        assert f"\n\n{heading}\n  " in page
    # A line of the text of --beam-args may begin with --runner.
    names = re.findall(r"^\W*(--(?!runner)[a-z-]+)\b", page[page.index("help message") :], re.M)
    assert tuple(names) == OPTIONS
    for group in ("release", "family", "split", "engine"):
        assert f"{group} options" in page
    assert "(default: )" not in page
    assert "None" not in page
    # One paragraph for each option, without the line breaks of the source.
    assert "2019_01" in page
    assert "    " not in " ".join(page.split())


def test_the_help_imports_nothing_heavy():
    code = "import sys, proteinlm.cli.ingest_options; print([m for m in sys.argv[1:] if m in sys.modules])"
    heavy = ["jax", "pandas", "pyarrow", "matplotlib", "tensorflow_datasets", "fsspec"]
    done = subprocess.run([sys.executable, "-c", code, *heavy], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
