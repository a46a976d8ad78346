"""Pages of headings, paragraphs, tables and figures, as Markdown and as one HTML file that includes its figures.

Names of files and other text from outside belong into table cells, which are escaped for both formats. Paragraphs are
written by this package and may hold `code` and links <https://...>. The HTML is also well-formed XML.
"""

import base64
import html
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

_STYLE = """
body { font: 16px/1.5 system-ui, sans-serif; color: #222; max-width: 60rem; margin: 2rem auto; padding: 0 1rem; }
h1, h2 { line-height: 1.2; } h2 { margin-top: 2.5rem; border-bottom: 1px solid #ccc; }
div.table { overflow-x: auto; } table { border-collapse: collapse; font-size: 0.875rem; margin: 1rem 0; }
th, td { padding: 0.2rem 0.7rem; border-bottom: 1px solid #ddd; text-align: right; vertical-align: top; }
th { border-bottom: 2px solid #888; } th.left, td.left { text-align: left; overflow-wrap: anywhere; }
figure { margin: 1.5rem 0; } img { max-width: 100%; height: auto; } figcaption { font-size: 0.875rem; color: #444; }
pre { background: #f4f4f4; padding: 0.8rem; overflow-x: auto; } code { font-size: 0.9em; }
"""


@dataclass(frozen=True)
class Heading:
    """A heading of a section."""

    text: str

    def markdown(self) -> str:
        """Return Markdown."""
        return f"## {self.text}"

    def html(self, folder: Path) -> str:
        """Return an HTML element; figures are read from `folder`."""
        return f"<h2>{html.escape(self.text)}</h2>"


@dataclass(frozen=True)
class Text:
    """A paragraph, which may hold `code` and <https://...>."""

    text: str

    def markdown(self) -> str:
        """Return Markdown."""
        return self.text

    def html(self, folder: Path) -> str:
        """Return an HTML element."""
        return f"<p>{_inline(self.text)}</p>"


@dataclass(frozen=True)
class Code:
    """Lines of Python code."""

    text: str

    def markdown(self) -> str:
        """Return Markdown."""
        return f"```python\n{self.text.rstrip()}\n```"

    def html(self, folder: Path) -> str:
        """Return an HTML element."""
        return f"<pre><code>{html.escape(self.text.rstrip())}</code></pre>"


@dataclass(frozen=True)
class Table:
    """A table of texts, which are escaped.

    Attributes:
        columns: names of the columns.
        rows: for each row, a text for each column.
        left: number of columns with words, which are aligned left; the others hold numbers and are aligned right.
    """

    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    left: int = 1

    def markdown(self) -> str:
        """Return Markdown."""
        rule = ["---" if i < self.left else "---:" for i in range(len(self.columns))]
        lines = [map(_escaped, self.columns), rule, *(map(_escaped, row) for row in self.rows)]
        return "\n".join("| " + " | ".join(cells) + " |" for cells in lines)

    def html(self, folder: Path) -> str:
        """Return an HTML element."""

        def row(cells: Sequence[str], tag: str) -> str:
            kinds = [' class="left"' if i < self.left else "" for i in range(len(cells))]
            elements = [f"<{tag}{kind}>{html.escape(cell)}</{tag}>" for cell, kind in zip(cells, kinds, strict=True)]
            return f"<tr>{''.join(elements)}</tr>"

        body = "\n".join(row(cells, "td") for cells in self.rows)
        head = row(self.columns, "th")
        return f'<div class="table"><table><thead>{head}</thead>\n<tbody>\n{body}\n</tbody></table></div>'


@dataclass(frozen=True)
class Figure:
    """A figure.

    Attributes:
        file: name of a PNG file beside the page.
        caption: text below the figure.
    """

    file: str
    caption: str

    def markdown(self) -> str:
        """Return Markdown that refers to the file beside the page."""
        return f"![{self.caption}]({self.file})"

    def html(self, folder: Path) -> str:
        """Return an HTML element that includes the file."""
        data = base64.b64encode((folder / self.file).read_bytes()).decode()
        caption = html.escape(self.caption)
        image = f'<img src="data:image/png;base64,{data}" alt="{caption}" />'
        return f"<figure>{image}<figcaption>{caption}</figcaption></figure>"


Block = Heading | Text | Code | Table | Figure


def markdown_page(title: str, blocks: Sequence[Block]) -> str:
    """Return the page as Markdown."""
    return "\n\n".join([f"# {title}", *(block.markdown() for block in blocks)]) + "\n"


def html_page(title: str, blocks: Sequence[Block], folder: Path) -> str:
    """Return the page as HTML that includes the figures in `folder`."""
    title = html.escape(title)
    body = "\n".join(block.html(folder) for block in blocks)
    return (
        f'<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8" /><title>{title}</title>'
        '<meta name="viewport" content="width=device-width, initial-scale=1" />'
        f"<style>{_STYLE}</style></head>\n<body>\n<h1>{title}</h1>\n{body}\n</body></html>\n"
    )


def _inline(text: str) -> str:
    text = re.sub(r"`([^`]+)`", r"<code>\1</code>", html.escape(text))
    return re.sub(r"&lt;(https://[^\s&]+)&gt;", r'<a href="\1">\1</a>', text)


def _escaped(cell: str) -> str:
    """Escape a table cell for Markdown, so that no character of it has a meaning there."""
    cell = " ".join(cell.split())
    # An underscore within a word has no meaning in Markdown, and many paths have underscores.
    return re.sub(r"[\\`*\[\]<>|#~&]|(?<!\w)_|_(?!\w)", lambda match: "\\" + match.group(), cell)
