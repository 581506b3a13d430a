"""What mkdocs is told of this repository; see mkdocs.yml."""

import logging
import pathlib
import re

import griffe
from mkdocs.structure.files import File

ROOT = pathlib.Path(__file__).resolve().parent.parent
# Files outside of docs/ that become pages.
PAGES = {"README.md": "readme.md", "CHANGELOG.md": "changelog.md"}
LINK = re.compile(r"\[([^\]]*)\]\((?!https?:)([^)#\s]+)(#[^)\s]*)?\)")
# Lines from a prompt to the next empty one.
EXAMPLE = re.compile(r"^(>>> .*(?:\n.+)*)", re.M)

log = logging.getLogger("mkdocs.hooks.pages")


def on_files(files, config):
    """Adds the pages that do not lie in docs/."""
    for source, page in PAGES.items():
        files.append(File.generated(config, page, abs_src_path=str(ROOT / source)))
    return files


def on_page_markdown(markdown, page, config, files):
    """Makes links of the repository into links of the site.

    A link to a file that is no page becomes its text.
    """
    sources = {page: source for source, page in PAGES.items()}
    here = ROOT / sources.get(page.file.src_uri, f"docs/{page.file.src_uri}")

    def replace(match):
        text, target, anchor = match.groups(default="")
        file = (here.parent / target).resolve()
        if not file.exists():
            log.warning("%s links to %s, which is not there.", here.name, target)
        name = file.relative_to(ROOT).as_posix()
        if name.startswith("docs/"):
            name = name.removeprefix("docs/")
        elif name in PAGES:
            name = PAGES[name]
        else:
            return text
        return f"[{text}]({'../' * page.file.src_uri.count('/')}{name}{anchor})"

    return LINK.sub(replace, markdown)


class Docstrings(griffe.Extension):
    """Writes docstrings in the Markdown that griffe knows."""

    def on_instance(self, *, obj, **kwargs):
        if obj.docstring is None:
            return
        text = obj.docstring.value
        text = text.replace("Call arguments:", "Other Args: Call arguments")
        text = re.sub(r"^Example:", "**Example:**", text, flags=re.M)
        obj.docstring.value = EXAMPLE.sub(r"```pycon\n\1\n```", text)
