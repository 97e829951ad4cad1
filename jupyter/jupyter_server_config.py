"""Settings of the JupyterLab that `make lab` starts (tools/lab.py puts this folder on the path)."""

import sys
from pathlib import Path
from typing import Any

c = get_config()  # noqa: F821  (provided by Jupyter)

# Show only warnings, errors, and the address to open.
c.Application.log_level = "WARN"


def after_save(model: dict[str, Any], os_path: str, **_: object) -> None:
    """git then sees that only outputs have changed. A students' copy has no git filter."""
    if model["type"] == "notebook" and (repository / "tools/git_filter.py").exists():
        from tools.git_filter import forget_size

        forget_size(Path(os_path))


repository = Path(__file__).parent.parent
sys.path.append(str(repository))
c.FileContentsManager.post_save_hook = after_save

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
