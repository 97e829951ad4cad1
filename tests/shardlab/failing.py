"""Helpers for runs that must fail; they also check what every LaunchError has in common."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest

from shardlab import LaunchError, launch
from shardlab.ranks.rank_set import RankSet


def fails(
    fn: Callable[..., Any], world_size: int = 2, timeout_s: float = 20, **options: Any
) -> LaunchError:
    with pytest.raises(LaunchError) as caught:
        launch(fn, world_size=world_size, timeout_s=timeout_s, quiet=True, **options)
    return _checked(caught.value)


def fails_on(ranks: RankSet, fn: Callable[..., Any], **options: Any) -> LaunchError:
    with ranks, pytest.raises(LaunchError) as caught:
        ranks.run(fn, **options)
    return _checked(caught.value)


def _checked(error: LaunchError) -> LaunchError:
    assert "\n" not in error.headline
    assert str(error).splitlines()[0] == error.headline
    assert error.run is not None
    return error


def names_line(error: LaunchError, code: str) -> bool:
    """Whether the headline contains the test's file and the text of the line at fault."""
    return bool(re.search(r"test_\w+\.py, line ", error.headline)) and code in error.headline
