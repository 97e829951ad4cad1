"""Browser fixtures for the chapter tests, which run each chapter once for all its tests."""

from tests.browser.conftest import desk, lab

__all__ = ["desk", "lab"]
