"""The configuration of the documentation: `make docs`."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from sphinx.pycode import ModuleAnalyzer

import fastops

sys.path.insert(0, str(Path(__file__).parent / "_ext"))

project = "fastops"
author = "The fastops developers"
copyright = author
release = version = fastops.__version__

extensions = [
    "myst_nb",  # Markdown, and the notebooks, which it runs
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx_copybutton",
    "sphinx_design",
    "activation_pages",
    "mathml",
    "measurements",
    "outside_docs",
    "program_help",
]
exclude_patterns = ["_ext", "explorer"]
nitpicky = True
# Nothing is fetched when the pages are built: names of Python, torch and NumPy are no links.
nitpick_ignore_regex = [
    (r"py:.*", r"(torch|nn|collections|pathlib)\..*|Tensor|Module|Any"),
    (r"py:class", r"(fastops\._resolve\.)?Activation"),  # a name, or a module: said where it is an argument
    (r"py:class", r"fastops\.compile\.explain\.ExplainedGraph"),  # a part of a report that is printed
]

# What is outside of docs/ is linked to where the workflow found it; by default, to the clone that the pages lie in.
repository_url = os.environ.get("DOCS_REPOSITORY_URL", "")
root_pages = {
    "CHANGELOG.md": "changelog",
    "CODE_OF_CONDUCT.md": "conduct",
    "CONTRIBUTING.md": "contributing",
    "SECURITY.md": "security",
}

myst_enable_extensions = ["colon_fence", "deflist", "dollarmath", "fieldlist"]
myst_heading_anchors = 4
myst_links_external_new_tab = False
# `url:` is a link as it is written.
myst_url_schemes = {"http": None, "https": None, "mailto": None, "url": {"url": "{{path}}"}}
nb_execution_mode = "auto"
nb_execution_raise_on_error = True
nb_execution_timeout = 120
nb_execution_show_tb = True

autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_preserve_defaults = True
python_maximum_signature_line_length = 88
napoleon_custom_sections = [("Shape", "returns_style")]
napoleon_use_rtype = False
napoleon_use_ivar = True
add_module_names = False

html_theme = "pydata_sphinx_theme"
html_title = "fastops"
html_static_path = ["_static"]
html_css_files = ["fastops.css"]
html_math_renderer = "mathml"
html_show_sourcelink = False
html_theme_options = {
    "show_toc_level": 2,
    "header_links_before_dropdown": 7,
    "navbar_align": "left",
    "secondary_sidebar_items": ["page-toc"],
    "footer_start": ["copyright"],
    "footer_end": [],
}
html_sidebars = {"index": [], "how-it-works": []}

# An MLP has arguments of its own, not the overloads of torch.nn.Sequential.
_sequential = ModuleAnalyzer.for_module("torch.nn.modules.container")
_sequential.analyze()
_sequential.overloads.clear()
