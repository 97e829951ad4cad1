"""Which tests run, and which of them first.

Of many similar tests `make test` runs some; the others are marked exhaustive.  They run with
``--all``, as in CI, and wherever a user names tests.
"""

from __future__ import annotations

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--screenshots", action="store_true", help="also take screenshots, for review")
    parser.addoption("--all", action="store_true", help="also run exhaustive tests, as CI does")


def pytest_configure(config: pytest.Config) -> None:
    option = config.option  # a worker of pytest-xdist gets the same arguments as its parent
    are_named = config.args_source is pytest.Config.ArgsSource.ARGS
    option.all = bool(option.all or are_named or option.keyword or option.markexpr)


def pytest_report_header(config: pytest.Config) -> str:
    return "" if config.option.all else "left out: exhaustive tests; ARGS=--all adds them"


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    selected = {"screenshots": config.option.screenshots, "exhaustive": config.option.all}
    left_out = {name for name, is_selected in selected.items() if not is_selected}
    items[:] = [item for item in items if left_out.isdisjoint(names_of_marks(item))]
    items.sort(key=lambda item: "long" not in names_of_marks(item))


def names_of_marks(item: pytest.Item) -> set[str]:
    return {mark.name for mark in item.iter_markers()}
