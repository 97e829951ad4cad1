"""From text to notebooks: .nb.py -> .ipynb, and solutions/ -> labs/ by nbgrader."""

from autograder.build.products import Drift, build, check
from autograder.build.text import SourceError, notebook_from_text

__all__ = ["Drift", "SourceError", "build", "check", "notebook_from_text"]
