"""The frame of all HTML pages: one self-contained file with a script, styles and compressed data, and no network.

Texts of models reach a page only inside the compressed data, which scripts turn into text nodes, and in the escaped
title. A content security policy allows this one script, by its hash, and nothing else: markup that slipped through
could neither run nor load anything.
"""

from __future__ import annotations

import zlib
from base64 import b64encode
from hashlib import sha256
from html import escape
from pathlib import Path

WEB = Path(__file__).with_name("web")
LONGEST_TITLE = 200


def asset(folder: Path, *names: str) -> str:
    """Text of the web files of a folder, concatenated."""
    return "\n".join((folder / name).read_text(encoding="utf-8") for name in names)


def theme() -> str:
    """Style sheet that all pages share."""
    return asset(WEB, "theme.css")


def page(title: str, *, style: str, script: str = "", data: bytes = b"", body: str = "") -> str:
    """A complete HTML document with the given title and style sheet.

    `script`: JavaScript, run as a module; it finds the data, compressed by zlib and in base64, as the text of the
    element "data", and builds the page in the element "app". `body`: markup, in which texts must be escaped.
    """
    allowed = "default-src 'none'; style-src 'unsafe-inline'"
    if script:
        digest = b64encode(sha256(script.encode()).digest()).decode()
        allowed += f"; script-src 'sha256-{digest}'; img-src data:"
        body += (
            f'<div id="app"></div>\n<script type="application/octet-stream" id="data">'
            f'{b64encode(zlib.compress(data, 6)).decode()}</script>\n<script type="module">{script}</script>'
        )
    return (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{allowed}">'
        f'<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escape(title[:LONGEST_TITLE].encode('utf-8', 'replace').decode())}</title>"
        f"<style>html,body{{margin:0}}\n{theme()}\n{style}</style></head>\n"
        f'<body class="tg">{body}</body></html>\n'
    )


__all__ = ["WEB", "asset", "page", "theme"]
