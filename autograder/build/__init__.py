"""From text to notebooks: .nb.py -> .ipynb, and solutions/ -> labs/ by nbgrader."""
