"""Names in docstrings and documents exist: modules by their file names, members of classes, constants of files."""

import re
from functools import cache

from tests.draw_docstrings import FOLDERS, ROOT, docstrings

FILES = sorted(p for f in FOLDERS for p in (ROOT / f).rglob("*.py") if not any(q.is_symlink() for q in p.parents))


@cache
def classes() -> dict[str, list[str]]:
    """Source texts of the package's classes, by name."""
    found: dict[str, list[str]] = {}
    for path in FILES:
        text = path.read_text(encoding="utf-8")
        for part in re.split(r"^(?=class )", text, flags=re.MULTILINE)[1:]:
            found.setdefault(part[6:].split("(")[0].split(":")[0], []).append(part)
    return found


def has(name: str, member: str) -> bool:
    """Whether a class, or a base of it, mentions a member."""
    for text in classes()[name]:
        head = text[: text.index(":")]
        bases = [b for b in re.findall(r"\w+", head)[2:] if b in classes() and b != name]
        if re.search(rf"\b{member}\b", text) or any(has(b, member) for b in bases):
            return True
    return False


def test_modules_and_members_named_in_docstrings_exist() -> None:
    wrong = []
    for path in FILES:
        if not re.search(r"`[\w.]*[A-Z]\w*\.\w|\w\.py\b", path.read_text(encoding="utf-8")):
            continue
        for name, _, text in docstrings(path):
            members = re.findall(r"`(?:\w+\.)*([A-Z]\w*[a-z]\w*)\.(\w+)", text)
            wrong += [f"{path}: {name}: {c}.{m}" for c, m in members if c not in classes() or not has(c, m)]
            for module in re.findall(r"(?<![\w/-])([a-z_][\w/]*\.py)\b", text):
                if not (ROOT / module).exists() and not any(f.match(module) for f in FILES):
                    wrong.append(f"{path}: {name}: {module}")
    assert not wrong, "\n".join(wrong)


def test_names_that_documents_place_in_a_file_are_there() -> None:
    """Of "`NAME` of `file.py`" and "`NAME` in `file.py`"."""
    documents = [ROOT / "CONTRIBUTING.md", ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]
    places = [
        (document, name, file)
        for document in documents
        for name, file in re.findall(r"`(\w+)` (?:of|in) `([\w/]+\.py)`", document.read_text(encoding="utf-8"))
    ]
    known = {file: [f for f in (*FILES, ROOT / file) if f.is_file() and f.match(file)] for _, _, file in places}
    assert len(places) > 10 and not [
        f"{document}: {name} in {file}"
        for document, name, file in places
        if not any(re.search(rf"\b{name}\b", f.read_text(encoding="utf-8")) for f in known[file])
    ]
