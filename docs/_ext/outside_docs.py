"""Files of the repository that are not in docs/: links to them, and those that are pages, such as the changelog.

A link to a file outside of docs/ goes to the page that shows it (``root_pages`` in conf.py), else to the repository
(``repository_url``), or, where nobody says which that is, to the clone from which the pages were built. A page whose
text is ``{root-file} NAME`` shows the file NAME of the repository's root.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

from sphinx.application import Sphinx
from sphinx.errors import SphinxError

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"

_LINK = re.compile(r"(?<!!)\]\((?![a-z]+:|#|<)([^)\s#]+)(#[^)\s]+)?\)")
_ROOT_FILE = re.compile(r"\{root-file\} (\S+)\s*")


def _relink(app: Sphinx, text: str, folder: Path, page_folder: Path) -> str:
    """The text of a file in ``folder`` with links for a page of ``page_folder``."""

    def target(match: re.Match[str]) -> str:
        path, anchor = (folder / match[1]).resolve(), match[2] or ""
        if not path.exists():
            raise SphinxError(f"{match[1]}, a link of a file in {folder}, does not exist")
        name = path.relative_to(ROOT).as_posix()
        page = app.config.root_pages.get(name)
        if path.is_relative_to(DOCS) or page:
            path = DOCS / f"{page}.md" if page else path
            return f"]({Path(os.path.relpath(path, page_folder)).as_posix()}{anchor})"
        if app.config.repository_url:
            return f"]({app.config.repository_url}/{name}{anchor})"
        place = Path(app.outdir) / page_folder.relative_to(DOCS)
        return f"](<url:{Path(os.path.relpath(path, place)).as_posix()}{anchor}>)"

    return _LINK.sub(target, text)


def _read(app: Sphinx, name: str, source: list[str]) -> None:
    path = Path(app.env.doc2path(name))
    if path.suffix != ".md":
        return
    text, folder = source[0], path.parent
    if shown := _ROOT_FILE.fullmatch(text):
        app.env.note_dependency(str(ROOT / shown[1]))
        text, folder = (ROOT / shown[1]).read_text(encoding="utf-8"), ROOT
    source[0] = _relink(app, text, folder, path.parent)


def setup(app: Sphinx) -> dict[str, bool]:
    app.add_config_value("repository_url", "", "env", str)
    app.add_config_value("root_pages", {}, "env", dict)
    app.connect("source-read", _read)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
