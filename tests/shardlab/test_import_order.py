"""Import order of shardlab's rooms: each imports only from those before it, so no cycles."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.import_order import ImportOrder

# A lower room knows less: the first know nothing of ranks, the last draw what ranks did.
ROOMS = (
    "display",
    "linux",
    "data",
    "models",
    "recorded_runs",
    "run",
    "errors",
    "trace",
    "nodes",
    "ranks",
    "job",
    "node_runs",
    "launch",
    "launched_script",
    "placement",
    "estimate",
    "plan",
    "simulate",
    "simulate/pipeline",
    "pipeline",
    "shards",
    "widgets",
    "notebook_code",
    "machine_report",
    "export",
    "preflight",
)
ORDER = ImportOrder(Path(__file__).parents[2] / "course" / "shardlab", ROOMS)


def test_every_room_is_listed() -> None:
    assert ORDER.rooms_not_listed() == set()


@pytest.mark.parametrize("room", ROOMS)
def test_rooms_import_only_from_earlier_ones(room: str) -> None:
    assert ORDER.imports_of_later_rooms(room) == []


def test_modules_do_not_import_each_other_in_a_circle() -> None:
    assert ORDER.cycle() == []


def test_imports_inside_functions_count(tmp_path: Path) -> None:
    package = tmp_path / "toy"
    (package / "later").mkdir(parents=True)
    (package / "first.py").write_text("def f():\n    from toy.later import second\n")
    (package / "later" / "second.py").write_text("import toy.first\n")
    order = ImportOrder(package, ("first", "later"))
    assert order.imports_of_later_rooms("first") == ["first.py:2 imports later/second.py"]
    assert order.imports_of_later_rooms("later") == []
    assert sorted(order.cycle()[1:]) == ["first.py", "later/second.py"]
