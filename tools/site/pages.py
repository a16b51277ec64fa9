"""Adds the pages that are outside of docs/ to the site: README.md and its like."""

import pathlib
import posixpath
import re

from mkdocs.structure.files import File

_ROOT = pathlib.Path(__file__).parents[2]
# Where they are in the site, by where they are in the project.
_PAGES = {
    "README.md": "index.md",
    "CONTRIBUTING.md": "CONTRIBUTING.md",
    "CHANGELOG.md": "CHANGELOG.md",
    "presets/README.md": "presets/README.md",
    **{
        str(path.relative_to(_ROOT)): str(path.relative_to(_ROOT))
        for path in sorted((_ROOT / "presets").glob("*/README.md"))
    },
}
# Files that links may name but the site has not: their names are shown alone.
_UNPUBLISHED = re.compile(r"\[([^\]]+)\]\((?:[^)]*/)?(?:LICENSE|[^)]*\.ipynb)\)")
_LINK = re.compile(r"(?<=\]\()(?!\w+:|#)([^)#]+)")


def on_files(files, config):
    """Adds the pages."""
    for source, target in _PAGES.items():
        text = (_ROOT / source).read_text()
        files.append(File.generated(config, target, content=text))
    return files


def on_page_markdown(markdown, page, config, files):
    """Converts links between files of the project to links between pages."""
    sources = {target: source for source, target in _PAGES.items()}
    here = page.file.src_uri
    source_folder = posixpath.dirname(sources.get(here, f"docs/{here}"))

    def converted(match):
        path = posixpath.normpath(posixpath.join(source_folder, match[1]))
        target = _PAGES.get(path, path.removeprefix("docs/"))
        return posixpath.relpath(target, posixpath.dirname(here) or ".")

    return _LINK.sub(converted, _UNPUBLISHED.sub(r"\1", markdown))
