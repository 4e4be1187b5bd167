"""Files outside docs/ as pages of the site, and the links that lead to them and back.

A page is read where it lies, too, so it links to ../examples/plain_loop.py as it lies there. What
is linked to gets a place below project/: Markdown as a page, code as a block on a page, pictures
and data as they are.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterator
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files, InclusionLevel
from mkdocs.structure.pages import Page

IN_NAV = ("README.md", "CONTRIBUTING.md", "CHANGELOG.md")
CODE = {".py": "python", ".yaml": "yaml", ".toml": "toml", ".cff": "yaml", "": "text"}  # by suffix

_FENCED = re.compile(r"^(`{3,}).*?^\1$", re.M | re.S)
_LINK = re.compile(r"(?<=\]\()[^)#\s:]+(?=[)#])")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Adds what the navigation names, what pages link to, and what those link to in turn."""
    root = Path(config.config_file_path).parent
    todo = list(IN_NAV)
    for file in files.documentation_pages():
        todo += targets(f"docs/{file.src_uri}", file.content_string)
    while todo:
        path = todo.pop()
        uri = in_site(path)
        if not (root / path).is_file() or files.get_file_from_path(uri) is not None:
            continue
        if not uri.endswith(".md"):
            files.append(File.generated(config, uri, abs_src_path=str(root / path)))
            continue
        text = (root / path).read_text(encoding="utf-8")
        if path.endswith(".md"):
            todo += targets(path, text)
        else:
            block = f"````{CODE[posixpath.splitext(path)[1]]}\n{text}````"
            text = f"---\nsearch: {{exclude: true}}\n---\n\n# {path}\n\n{block}\n"
        level = InclusionLevel.INCLUDED if path in IN_NAV else InclusionLevel.NOT_IN_NAV
        files.append(File.generated(config, uri, content=text, inclusion=level))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Rewrites links across the border of docs/; one that leads nowhere stays, and is reported."""
    own = page.file.src_uri
    source = own.removeprefix("project/") if own.startswith("project/") else f"docs/{own}"

    def new_link(link: re.Match[str]) -> str:
        uri = in_site(resolve(source, link[0]))
        is_there = files.get_file_from_path(uri) is not None
        return posixpath.relpath(uri, posixpath.dirname(own) or ".") if is_there else link[0]

    parts = prose(markdown)
    return "".join(part if is_code else _LINK.sub(new_link, part) for is_code, part in parts)


def in_site(path: str) -> str:
    """The place of a file of the project.

    >>> in_site("docs/cost.md"), in_site("README.md"), in_site("results/bits.png")
    ('cost.md', 'project/README.md', 'project/results/bits.png')
    >>> in_site("examples/loop.py")  # a page that shows it
    'project/examples/loop.py.md'
    """
    if path.startswith("docs/"):
        return path.removeprefix("docs/")
    is_code = posixpath.splitext(path)[1] in CODE
    return f"project/{path}.md" if is_code else f"project/{path}"


def resolve(source: str, link: str) -> str:
    """The file of the project that a relative link in another one leads to."""
    return posixpath.normpath(posixpath.join(posixpath.dirname(source), link))


def targets(source: str, text: str) -> list[str]:
    """The files outside docs/ that a page links to."""
    links = (link for is_code, part in prose(text) if not is_code for link in _LINK.findall(part))
    found = (resolve(source, link) for link in links)
    return [path for path in found if not path.startswith(("docs/", "../", "/"))]


def prose(text: str) -> Iterator[tuple[bool, str]]:
    """The text in pieces, each with whether it is a block of code."""
    at = 0
    for block in _FENCED.finditer(text):
        yield False, text[at : block.start()]
        yield True, block[0]
        at = block.end()
    yield False, text[at:]
