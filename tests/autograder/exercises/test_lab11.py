"""Lab 11: references match plain training, mistakes are distinct, ranks share a disk."""

from __future__ import annotations

import ctypes
import dataclasses
import mmap
import os
import random
import shutil
import signal
import socket
import subprocess
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from itertools import combinations
from pathlib import Path

import cloudpickle
import psutil
import pytest
import torch

from autograder import exercises
from autograder.evaluation.decide import decide
from autograder.evaluation.trial import rng_for
from autograder.exercises.lab11_save_resume import (
    commits,
    forked_ranks,
    process_group,
    rank_errors,
    shared,
)
from autograder.exercises.lab11_save_resume.folders import INODE_BYTES, total_bytes
from autograder.exercises.lab11_save_resume.hidden import load_sharded, train_resumable
from autograder.guest import held_calls
from shardlab.ranks.trust import Trust
from tests.submissions import planted
from tests.submissions.deciding import inputs_of

LAB = "11_save_resume"
SEED = 11
_, LOAD, COMMIT, TRAIN = exercises.of_lab(LAB)
KILLED = [case for case in TRAIN.cases if "all steps" not in case.name]  # steps are left to run


# ---- slices -------------------------------------------------------------------------------------


@pytest.mark.parametrize("case", LOAD.cases, ids=lambda case: case.name)
def test_the_reference_of_load_sharded_is_the_resharded_state(case):
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
    assert [len(files) for files in load_sharded.needed_files(case)] == [5, 5]


def test_with_few_files_a_rank_gets_only_those_it_needs():
    case = next(each for each in LOAD.cases if each.params["few files"])
    needed = load_sharded.needed_files(case)
    for files, given in zip(needed, inputs_of(LOAD, case), strict=True):
        assert [int(number) for number in given["shards"]] == files
        assert len(files) < case.params["saved on"]


# ---- training -----------------------------------------------------------------------------------


@pytest.mark.parametrize("case", TRAIN.cases, ids=lambda case: case.name)
def test_the_reference_after_a_kill_is_the_end_of_an_uninterrupted_run(case):
    (given,) = inputs_of(TRAIN, case)
    starts = {"starts": [train_resumable.public.NO_KILL]}
    uninterrupted = dataclasses.replace(case, params={**case.params, **starts})
    all_steps, all_losses = train_resumable.last_start(uninterrupted, given)
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


@pytest.mark.parametrize("case", KILLED, ids=lambda case: case.name)
def test_mistakes_differ_from_the_right_curve_and_from_each_other(case):
    inputs = inputs_of(TRAIN, case)
    curves = [("none", TRAIN.expect(case, inputs)[0]["losses"][0])]
    for mistake, outputs in TRAIN.required_half.mistakes(case, inputs):
        if "all ranks" not in mistake or case.params["ranks"] > 1:
            curves.append((mistake, outputs[0]["losses"][0]))
    for (name, one), (other_name, other) in combinations(curves, 2):
        if name != other_name:  # variants of one mistake may be equal
            assert ((one - other) / one).abs().max() > 20 * TRAIN.tolerance


@pytest.mark.parametrize("seed", range(6))
def test_a_lost_loss_scale_or_count_of_good_steps_is_detected_for_every_seed(seed):
    for case in KILLED:
        inputs = list(TRAIN.draw(case, rng_for(TRAIN, case, seed)))
        curves = [TRAIN.expect(case, inputs)[0]["losses"][0]]
        for lost in ("scaler", "good_steps"):
            curves.append(train_resumable.without(lost)(case, inputs)["losses"][0])
        for one, other in combinations(curves, 2):
            assert ((one - other) / one).abs().max() > 20 * TRAIN.tolerance


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


def test_a_rank_waits_for_an_asynchronous_collective_only_in_wait(tmp_path):
    """Rank 1, which runs last, writes its file before the first barrier."""

    def work(group):
        if group.rank:
            (tmp_path / "file").touch()
        number = torch.ones(1)
        first = torch.distributed.all_reduce(number, async_op=True)
        second = torch.distributed.barrier(async_op=True)
        seen = [(tmp_path / "file").exists(), number.item()]
        second.wait()
        first.wait()
        return [*seen, (tmp_path / "file").exists(), number.item()]

    ends = forked_ranks.run_ranks(work, 2)
    assert [end.value for end in ends] == [[False, 1, True, 2], [True, 1, True, 2]]


def test_asynchronous_and_synchronous_collectives_have_one_order():
    def work(group):
        number = torch.ones(1)
        works = [
            torch.distributed.all_reduce(number, async_op=group.rank == 0),
            torch.distributed.barrier(async_op=group.rank == 0),
        ]
        if group.rank == 0:
            works[1].wait()
        torch.distributed.broadcast(number, src=1, async_op=True).wait()
        return number.item()

    assert [end.value for end in forked_ranks.run_ranks(work, 2)] == [2, 2]


def test_a_collective_that_is_never_waited_for_is_an_error():
    def work(group):
        torch.distributed.barrier(async_op=True)

    (end,) = forked_ranks.run_ranks(work, 1)
    assert "barrier was started with async_op=True and never waited for" in end.value[1]


def test_a_killed_rank_ends_those_that_wait_for_it():
    def work(group):
        if group.rank == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        torch.distributed.barrier()

    assert [end.status for end in forked_ranks.run_ranks(work, 2)] == ["barrier", "killed"]


def test_processes_that_a_rank_started_end_with_it():
    def work(group):
        subprocess.Popen(["sleep", "1000"], start_new_session=True)
        return True

    others = psutil.Process().children()
    with forked_ranks.protected_parent():
        assert forked_ranks.run_ranks(work, 1)[0].value is True
        assert psutil.Process().children() == others


def test_ranks_take_turns_in_the_given_order(tmp_path):
    def work(group):
        number = len(list(tmp_path.iterdir()))
        (tmp_path / f"{group.rank}").touch()
        return number

    ends = forked_ranks.run_ranks(work, 3, order=(2, 0, 1))
    assert [end.value for end in ends] == [1, 2, 0]


def test_a_rank_cannot_reach_the_checkers_connection():
    ours, theirs = socket.socketpair()

    def work(group):
        return [fd for fd in map(int, os.listdir("/proc/self/fd")) if fd > 2]

    (end,) = forked_ranks.run_ranks(work, 1)
    assert len(end.value) == 2  # the connection to the parent, and the folder being listed
    ours.close()
    theirs.close()


@pytest.mark.parametrize(
    ("fails", "kind"),
    [(lambda: [][0], IndexError), (lambda: b"\xff".decode(), RuntimeError)],
)
def test_a_rank_error_keeps_its_type_if_a_message_is_enough_to_create_it(fails, kind):
    ends = forked_ranks.run_ranks(lambda group: fails(), 2)
    with pytest.raises(kind, match="on rank 0 of 2"):
        rank_errors.raise_first_error(ends)


def test_a_rank_that_waits_without_a_collective_is_stopped(tmp_path, monkeypatch):
    """A file that never appears: the rank that would write it waits for its turn."""
    monkeypatch.setattr(process_group, "LONGEST_TURN_S", 0.2)

    def work(group):
        while not (tmp_path / "file").exists():
            time.sleep(0.01)

    ends = forked_ranks.run_ranks(work, 2)
    with pytest.raises(TimeoutError, match="has not entered a collective"):
        rank_errors.raise_first_error(ends)


def test_a_rank_that_waits_for_its_turn_is_not_stopped(monkeypatch):
    monkeypatch.setattr(process_group, "LONGEST_TURN_S", 2.0)

    def work(group):
        for _ in range(2):
            time.sleep(1.1)  # the last of three ranks waits for the turns of two
            torch.distributed.barrier()
        return True

    assert [end.value for end in forked_ranks.run_ranks(work, 3)] == [True] * 3


def test_ranks_in_different_calls_are_named_with_their_calls():
    def work(group):
        group.exchange("mean" if group.rank else "barrier")

    ends = forked_ranks.run_ranks(work, 2)
    with pytest.raises(
        RuntimeError, match=r"rank 0 .* in barrier, while rank 1 is in job.step\(\)"
    ):
        rank_errors.raise_first_error(ends, {"mean": "job.step()"})


def test_a_line_is_described_in_the_students_kernel_which_knows_its_cells(monkeypatch):
    text = "ValueError on rank 1 of 2: no  [/tmp/ipykernel_7/9.py, line 3]"
    graded = rank_errors.with_cell(text, Trust.UNTRUSTED)
    assert graded == "ValueError on rank 1 of 2: no  [a cell, line 3]"
    monkeypatch.setattr("shardlab.display.source._cell_number", lambda file: 5)
    own = rank_errors.with_cell(text, Trust.OWN)
    assert own == "ValueError on rank 1 of 2: no  [cell 5, line 3]"


class Killer(forked_ranks.Observer):
    """Counts the changes in a folder, and kills the rank after one of them."""

    def __init__(self, folder, kill_at=0):
        self.watched, self.kill_at = str(folder), kill_at
        self.states = [commits.disk_of(self.watched)]

    def should_kill(self, rank, message):
        disk = commits.disk_of(self.watched)
        if disk == self.states[-1]:
            return False
        self.states.append(disk)
        return len(self.states) - 1 == self.kill_at


@pytest.fixture(params=["held calls", "traced lines"])
def watch_mode(request, monkeypatch):
    def refused():
        raise OSError("no seccomp")

    if request.param == "traced lines":
        monkeypatch.setattr(held_calls, "hold", refused)
    return request.param


def test_a_rank_can_be_killed_after_every_change_on_disk(tmp_path, watch_mode):
    def write_and_rename():
        folder = tmp_path / "folder"
        folder.mkdir()
        path = folder / "file"
        path.write_text("one")
        path.rename(folder / "other")
        return True

    def work(group):
        return write_and_rename()

    observer = Killer(tmp_path)
    assert forked_ranks.run_ranks(work, 1, observer)[0].value is True
    states = [disk["folder"] for disk in observer.states[1:]]
    assert states == [{}, {"file": ""}, {"file": "one"}, {"other": "one"}]
    for kill_at, state in enumerate(states, start=1):
        shutil.rmtree(tmp_path / "folder")
        observer = Killer(tmp_path, kill_at)
        assert forked_ranks.run_ranks(work, 1, observer)[0].status == "killed"
        assert commits.disk_of(str(tmp_path)) == {"folder": state}


COPIES = {
    "in a thread": lambda source, target: run_in_thread(shutil.copytree, source, target),
    "in threads": lambda source, target: copy_in_threads(source, target),
    "by a program": lambda source, target: os.system(f"cp -r {source} {target}"),
    "by sendfile": shutil.copytree,
    "by the C library": lambda source, target: ctypes.CDLL(None).system(
        f"cp -r {source} {target}".encode()
    ),
}


def run_in_thread(function, *arguments):
    thread = threading.Thread(target=function, args=arguments)
    thread.start()
    thread.join()


def copy_in_threads(source, target):
    """Copies the files concurrently."""
    with ThreadPoolExecutor(4) as pool:
        pool.submit(target.mkdir).result()
        for path in source.iterdir():
            pool.submit(lambda path=path: shutil.copyfile(path, target / path.name))


@pytest.mark.parametrize("way", COPIES)
def test_intermediate_states_are_seen_however_files_are_copied(tmp_path, way):
    source, target = tmp_path / "source", tmp_path / "target"
    source.mkdir()
    for name in "ab":
        (source / name).write_text(name)

    def work(group):
        COPIES[way](source, target)

    observer = Killer(tmp_path)
    forked_ranks.run_ranks(work, 1, observer)
    seen = [disk.get("target") for disk in observer.states]
    assert {} in seen
    assert any(files and files != {"a": "a", "b": "b"} for files in seen)


def test_a_file_cannot_be_changed_through_memory(tmp_path):
    (tmp_path / "file").write_text("before")

    def work(group):
        with (tmp_path / "file").open("r+b") as file, mmap.mmap(file.fileno(), 0):
            pass

    (end,) = forked_ranks.run_ranks(work, 1, Killer(tmp_path))
    assert end.status == "raised"
    assert end.value[0] == "PermissionError"


def test_a_folder_named_as_a_step_must_be_complete():
    given = {"old": ["a", "b"], "new": ["c", "d"]}
    old = {commits.OLD: commits.files_of(given["old"])}
    new = {commits.NEW: commits.files_of(given["new"])}
    half = {commits.NEW: {"rank_0.txt": "c"}}
    for disk, broken in ((old, False), (old | new, False), (old | half, True), ({}, True)):
        assert commits.is_broken(disk, given) is broken
    assert not commits.is_broken(old | {"unfinished": {"rank_0.txt": "c"}}, given)
    assert commits.is_broken(old | {"step_00000003": {}}, given)


# ---- right answers ------------------------------------------------------------------------------

COMMITS = {
    "a temporary name for each step, renamed by the last rank": """
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
""",
    "every rank removes the leftovers and ignores that others have removed them": """
def atomic_commit(root, step, write):
    folder = root / "unfinished"
    shutil.rmtree(folder, ignore_errors=True)
    dist.barrier()
    folder.mkdir(exist_ok=True)
    dist.barrier()
    write(folder)
    dist.barrier()
    if dist.get_rank() == 0:
        folder.rename(root / name_of(step))
    dist.barrier()
""",
    "mkdtemp, its name broadcast, and all files synced": """
def atomic_commit(root, step, write):
    folder = [None]
    if dist.get_rank() == 0:
        for left in root.glob("attempt_*"):
            shutil.rmtree(left)
        folder = [tempfile.mkdtemp(prefix="attempt_", dir=root)]
    dist.broadcast_object_list(folder)
    write(folder[0])
    for path in Path(folder[0]).iterdir():
        with open(path) as file:
            os.fsync(file.fileno())
    dist.barrier()
    if dist.get_rank() == 0:
        os.rename(folder[0], root / name_of(step))
        opened = os.open(root, os.O_RDONLY)
        os.fsync(opened)
        os.close(opened)
    dist.barrier()
""",
    "the step's name with .tmp": """
def atomic_commit(root, step, write):
    folder = root / f"{name_of(step)}.tmp"
    if dist.get_rank() == 0:
        if folder.exists():
            os.system(f"rm -r {folder}")
        os.mkdir(folder)
    dist.all_reduce(torch.zeros(1))
    write(folder)
    dist.all_reduce(torch.zeros(1))
    if dist.get_rank() == 0:
        folder.replace(root / name_of(step))
    dist.all_reduce(torch.zeros(1))
""",
}
JOBS = {
    "every rank saves its own state of everything that differs, and skips old batches": """
def train_resumable(root, job, steps, every):
    rank, losses, newest = dist.get_rank(), {}, latest(root)
    first = 0 if newest is None else int(newest.name[5:])
    if newest is not None and first < steps:
        common, own = (torch.load(newest / name) for name in ("common", f"own_{rank}"))
        job.model.load_state_dict(common[0])
        job.optimizer.load_state_dict(common[1])
        job.scheduler.load_state_dict(common[2])
        job.scaler.load_state_dict(common[3])
        for _ in range(first):
            job.stream.next()
        torch.set_rng_state(own[0])
        random.setstate(own[1])
    for step in range(first, steps):
        losses[step] = job.step()
        if (step + 1) % every:
            continue
        def write(folder):
            if rank == dist.get_world_size() - 1:
                pieces = job.model, job.optimizer, job.scheduler, job.scaler
                torch.save([piece.state_dict() for piece in pieces], folder / "common")
            torch.save([torch.get_rng_state(), random.getstate()], folder / f"own_{rank}")
        atomic_commit(root, step + 1, write)
    return losses
""",
    "knows the job's parts by the notebook's classes": """
def train_resumable(root, job, steps, every):
    rank, losses, newest, done = dist.get_rank(), {}, latest(root), 0
    kinds = (Stream, Scaler, torch.nn.Module, torch.optim.Optimizer)
    kinds += (torch.optim.lr_scheduler.LRScheduler,)
    assert isinstance(job, Job)
    pieces = [each for each in vars(job).values() if isinstance(each, kinds)]
    assert len(pieces) == 5
    if newest is not None:
        done, states = torch.load(newest / "common.pt", weights_only=False)
        for piece, state in zip(pieces, states):
            piece.load_state_dict(state)
        own = torch.load(newest / f"{rank}.pt", weights_only=False)
        torch.set_rng_state(own[0])
        random.setstate(own[1])

    def write(folder):
        if rank == 0:
            torch.save([done, [piece.state_dict() for piece in pieces]], folder / "common.pt")
        torch.save([torch.get_rng_state(), random.getstate()], folder / f"{rank}.pt")

    while done < steps:
        losses[done] = job.step()
        done += 1
        if done % every == 0:
            atomic_commit(root, done, write)
    return losses
""",
    "one file with the random states of all ranks": """
def train_resumable(root, job, steps, every):
    rank, losses, done = dist.get_rank(), {}, 0
    pieces = job.model, job.optimizer, job.scheduler, job.stream, job.scaler
    if (newest := latest(root)) is not None:
        done, states, torchs, pythons = torch.load(newest / "all.pt")
        for piece, state in zip(pieces, states):
            piece.load_state_dict(state)
        torch.set_rng_state(torchs[rank])
        random.setstate(pythons[rank])
    while done < steps:
        losses[done] = job.step()
        done += 1
        if done % every:
            continue
        own = torch.get_rng_state()
        torchs = [torch.empty_like(own) for _ in range(dist.get_world_size())]
        dist.all_gather(torchs, own)
        pythons = [None] * dist.get_world_size() if rank == 0 else None
        dist.gather_object(random.getstate(), pythons, dst=0)

        def write(folder):
            if rank == 0:
                states = [piece.state_dict() for piece in pieces]
                torch.save([done, states, torchs, pythons], folder / "all.pt")

        atomic_commit(root, done, write)
    return losses
""",
    "one file per rank, and the common state written under another name and renamed": """
def train_resumable(root, job, steps, every):
    rank, losses, newest = dist.get_rank(), {}, latest(root)
    pieces = job.model, job.optimizer, job.scheduler, job.stream, job.scaler
    first = 0
    if newest is not None:
        for piece, state in zip(pieces, torch.load(newest / "common.pt")):
            piece.load_state_dict(state)
        first, torchs, pythons = torch.load(newest / str(rank))
        torch.set_rng_state(torchs)
        random.setstate(pythons)

    def write(folder):
        if rank == 0:
            torch.save([piece.state_dict() for piece in pieces], folder / "part")
            (folder / "part").rename(folder / "common.pt")
        dist.barrier()
        assert (folder / "common.pt").exists()
        own = [step + 1, torch.get_rng_state(), random.getstate()]
        torch.save(own, folder / str(rank))

    for step in range(first, steps):
        losses[step] = job.step()
        if (step + 1) % every == 0:
            atomic_commit(root, step + 1, write)
    return losses
""",
}


def assert_passes(exercise, source, seed=SEED):
    answers = planted.solution(LAB) | {exercise.answer: source}
    subject = planted.subjects(LAB, answers)[exercise.answer]
    verdict = decide(exercise, cloudpickle.dumps(subject), seed)
    assert verdict.passed, [case.diagnosis for case in verdict.cases if not case.passed]


@pytest.mark.ranks
@pytest.mark.parametrize("way", COMMITS)
def test_right_commits_pass(way):
    assert_passes(COMMIT, COMMITS[way])


@pytest.mark.ranks
@pytest.mark.parametrize("way", JOBS)
def test_right_training_loops_pass(way):
    assert_passes(TRAIN, JOBS[way])


def test_no_temporary_files_are_left(tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    case = COMMIT.cases[0]
    subject = planted.subjects(LAB, planted.solution(LAB))["atomic_commit"]
    output = COMMIT.drive(cloudpickle.dumps(subject), inputs_of(COMMIT, case)[0], case)
    assert output["was killed"]
    assert not output["broken"]
    assert not output["failures"]
    assert list(Path(tmp_path).iterdir()) == []


def test_names_count_in_bytes_and_each_file_has_an_inode(tmp_path):
    (tmp_path / "checkpoint").mkdir()
    (tmp_path / "checkpoint" / chr(0x10000)).mkdir()
    (tmp_path / "checkpoint" / chr(0x10000) / "ab").write_bytes(b"12345")
    assert total_bytes(tmp_path / "checkpoint") == (INODE_BYTES + 4) + (INODE_BYTES + 2 + 5)


@pytest.mark.parametrize("case", TRAIN.cases, ids=lambda case: case.name)
def test_checkpoints_have_no_room_for_the_batches_before_them(case):
    """Of all that a start finds, for each number of the batches that it would have to repeat."""
    limit, ranks = train_resumable.public.checkpoint_limit(case).most, case.params["ranks"]
    numbers = train_resumable.public.SAMPLES * (train_resumable.public.WIDTHS[0] + 1)
    for start, names in enumerate(train_resumable.left(case)[:-1], 1):
        checkpoints = len(names) if case.params["keeps old"] else 1
        repeated = train_resumable.public.done_before(case, start) * ranks * numbers
        assert 8 * checkpoints * limit < 10 * repeated  # bits
