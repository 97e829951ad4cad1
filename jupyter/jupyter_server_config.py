"""Settings of the JupyterLab that `make lab` starts (tools/lab.py puts this folder on the path)."""

from pathlib import Path

c = get_config()  # noqa: F821  (provided by Jupyter)

# Show only warnings, errors, and the address to open.
c.Application.log_level = "WARN"

repository = Path(__file__).parent.parent
# git then sees that only outputs have changed. A students' copy has no git filter.
if (repository / "tools/git_filter.py").exists():
    c.FileContentsManager.post_save_hook = "tools.git_filter.after_save"

# The notebooks are built from the .nb.py files; readers of the course open the notebooks.
c.ContentsManager.hide_globs = [
    "*.nb.py",
    "__pycache__",
    "*.pyc",
    "*.pyo",
    "*.egg-info",
    ".DS_Store",
    "*~",
]

# A student copy has neither nbgrader's configuration nor our extension for instructors.
instructors = (repository / "nbgrader_config.py").exists()

c.ServerApp.jpserver_extensions = {
    # Only `make build` builds notebooks: saving one must not write a paired text file
    # (labconfig/page_config.json hides the buttons).
    "jupyterlab_jupytext": False,
    # Faster formgrader pages for a class of hundreds.
    **({"autograder.pages.formgrader": True} if instructors else {}),
}
