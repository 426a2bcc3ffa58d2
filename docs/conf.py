"""The documentation site: `make docs` builds it into build/docs from Markdown that reads well on its own, too."""

import re
import sys
from importlib.metadata import version as version_of
from pathlib import Path

import sphinx.application

sys.path.insert(0, str(Path(__file__).parent))  # directives.py

project = "dslide"
author = copyright = "the authors of dslide"
release = version = version_of("dslide")

extensions = ["myst_nb", "sphinx.ext.autodoc", "numpydoc", "sphinx_copybutton", "directives"]
myst_enable_extensions = ["deflist"]
myst_heading_anchors = 4  # as on GitHub, for links to headings
nb_execution_mode = "off"  # notebooks are stored with their outputs; tests run them

smartquotes = False  # options begin with two hyphens
default_role = "literal"  # single backticks in docstrings
autodoc_member_order = "bysource"
autodoc_preserve_defaults = True
autodoc_typehints_format = "short"
autodoc_mock_imports = ["ray"]  # not needed to read its docstrings
numpydoc_show_class_members = False

html_theme = "furo"
html_title = "dslide"
html_static_path = ["static"]
html_css_files = ["site.css"]
html_copy_source = False
copybutton_exclude = ".linenos, .gp, .go"

# Pages that include a file from outside this folder, where links to these files lead.
OUTSIDE = {
    "README.md": "index.md",
    "CONTRIBUTING.md": "project/contributing.md",
    "CHANGELOG.md": "project/changes.md",
    "SECURITY.md": "project/security-policy.md",
}


def link_to_pages(app: sphinx.application.Sphinx, page: str, source: list[str]) -> None:
    """Links to files above this folder lead to the pages that include them."""
    above = "../" * (page.count("/") + 1)
    for file, target in OUTSIDE.items():
        source[0] = source[0].replace(f"]({above}{file}", f"](/{target}")


def keep_numbers_together(app: sphinx.application.Sphinx, page: str, source: list[str]) -> None:
    """In tables, no line ends within figures like .53 / .33 / .24, nor before a unit."""
    lines = source[0].split("\n")
    for number, line in enumerate(lines):
        if line.startswith("|"):
            line = re.sub(r"(?<=[\d*]) / (?=[*.@\w])", "\u00a0/\u00a0", line)
            lines[number] = re.sub(r"(?<=\d) (?=(?:%|s|ms|min|[KMG]B)(?![\w/]))", "\u00a0", line)
    source[0] = "\n".join(lines)


def setup(app: sphinx.application.Sphinx) -> None:
    app.connect("source-read", link_to_pages)
    app.connect("source-read", keep_numbers_together)
    app.connect("include-read", lambda app, _path, page, source: keep_numbers_together(app, page, source))
