"""What the site needs beside the pages: README, changelog, references, and files that pages link to.

Of the references the repository has the heads only. The rest is made here, from the comments of an
installed schema, from docstrings, and from the help of commands and metrics.

On a code host a page links to any file of the repository. The site has the pages only, so each
other file that one of them names becomes a page of its own, which shows its text.
"""

from __future__ import annotations

import posixpath
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from mkdocs.structure.files import File

if TYPE_CHECKING:
    from mkdocs.config.defaults import MkDocsConfig
    from mkdocs.structure.files import Files
    from mkdocs.structure.pages import Page

ROOT = Path(__file__).parents[2]
# Pages made of files beside docs/.
_MOVED = {"README.md": "index.md", "CHANGELOG.md": "changelog.md"}
_LINK = re.compile(r"(\]\()([^)#\s:]+)(?=[#)])")
_LANGUAGES = {".py": "python", ".sql": "sql", ".sh": "sh", ".yml": "yaml", ".json": "json"}
_FENCE = re.compile(r"^(```.*?^```$)", re.MULTILINE | re.DOTALL)


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages that are no files of docs/."""
    for name, page in _MOVED.items():
        text = (ROOT / name).read_text(encoding="utf-8")
        files.append(File.generated(config, page, content=text))
    for page, text in _references().items():
        files.remove(files.src_uris[page])
        files.append(File.generated(config, page, content=text))
    shown: set[str] = set()
    for file in list(files.documentation_pages()):
        for name in _outside(file.content_string, _home(file.src_uri)):
            shown.add(name)
    for name in sorted(shown):
        text = (ROOT / name).read_text(encoding="utf-8")
        language = _LANGUAGES.get(Path(name).suffix, "text")
        # Tildes, as the text may hold a fence of its own. Its words are not those of a reader.
        page = f"---\nsearch:\n  exclude: true\n---\n# {name}\n\n~~~~{language}\n{text}~~~~\n"
        files.append(File.generated(config, _shown_as(name), content=page))
    return files


def _references() -> dict[str, str]:
    # mkdocs loads this file as a module without a package.
    sys.path.insert(0, str(Path(__file__).parent))
    import make_api
    import make_commands
    import make_reference
    import make_sql

    sql = make_sql.page()
    return {
        "reference/sql.md": sql,
        "reference/python.md": make_api.render(sql),
        "reference/commands.md": make_commands.render(),
        "reference/metrics.md": make_reference.metrics(),
        "reference/telemetry.md": make_reference.telemetry_events(),
    }


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Have links lead to pages of the site, and lists be read as they were meant."""
    del config, files
    home = _home(page.file.src_uri)
    parts = _FENCE.split(markdown)
    return "".join(
        part if part.startswith("```") else _lists(_links(part, home, page.file.src_uri))
        for part in parts
    )


def _home(page: str) -> str:
    """Return the folder, in the repository, of the file that a page is made of."""
    return "" if page in _MOVED.values() else posixpath.dirname(f"docs/{page}")


def _outside(text: str, home: str) -> list[str]:
    named = [posixpath.normpath(posixpath.join(home, it[2])) for it in _LINK.finditer(text)]
    return [name for name in named if _is_outside(name)]


def _is_outside(name: str) -> bool:
    return not name.startswith("docs/") and name not in _MOVED and (ROOT / name).is_file()


def _shown_as(name: str) -> str:
    return f"source/{name}.md"


def _links(text: str, home: str, page: str) -> str:
    def moved(link: re.Match[str]) -> str:
        name = posixpath.normpath(posixpath.join(home, link[2]))
        if name in _MOVED:
            target = _MOVED[name]
        elif _is_outside(name):
            target = _shown_as(name)
        else:
            target = name.removeprefix("docs/")
        return link[1] + posixpath.relpath(target, posixpath.dirname(page) or ".")

    return _LINK.sub(moved, text)


def _lists(text: str) -> str:
    """Indent what is inside lists by four, as this reader of Markdown wants it."""
    return re.sub(r"^( {2,3})(?=\S)", "    ", text, flags=re.MULTILINE)


def on_page_content(html: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Refuse a list that was read as text: it needs an empty line before it."""
    del config, files
    if lost := re.search(r"<p>[^<]*\n(?:[-*]|\d+\.) [^\n]*", html):
        raise ValueError(f"{page.file.src_uri}: no empty line before a list: {lost[0][:200]}")
    return html
