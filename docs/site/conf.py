"""Settings of Sphinx for the site. `build_site.py` puts its pages together and calls Sphinx with this folder."""

import sys
from importlib.metadata import version as installed
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))  # site_parts.py

project = "Learn the Transformer by rebuilding it"
author = "the authors of the course"
project_copyright = "Code: Apache-2.0. Text: CC BY 4.0"
version = release = installed("course-lib")
language = "en"
root_doc = "index"
extensions = [
    "myst_nb",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx_copybutton",
    "site_parts",
]
exclude_patterns = ["files/**"]

# The notebooks were executed when they were built, and their outputs are what the tests compare.
nb_execution_mode = "off"
nb_ipywidgets_js: dict[str, dict[str, str]] = {}  # controls need a kernel; their plain text says so
nb_mime_priority_overrides = [("html", "application/vnd.jupyter.widget-view+json", None)]
myst_enable_extensions = ["dollarmath", "colon_fence", "deflist"]
myst_heading_anchors = 4
html_math_renderer = "mathml"

default_role = "literal"
autodoc_member_order = "bysource"
autodoc_default_options = {"members": True, "show-inheritance": True}
autodoc_preserve_defaults = True
autodoc_use_type_comments = False
napoleon_numpy_docstring = False
add_module_names = False
toc_object_entries_show_parents = "hide"

html_theme = "pydata_sphinx_theme"
html_title = "Learn the Transformer"
html_static_path = [str(HERE / "static")]
html_css_files = ["site.css"]
html_js_files = ["search.js"]
html_context = {"default_mode": "auto"}
html_copy_source = False
html_show_sourcelink = False
html_show_sphinx = False
html_permalinks_icon = "#"
html_sidebars: dict[str, list[str]] = {"index": [], "start": [], "exercises": []}
html_theme_options = {
    "logo": {"text": "Learn the Transformer"},
    "search_bar_text": "Search the course",
    "header_links_before_dropdown": 8,
    "navbar_align": "left",
    "show_toc_level": 2,
    "footer_start": ["copyright"],
    "footer_end": [],
    "secondary_sidebar_items": ["page-toc"],
    "pygments_light_style": "a11y-high-contrast-light",
    "pygments_dark_style": "a11y-high-contrast-dark",
}
copybutton_selector = "div.cell_input pre, div.highlight-default pre, div.highlight-bash pre"
