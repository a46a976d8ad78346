import base64
import xml.etree.ElementTree as ET

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proteinlm.output.pages import Code, Figure, Heading, Table, Text, html_page, markdown_page

PRINTABLE = st.text(st.characters(min_codepoint=32, exclude_categories=["C", "Z"]), max_size=30)


def elements(page: str) -> ET.Element:
    """A strict parser of XML reads it, so every tag is closed and every letter escaped."""
    assert page.startswith("<!DOCTYPE html>\n")
    return ET.fromstring(page.removeprefix("<!DOCTYPE html>\n"))


@pytest.fixture
def blocks(tmp_path):
    (tmp_path / "a.png").write_bytes(b"\x89PNG any bytes")
    return [
        Heading("Numbers & names"),
        Text("`<eos>` is a token, see <https://www.uniprot.org/help/license>."),
        Code("print('<1>')\n"),
        Table(["file", "bytes"], [["a|b_c.fasta", "1,000"], ["<script>", "2"]]),
        Figure("a.png", "What it shows"),
    ]


def test_markdown(blocks):
    assert markdown_page("A page", blocks) == (
        "# A page\n\n## Numbers & names\n\n`<eos>` is a token, see <https://www.uniprot.org/help/license>.\n\n"
        "```python\nprint('<1>')\n```\n\n"
        "| file | bytes |\n| --- | ---: |\n| a\\|b_c.fasta | 1,000 |\n| \\<script\\> | 2 |\n\n"
        "![What it shows](a.png)\n"
    )


def test_html_holds_its_figures(blocks, tmp_path):
    page = html_page("A & B", blocks, tmp_path)
    (tmp_path / "a.png").unlink()
    root = elements(page)
    assert root.findtext("head/title") == root.findtext("body/h1") == "A & B"
    assert root.findtext(".//p/code") == "<eos>"
    assert root.find(".//p/a").get("href") == root.findtext(".//p/a") == "https://www.uniprot.org/help/license"
    assert root.findtext(".//pre/code") == "print('<1>')"
    source = root.find(".//img").get("src")
    assert base64.b64decode(source.removeprefix("data:image/png;base64,")) == b"\x89PNG any bytes"
    # Nothing is fetched: no script, no style sheet, no image elsewhere.
    assert not [e for e in root.iter() if e.tag in ("script", "link", "iframe") or e.get("src", "data:")[:5] != "data:"]


@given(st.lists(st.tuples(PRINTABLE, PRINTABLE), min_size=1, max_size=4))
def test_cells_are_taken_as_they_are(rows):
    table = Table(["name", "value"], rows)
    root = elements(html_page("t", [table], None))
    assert [tuple(cell.text or "" for cell in row) for row in root.findall(".//tbody/tr")] == rows
    for line, row in zip(table.markdown().splitlines()[2:], rows, strict=True):
        # Without its escapes the line is the texts again, and no bar inside ends a cell.
        plain = line.replace("\\\\", "\0").replace("\\", "").replace("\0", "\\")
        assert plain == f"| {row[0]} | {row[1]} |"
        assert line.replace("\\\\", "").replace("\\|", "").count("|") == 3
