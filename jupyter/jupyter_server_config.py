"""Settings of the JupyterLab that `make lab` starts (tools/lab.py puts this folder on the path)."""

from pathlib import Path

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

# nbgrader's configuration is not in a students' copy, and nor is what instructors have of ours.
instructors = (Path(__file__).parent.parent / "nbgrader_config.py").exists()

c.ServerApp.jpserver_extensions = {
    # Notebooks are built by `make build` alone: no second text form is written when one is saved
    # (labconfig/page_config.json hides the buttons).
    "jupyterlab_jupytext": False,
    # formgrader's pages for a class of hundreds.
    **({"autograder.pages.formgrader": True} if instructors else {}),
}
