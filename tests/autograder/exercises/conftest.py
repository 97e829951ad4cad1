from __future__ import annotations

from collections.abc import Iterator

import pytest

from shardlab.ranks.threads import one_thread


@pytest.fixture(autouse=True)
def one_thread_as_in_the_checker() -> Iterator[None]:
    with one_thread():
        yield
