"""How Sphinx makes the site: `make docs`."""

from __future__ import annotations

import os
import sys
from pathlib import Path

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE / "_ext"))

import medbn  # noqa: E402
from medbn._styles import estimator_style  # noqa: E402

project = "medbn"
author = "The medbn authors"
project_copyright = "the medbn authors"
version = release = medbn.__version__

extensions = [
    "myst_nb",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx.ext.viewcode",
    "sphinx_copybutton",
    "sphinx_gallery.gen_gallery",
    "docstrings",
    "pictures",
    "registered",
    "repository",
]
exclude_patterns = ["_build", "gallery/*.ipynb", "gallery/*.py", "gallery/*.zip", "gallery/*.md5", "jupyter_execute"]
# sphinx-gallery's own functions cannot be pickled between builds, which is no fault of a page.
suppress_warnings = ["config.cache"]

# --- Markdown, and the notebook ---------------------------------------------------------------------------------------
myst_enable_extensions = ["attrs_block", "colon_fence", "deflist", "substitution"]
myst_heading_anchors = 4
nb_execution_mode = "force"
nb_execution_raise_on_error = True
nb_execution_timeout = -1
nb_execution_in_temp = True
nb_merge_streams = True
# The kernel writes a warning that it listens on this machine, as it has to; only errors are shown.
profile = HERE.parent / "build" / "ipython" / "profile_default"
profile.mkdir(parents=True, exist_ok=True)
(profile / "ipython_kernel_config.py").write_text("c.IPKernelApp.log_level = 40\n")
os.environ["IPYTHONDIR"] = str(profile.parent)

# --- the API from docstrings ------------------------------------------------------------------------------------------
autodoc_typehints = "signature"
autodoc_typehints_format = "short"
autodoc_member_order = "bysource"
autodoc_preserve_defaults = True
autodoc_class_signature = "mixed"
napoleon_google_docstring = True
napoleon_numpy_docstring = False
python_use_unqualified_type_names = True
python_maximum_signature_line_length = 100
add_module_names = False

# --- examples, which are run ------------------------------------------------------------------------------------------
sphinx_gallery_conf = {
    "examples_dirs": ["../examples/gallery"],
    "gallery_dirs": ["gallery"],
    "filename_pattern": r"\.py$",
    "ignore_pattern": r"__init__\.py",
    "within_subsection_order": "gallery_order.Order",
    "abort_on_example_error": True,
    "only_warn_on_example_error": False,
    "download_all_examples": False,
    "show_memory": False,
    "show_signature": False,
    "write_computation_times": False,
    "remove_config_comments": True,
    "plot_gallery": "True",
    "reset_modules": ("matplotlib", "gallery_order.reset"),
    "capture_repr": ("_repr_html_", "__repr__"),
    "ignore_repr_types": r"matplotlib",
    "image_srcset": ["2x"],
}

# --- looks ------------------------------------------------------------------------------------------------------------
html_theme = "furo"
html_title = f"medbn {release}"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_js_files = ["site.js"]
html_copy_source = False
html_show_sphinx = False
pygments_style = "friendly"
pygments_dark_style = "github-dark"
brand = estimator_style("image_median")
html_theme_options = {
    "light_css_variables": {"color-brand-primary": "#0b6b49", "color-brand-content": "#0b6b49"},
    "dark_css_variables": {"color-brand-primary": brand.dark, "color-brand-content": brand.dark},
    "navigation_with_keys": True,
    "top_of_page_buttons": [],
}
copybutton_exclude = ".linenos, .gp, .go"
