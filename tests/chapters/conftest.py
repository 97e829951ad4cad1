"""A chapter's own module opens it in the browser too: it is run once."""

from tests.browser.conftest import desk, lab

__all__ = ["desk", "lab"]
