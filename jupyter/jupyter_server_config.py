"""Settings of the JupyterLab that `make lab` starts (tools/lab.py puts this folder on the path)."""

c = get_config()  # noqa: F821  Jupyter provides it

# Only what matters: warnings, errors, and the address to open.
c.Application.log_level = "WARN"

# The .nb.py files are what the notebooks are built from: readers of the course open the notebooks.
c.ContentsManager.hide_globs = [
    "*.nb.py",
    "__pycache__",
    "*.pyc",
    "*.pyo",
    "*.egg-info",
    ".DS_Store",
    "*~",
]

# Notebooks are built by `make build` alone: no second text form is written when one is saved
# (labconfig/page_config.json hides the buttons).
c.ServerApp.jpserver_extensions = {"jupyterlab_jupytext": False}
