"""Files of the documentation site, under the paths that they have in the repository.

MkDocs reads one folder. The pages of this repository are in several, and link to each other by relative paths as GitHub
resolves them; the site keeps these paths, so that one link works in both.
"""

from pathlib import Path

from mkdocs.structure.files import File

ROOT = Path(__file__).parents[1]
PATTERNS = (
    "README.md", "CONTRIBUTING.md", "CHANGELOG.md", "CITATION.cff", "LICENSE", "benchmarks/*", "docs/*.md",
    "docs/**/*.png", "notebooks/*.ipynb", "configs/*.py", "proteinlm/*/*.py", "proteinlm/data/sample/README.md",
)  # fmt: skip


def on_files(files, config):
    """Replace the files of the folder docs by those of `PATTERNS`; the theme's files stay."""
    for file in list(files):
        if file.src_dir == config.docs_dir:
            files.remove(file)
    for pattern in PATTERNS:
        for path in sorted(ROOT.glob(pattern)):
            if path.is_file():
                name = path.relative_to(ROOT).as_posix()
                files.append(File.generated(config, name, abs_src_path=str(path)))
    return files
