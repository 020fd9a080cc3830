"""How `make docs` makes the site. Every warning is an error there, so a link that leads nowhere fails."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

project = "Farandole"
copyright = "the Farandole authors"
author = "the Farandole authors"

extensions = ["myst_parser", "sphinx.ext.napoleon", "docs.site.reference"]
exclude_patterns = ["site"]

# Links are written as they work on a code host: to files, with the anchors that it makes of headings.
myst_heading_anchors = 4
myst_enable_extensions = ["colon_fence"]
napoleon_google_docstring = True
suppress_warnings = ["ref.python"]  # a name that several modules offer: the same thing in all of them
napoleon_numpy_docstring = False

html_theme = "furo"
html_title = "Farandole"
html_show_sphinx = False
html_copy_source = False
python_display_short_literal_types = True
python_maximum_signature_line_length = 100
toc_object_entries_show_parents = "hide"
