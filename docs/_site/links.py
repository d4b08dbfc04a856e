"""MkDocs hook: links that leave docs/ lead to the page made of that file.

Documents link to files of the repository (`../CONTRIBUTING.md`, `../egraph/ops/ops.py`), as a reader of the repository
needs it. `pages.py` makes a page of every file linked so; `destination` is the place of that page.
"""

from __future__ import annotations

import posixpath
import re
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
LINK = re.compile(r"(\]\()([^)\s#]+)(#[^)\s]*)?(\))")

#: file of the repository -> its page, for files with pages of their own
PAGES = {
    "README.md": "index.md",
    "CONTRIBUTING.md": "contributing.md",
    "SECURITY.md": "security.md",
    "CHANGELOG.md": "changelog.md",
    "docs/decisions": "decisions/index.md",
    "benchmarks/README.md": "benchmarks/index.md",
    "LICENSE": "source/LICENSE.md",
}


def destination(path: str) -> str:
    """Page of a file or folder of the repository, both relative to their roots."""
    if path in PAGES:
        return PAGES[path]
    if path.startswith("docs/"):
        return path.removeprefix("docs/")
    if path.startswith("benchmarks/results/") and path.endswith(".md"):
        return "benchmarks/" + path.removeprefix("benchmarks/results/")
    if path.startswith("notebooks/") and path.endswith(".ipynb"):
        return path.removesuffix(".ipynb") + ".md"
    return f"source/{path}.md"


def rewritten(text: str, source: str) -> str:
    """Markdown text of the file `source` (relative to the repository) with links to pages instead of files."""
    page = destination(source)

    def one(found: re.Match[str]) -> str:
        before, target, anchor, after = found[1], found[2], found[3] or "", found[4]
        if re.match(r"[a-z]+:", target) or target.startswith("/"):
            return found[0]
        path = posixpath.normpath(posixpath.join(posixpath.dirname(source), target))
        if path.startswith("..") or not (ROOT / path).exists():
            return found[0]  # the strict build reports it
        to = posixpath.relpath(destination(path), posixpath.dirname(page) or ".")
        return f"{before}{to}{anchor if not to.startswith('source/') and '/source/' not in to else ''}{after}"

    return LINK.sub(one, text)


def linked(text: str, source: str) -> set[str]:
    """Files of the repository that a Markdown text links to."""
    found = set()
    for match in LINK.finditer(text):
        if not re.match(r"[a-z]+:|/", match[2]):
            path = posixpath.normpath(posixpath.join(posixpath.dirname(source), match[2]))
            if not path.startswith("..") and (ROOT / path).exists():
                found.add(path)
    return found


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Called by MkDocs for each page; pages written by `pages.py` have their links already."""
    source = "docs/" + page.file.src_uri
    return rewritten(markdown, source) if (ROOT / source).is_file() else markdown
