"""Settings of the JupyterLab that `make lab` starts (tools/lab.py puts this folder on the path)."""

import sys
from pathlib import Path
from typing import Any

from jupyter_server.services.contents.largefilemanager import AsyncLargeFileManager

c = get_config()  # noqa: F821  (provided by Jupyter)

# Show only warnings, errors, and the address to open.
c.Application.log_level = "WARN"

repository = Path(__file__).parent.parent


class Contents(AsyncLargeFileManager):
    """Adds the details of this Python to a notebook, as its kernel would.

    Otherwise JupyterLab shows a notebook as changed as soon as its kernel has started. The details
    cannot be stored in the notebooks, because they include the version, 3.11.9 for example.
    """

    async def get(self, path: str, *args: Any, **options: Any) -> dict[str, Any]:
        model: dict[str, Any] = await super().get(path, *args, **options)
        if model["type"] == "notebook" and model["content"]:
            # Imported here, because it would slow down the server's start.
            from ipykernel.ipkernel import IPythonKernel

            language = model["content"]["metadata"].setdefault("language_info", {"name": "python"})
            if language["name"] == "python":
                language.update(IPythonKernel.language_info)
        return model


c.ServerApp.contents_manager_class = Contents
c.LabApp.custom_css = True
c.LabApp.extra_labextensions_path = [str(repository / "jupyter/labextensions")]
c.ServerApp.tornado_settings = {"static_custom_path": [str(repository / "jupyter/custom")]}

# Lets git see that only outputs have changed. A students' copy has no git filter.
if (repository / "tools/git_filter.py").exists():
    sys.path.append(str(repository))  # JupyterHub starts the server in the user's home
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

# A students' copy has neither nbgrader's configuration nor our extension for instructors.
instructors = (repository / "nbgrader_config.py").exists()

c.ServerApp.jpserver_extensions = {
    # Only `make build` builds notebooks: saving one must not write a paired text file
    # (labconfig/page_config.json hides the buttons).
    "jupyterlab_jupytext": False,
    # Faster formgrader pages for a class of hundreds.
    **({"autograder.pages.formgrader": True} if instructors else {}),
}
