"""Lab 10: references match plain training, mistakes are distinct, ranks share a disk."""

from __future__ import annotations

import dataclasses
import random
from itertools import combinations
from pathlib import Path

import cloudpickle
import pytest
import torch

from autograder import exercises
from autograder.evaluation.threads import one_thread
from autograder.evaluation.trial import RankPool, Trials, rng_for
from autograder.exercises.lab10_save_resume import atomic_commit, forked_ranks, shared
from autograder.exercises.lab10_save_resume.disk_changes import ChangeCounter
from autograder.exercises.lab10_save_resume.hidden import load_sharded, train_resumable
from tests.submissions import planted

LAB = "10_save_resume"
SEED = 11
LOAD, COMMIT, TRAIN = exercises.of_lab(LAB)[1:]


@pytest.fixture(autouse=True)
def as_in_the_checker():
    with one_thread():
        yield


def inputs_of(exercise, case):
    return list(exercise.draw(case, rng_for(exercise, case, SEED)))


# ---- slices -------------------------------------------------------------------------------------


@pytest.mark.parametrize("case", LOAD.cases, ids=lambda case: case.name)
def test_load_shardeds_reference_is_the_resharded_state(case):
    state = shared.draw_state(case, rng_for(LOAD, case, SEED))
    for rank, expected in enumerate(LOAD.expect(case, inputs_of(LOAD, case))):
        for name, tensor in state.items():
            length = -(-tensor.numel() // case.world_size)
            own = tensor.flatten()[rank * length : (rank + 1) * length]
            got = expected["slices"][name]
            assert torch.equal(got[: len(own)], own)
            assert len(got) == length
            assert not got[len(own) :].any()


def test_a_rank_needs_the_files_that_overlap_its_slice():
    case = next(each for each in LOAD.cases if each.name.startswith("13"))
    assert load_sharded.needed_files(case) == [7, 7]


# ---- training -----------------------------------------------------------------------------------


@pytest.mark.parametrize("case", TRAIN.cases, ids=lambda case: case.name)
def test_the_reference_after_a_kill_is_the_end_of_an_uninterrupted_run(case):
    (given,) = inputs_of(TRAIN, case)
    starts = {"starts": [train_resumable.public.NO_KILL]}
    straight = dataclasses.replace(case, params={**case.params, **starts})
    all_steps, all_losses = train_resumable.last_start(straight, given)
    steps, losses = train_resumable.last_start(case, given)
    lost = len(all_steps) - len(steps)
    assert steps == all_steps[lost:]
    assert torch.equal(losses, all_losses[lost:])


def test_the_reference_restores_random_states():
    case = TRAIN.cases[0]
    before = torch.get_rng_state(), random.getstate()
    TRAIN.expect(case, inputs_of(TRAIN, case))
    assert torch.equal(torch.get_rng_state(), before[0])
    assert random.getstate() == before[1]


@pytest.mark.parametrize("case", TRAIN.cases[:2], ids=lambda case: case.name)
def test_mistakes_differ_from_the_right_curve_and_from_each_other(case):
    inputs = inputs_of(TRAIN, case)
    curves = [TRAIN.expect(case, inputs)[0]["losses"][0]]
    for mistake, outputs in TRAIN.required_half.mistakes(case, inputs):
        if "all ranks" not in mistake or case.params["ranks"] > 1:
            curves.append(outputs[0]["losses"][0])
    for one, other in combinations(curves, 2):
        assert (one - other).abs().max() > 20 * TRAIN.tolerance


# ---- ranks that share a disk --------------------------------------------------------------------


def test_forked_ranks_synchronize_and_share_files_and_tensors(tmp_path):
    def work(group):
        (tmp_path / f"{group.rank}").write_text("here")
        torch.distributed.barrier()
        number = torch.tensor([float(group.rank)])
        torch.distributed.all_reduce(number)
        return len(list(tmp_path.iterdir())), number.item(), torch.distributed.get_world_size()

    ends = forked_ranks.run_ranks(work, 3)
    assert [end.value for end in ends] == [(3, 3.0, 3)] * 3


def test_a_killed_rank_ends_those_that_wait_for_it():
    def work(group):
        if group.rank == 1:
            forked_ranks.kill_self()
        torch.distributed.barrier()

    assert [end.how for end in forked_ranks.run_ranks(work, 2)] == ["barrier", "killed"]


@pytest.mark.parametrize(
    ("fails", "kind"),
    [(lambda: [][0], IndexError), (lambda: b"\xff".decode(), RuntimeError)],
)
def test_a_rank_error_keeps_its_type_if_a_message_is_enough_to_create_it(fails, kind):
    ends = forked_ranks.run_ranks(lambda group: fails(), 2)
    with pytest.raises(kind, match="on rank 0 of 2"):
        forked_ranks.raise_first_error(ends)


def test_a_rank_can_be_killed_after_every_change_on_disk(tmp_path):
    def write_and_rename():
        path = tmp_path / "file"
        path.write_text("one")
        path.rename(tmp_path / "other")
        return True

    def work(group):
        counter.watch(tmp_path)  # traces functions called from here on
        return write_and_rename()

    counter = ChangeCounter()
    assert forked_ranks.run_ranks(work, 1)[0].value is True
    assert counter.count.value == 3  # empty, written, renamed
    left = []
    for kill_at in (1, 2, 3):
        for path in tmp_path.iterdir():
            path.unlink()
        counter = ChangeCounter(kill_at)
        assert forked_ranks.run_ranks(work, 1)[0].how == "killed"
        left.append({path.name: path.read_text() for path in tmp_path.iterdir()})
    assert left == [{"file": ""}, {"file": "one"}, {"other": "one"}]


def test_a_folder_named_as_a_step_must_be_complete():
    given = {"old": ["a", "b"], "new": ["c", "d"]}
    old = {atomic_commit.OLD: atomic_commit.files_of(given["old"])}
    new = {atomic_commit.NEW: atomic_commit.files_of(given["new"])}
    half = {atomic_commit.NEW: {"rank_0.txt": "c"}}
    for disk, broken in ((old, False), (old | new, False), (old | half, True), ({}, True)):
        assert atomic_commit.is_broken(disk, given) is broken
    assert not atomic_commit.is_broken(old | {"unfinished": {"rank_0.txt": "c"}}, given)
    assert atomic_commit.is_broken(old | {"step_00000003": {}}, given)


# ---- right answers ------------------------------------------------------------------------------

TEMPORARY_NAME_PER_STEP = """
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
def test_the_last_rank_may_rename_and_each_step_may_have_its_own_temporary_name():
    case = COMMIT.cases[1]
    answers = planted.solution(LAB) | {"atomic_commit": TEMPORARY_NAME_PER_STEP}
    subject = planted.subjects(LAB, answers)[COMMIT.answer]
    with RankPool() as ranks:
        ranks.expect(COMMIT, [case])
        _, judged = Trials(COMMIT, cloudpickle.dumps(subject), SEED, ranks).run(case)
    assert judged.result.passed, judged.result.diagnosis


def test_no_temporary_files_are_left(tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    case = COMMIT.cases[0]
    subject = planted.subjects(LAB, planted.solution(LAB))["atomic_commit"]
    output = COMMIT.drive(subject, inputs_of(COMMIT, case)[0], case)
    assert output["was killed"]
    assert output["broken by a kill"] == output["restarts that failed"] == 0
    assert list(Path(tmp_path).iterdir()) == []
