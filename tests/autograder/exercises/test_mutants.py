"""A sample of the solutions' mutants, the same in each run: each loses points or is explained.

``python -m autograder mutants`` decides all of them, which takes half an hour.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from autograder import exercises
from autograder.evaluation.trial import RankPool
from autograder.mutants.survivors import decide_mutants, mutants_of
from shardlab.ranks.trust import Trust

SAMPLE = 3  # of each exercise


@pytest.mark.ranks
@pytest.mark.exhaustive
@pytest.mark.parametrize("lab", exercises.labs())
def test_no_unexplained_mutant_earns_full_marks(lab: str) -> None:
    unexplained = []
    with RankPool(trust=Trust.UNTRUSTED) as ranks:
        for exercise in exercises.of_lab(lab):
            ranks.expect(exercise, exercise.cases)
        for exercise in exercises.of_lab(lab):
            chosen = mutants_of(lab, exercise, SAMPLE)
            assert chosen
            for decided in decide_mutants(lab, exercise, chosen, ranks):
                if decided.is_unexplained:
                    unexplained.append(f"{exercise.answer}, {decided.mutant}")
    assert unexplained == []


@pytest.mark.ranks
def test_a_mutant_leaves_no_file_in_the_current_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    lab = "03_ring_all_reduce"
    (exercise,) = (each for each in exercises.of_lab(lab) if each.answer == "bytes_per_rank")
    (first,) = mutants_of(lab, exercise, 1)
    writes = "def bytes_per_rank(*_):\n    open('left', 'w').write('x')\n    return 0\n"
    with RankPool(trust=Trust.UNTRUSTED) as ranks:
        ranks.expect(exercise, exercise.cases)
        list(decide_mutants(lab, exercise, [replace(first, source=writes)], ranks))
    assert list(tmp_path.iterdir()) == []
