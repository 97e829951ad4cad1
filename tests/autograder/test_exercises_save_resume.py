"""Lab 10: oracles against plain training, slips that differ, ranks that share a disk."""

from __future__ import annotations

import importlib
import random
from itertools import combinations
from pathlib import Path

import cloudpickle
import pytest
import torch

from autograder.evaluation.threads import one_thread
from autograder.evaluation.trial import KeptRanks, Trials, rng_for
from autograder.exercises import (
    atomic_commit,
    checkpoint_shards,
    load_sharded,
    resume_mistakes,
    resumed_lives,
    shared_disk,
)
from tests.submissions import planted

LAB = "10_save_resume"
SEED = 11
lab = importlib.import_module(f"autograder.exercises.{LAB}")


@pytest.fixture(autouse=True)
def as_in_the_checker():
    with one_thread():
        yield


def inputs_of(exercise, case):
    return list(exercise.draw(case, rng_for(exercise, case, SEED)))


# ---- slices -------------------------------------------------------------------------------------


@pytest.mark.parametrize("case", lab.LOAD_SHARDED.cases, ids=lambda case: case.name)
def test_the_oracle_of_load_is_the_state_cut_anew(case):
    given = inputs_of(lab.LOAD_SHARDED, case)[0]
    state = checkpoint_shards.draw_state(case, rng_for(lab.LOAD_SHARDED, case, SEED))
    for rank, expected in enumerate(lab.LOAD_SHARDED.expect(case, [given])):
        for name, tensor in state.items():
            length = -(-tensor.numel() // case.world_size)
            own = tensor.flatten()[rank * length : (rank + 1) * length]
            got = expected["slices"][name]
            assert torch.equal(got[: len(own)], own)
            assert len(got) == length
            assert not got[len(own) :].any()


def test_a_rank_needs_the_files_that_overlap_its_slice():
    case = next(each for each in lab.LOAD_SHARDED.cases if each.name.startswith("13"))
    assert load_sharded.needed_files(case) == [7, 7]


# ---- training -----------------------------------------------------------------------------------


@pytest.mark.parametrize("case", lab.TRAIN_RESUMABLE.cases, ids=lambda case: case.name)
def test_what_follows_a_kill_is_the_end_of_a_run_without(case):
    given = inputs_of(lab.TRAIN_RESUMABLE, case)[0]
    straight = resumed_lives.last_life(
        type(case)(case.name, 1, {**case.params, "kills": []}), given, ""
    )
    resumed = resumed_lives.last_life(case, given, "")
    lost = len(straight["steps"]) - len(resumed["steps"])
    assert resumed["steps"] == straight["steps"][lost:]
    assert torch.equal(resumed["losses"], straight["losses"][lost:])


def test_the_oracle_leaves_random_states_as_they_were():
    case = lab.TRAIN_RESUMABLE.cases[0]
    given = inputs_of(lab.TRAIN_RESUMABLE, case)[0]
    before = torch.get_rng_state(), random.getstate()
    resumed_lives.last_life(case, given, "")
    assert torch.equal(torch.get_rng_state(), before[0])
    assert random.getstate() == before[1]


@pytest.mark.parametrize("case", lab.TRAIN_RESUMABLE.cases[:2], ids=lambda case: case.name)
def test_slips_differ_from_the_right_curve_and_from_each_other(case):
    given = inputs_of(lab.TRAIN_RESUMABLE, case)[0]
    slips = [slip for slip in resumed_lives.SLIPS if "rank" not in slip or case.params["ranks"] > 1]
    curves = {slip: resumed_lives.last_life(case, given, slip)["losses"] for slip in slips}
    for one, other in combinations(slips, 2):
        gap = (curves[one] - curves[other]).abs().max()
        assert gap > 20 * resume_mistakes.TOLERANCE, (one, other)


# ---- ranks that share a disk --------------------------------------------------------------------


def test_ranks_meet_share_files_and_hear_each_other(tmp_path):
    def work(colleagues):
        (tmp_path / f"{colleagues.rank}").write_text("here")
        torch.distributed.barrier()
        number = torch.tensor([float(colleagues.rank)])
        torch.distributed.all_reduce(number)
        return len(list(tmp_path.iterdir())), number.item(), torch.distributed.get_world_size()

    ends = shared_disk.run_ranks(work, 3)
    assert [end.value for end in ends] == [(3, 3.0, 3)] * 3


def test_a_killed_rank_ends_those_that_wait_for_it():
    def work(colleagues):
        if colleagues.rank == 1:
            shared_disk.die()
        torch.distributed.barrier()

    assert [end.how for end in shared_disk.run_ranks(work, 2)] == ["waits", "killed"]


def test_an_error_comes_through_as_it_was(tmp_path):
    ends = shared_disk.run_ranks(lambda colleagues: [][colleagues.rank], 2)
    assert [end.value[0] for end in ends] == ["IndexError"] * 2
    with pytest.raises(IndexError, match="on rank 0 of 2"):
        shared_disk.raise_what_went_wrong(ends)


def test_every_change_on_the_disk_is_a_moment_to_be_killed_at(tmp_path):
    def write_and_rename():
        path = tmp_path / "file"
        path.write_text("one")
        path.rename(tmp_path / "other")
        return True

    def work(colleagues):
        shared_disk.count_changes(tmp_path, moments)  # in what is called from here on
        return write_and_rename()

    moments = shared_disk.Moments()
    assert shared_disk.run_ranks(work, 1)[0].value is True
    assert moments.count == 3  # empty, written, renamed
    left = []
    for kill_at in (1, 2, 3):
        for path in tmp_path.iterdir():
            path.unlink()
        moments = shared_disk.Moments(kill_at)
        assert shared_disk.run_ranks(work, 1)[0].how == "killed"
        left.append({path.name: path.read_text() for path in tmp_path.iterdir()})
    assert left == [{"file": ""}, {"file": "one"}, {"other": "one"}]


def test_what_is_called_a_step_has_to_be_whole():
    given = {"old": ["a", "b"], "new": ["c", "d"]}
    old = atomic_commit.complete(given["old"], atomic_commit.OLD)
    new = atomic_commit.complete(given["new"], atomic_commit.NEW)
    half = dict(list(new.items())[:1])
    for files, broken in ((old, False), (old | new, False), (old | half, True), ({}, True)):
        assert atomic_commit.is_broken(files, given) is broken
    assert not atomic_commit.is_broken(old | {"unfinished/rank_0.txt": "c"}, given)


# ---- other right answers ------------------------------------------------------------------------

IN_A_MARKED_FOLDER = """
def atomic_commit(root, step, write):
    if dist.get_rank() == 0:
        for left in root.glob("tmp-*"):
            shutil.rmtree(left)
        (root / f"tmp-{step}").mkdir()
    dist.barrier()
    write(root / f"tmp-{step}")
    dist.barrier()
    if dist.get_rank() == dist.get_world_size() - 1:
        os.replace(root / f"tmp-{step}", root / f"step_{step:08}")
    dist.barrier()
"""


@pytest.mark.ranks
def test_another_rank_may_rename_and_every_step_have_its_own_temporary_name():
    exercise, case = lab.ATOMIC_COMMIT, lab.ATOMIC_COMMIT.cases[1]
    answers = planted.solution(LAB) | {"atomic_commit": IN_A_MARKED_FOLDER}
    subject = planted.subjects(LAB, answers)[exercise.answer]
    with KeptRanks() as ranks:
        ranks.expect(exercise, [case])
        _, result = Trials(exercise, cloudpickle.dumps(subject), SEED, ranks).of(case)
    assert result.passed, result.diagnosis


def test_nothing_is_left_in_the_folder_for_temporary_files(tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    case = lab.ATOMIC_COMMIT.cases[0]
    subject = planted.subjects(LAB, planted.solution(LAB))["atomic_commit"]
    output = atomic_commit.drive_commit(subject, inputs_of(lab.ATOMIC_COMMIT, case)[0], case)
    assert output["was killed"]
    assert output["broken by a kill"] == output["restarts that failed"] == 0
    assert list(Path(tmp_path).iterdir()) == []
