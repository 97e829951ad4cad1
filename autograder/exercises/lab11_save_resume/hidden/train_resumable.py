import random
from collections.abc import Callable, Sequence
from typing import Any

import torch

from autograder.exercise import Case, Plain
from autograder.exercise.hidden import EquivalentAnswer
from autograder.exercises.lab11_save_resume import train_resumable as public
from autograder.exercises.lab11_save_resume.folders import name_of
from autograder.exercises.lab11_save_resume.training_job import Batch, Job, batch_of, seed_all

CASES = (public.training_case("2 ranks, killed during a save", 2, 14, 3, ("save", 11, 1)),)
BOUNDARIES = {
    "divides": "1 rank, killed in step 11",
    "does not divide": "2 ranks, killed twice",
    "one rank": "1 rank, killed in step 11",
    "more ranks than elements": "not tested: nothing is divided over the ranks",
    "no step left": "1 rank, restarted when all steps are done",
    "a kill after a kill": "2 ranks, killed twice",
    "a kill in the second save": "2 ranks, killed twice",
    "the second save of a restarted job is used": "2 ranks, killed twice",
    "older checkpoints are there": "2 ranks, killed during a save",
    "an older checkpoint has a shorter number": "2 ranks, killed twice",
}
EQUIVALENT_ANSWERS = (
    EquivalentAnswer(
        "if rank == 0:", "if rank == dist.get_world_size() - 1:", "it is the same on all"
    ),
    EquivalentAnswer("done % every == 0", "not done % every", "the same"),
    EquivalentAnswer(
        'done = shared["done"]', "done = int(newest.name[5:])", "the folder's name has it as well"
    ),
    *(
        EquivalentAnswer(f"{file}, weights_only=True)", f"{file}{new})", why)
        for file in ('"shared.pt"', 'f"rank_{rank}.pt"')
        for new, why in (
            ("", "it is the default"),
            (", weights_only=False", "the files are the answer's own"),
        )
    ),
)


def reference(case: Case, inputs: Any) -> Plain:
    ranks = case.params["ranks"]
    steps, losses = last_start(case, inputs[0])
    return {
        "steps": [steps] * ranks,
        "losses": [losses] * ranks,
        "commits": commits(case),
        "left": left(case),
        "written by several ranks": [],
        "kills": [kill != public.NO_KILL for kill in case.params["starts"]],
        "batches after the end": 0,
        "losses are bit-equal": True,
    }


def commits(case: Case) -> list[list[int]]:
    """For each start of the job: the numbers of the checkpoints that it commits."""
    every, starts = case.params["every"], range(len(case.params["starts"]))
    ends = [public.done_before(case, start + 1) for start in starts[:-1]] + [case.params["steps"]]
    firsts = [public.done_before(case, start) for start in starts]
    return [
        [step for step in range(first + 1, end + 1) if step % every == 0]
        for first, end in zip(firsts, ends, strict=True)
    ]


def left(case: Case) -> list[list[str]]:
    """For each start of the job: the checkpoints on disk at its end."""
    found: list[list[str]] = [[]]
    for steps in commits(case):
        before = found[-1] if case.params["keeps old"] else found[-1][-1:]
        found.append(before + [name_of(step) for step in steps])
    return found[1:]


def last_start(
    case: Case, given: Any, *lost: str, whose: int | None = None
) -> tuple[list[int], torch.Tensor]:
    """Steps and losses of the last start of a job that loses the pieces ``lost`` at each restart.

    ``whose``: the rank whose random states all ranks get.  Steps that a kill undoes are not run.
    """
    starts, pythons_state = len(case.params["starts"]), random.getstate()
    with torch.random.fork_rng(devices=[]):
        for start in range(starts):
            fresh = [Rank(case, given, start, rank) for rank in range(case.params["ranks"])]
            if start == 0:
                ranks = fresh
            else:
                for rank, new in zip(ranks, fresh, strict=True):
                    rank.restart(new, lost, rank if whose is None else ranks[whose])
            stop = (
                public.done_before(case, start + 1) if start < starts - 1 else case.params["steps"]
            )
            steps = list(range(public.done_before(case, start), stop))
            losses = [step_together(ranks) for _ in steps]
    random.setstate(pythons_state)
    return steps, torch.tensor(losses, dtype=torch.float64)


AT_THE_START, BEFORE_THE_STEP = "at the start", "before the last step"


class Rank:
    """A rank's job and random states, which are saved while other ranks run."""

    def __init__(self, case: Case, given: Any, start: int, rank: int) -> None:
        self.first = public.done_before(case, start)

        def batch_at(position: int) -> Batch:
            return batch_of(given, position, rank, case.params["ranks"], self.first)

        self.job = Job(given["weights"], batch_at)
        seed_all(given["seeds"][start][rank])
        self.torch, self.python = torch.get_rng_state(), random.getstate()
        # Random states of earlier moments: a start's, and before the last step.
        self.earlier = dict.fromkeys((AT_THE_START, BEFORE_THE_STEP), (self.torch, self.python))

    def restart(self, fresh: "Rank", lost: Sequence[str], other: "Rank") -> None:
        self.torch, self.python = other.torch, other.python
        for moment in self.earlier.keys() & set(lost):
            self.torch, self.python = self.earlier[moment]
        self.earlier[AT_THE_START] = fresh.torch, fresh.python
        self.first = fresh.first
        for name in [name for name in lost if name not in self.earlier]:
            if hasattr(self, name):
                setattr(self, name, getattr(fresh, name))
            elif hasattr(self.job.scaler, name):
                setattr(self.job.scaler, name, getattr(fresh.job.scaler, name))
            else:
                state = getattr(fresh.job, name).state_dict()
                getattr(self.job, name).load_state_dict(state)

    def forward_and_backward(self) -> torch.Tensor:
        self.earlier[BEFORE_THE_STEP] = self.torch, self.python
        torch.set_rng_state(self.torch)
        random.setstate(self.python)
        computed = self.job.forward_and_backward()
        self.torch, self.python = torch.get_rng_state(), random.getstate()
        return computed


def step_together(ranks: list[Rank]) -> float:
    together = torch.stack([rank.forward_and_backward() for rank in ranks]).mean(dim=0)
    *_, loss = (rank.job.update(together) for rank in ranks)  # the same on all ranks
    return loss


def without(*lost: str, whose: int | None = None) -> Callable[[Case, Any], Plain]:
    def outputs(case: Case, inputs: Any) -> Plain:
        steps, losses = last_start(case, inputs[0], *lost, whose=whose)
        ranks = case.params["ranks"]
        return {"steps": [steps] * ranks, "losses": [losses] * ranks}

    return outputs


MISTAKES = {
    "resumes with the right parameters, but with the optimizer, the schedule and the position in "
    "the data of a new job: save and load these, too (state_dict() copies numbers, so call it in "
    "write)": without("optimizer", "scheduler", "stream", "scaler"),
    "loses the parameters: it continues with those of a new job": without("model"),
    "loses the optimizer's state: Adam's averages start at zero": without("optimizer"),
    "loses the scheduler's state: the learning rate schedule starts again": without("scheduler"),
    "loses the position in the data: it sees the first batches again": without("stream"),
    "loses the loss scale: the scale is reset, and steps overflow again": without("scaler"),
    "restores the loss scale but not its count of good steps: the scale grows too late": without(
        "good_steps"
    ),
    "does not restore torch's random state: dropout draws different numbers": without("torch"),
    "does not restore Python's random state: random.random() draws different numbers": (
        without("python")
    ),
    "restores no random state: dropout and random.random() draw different numbers": (
        without("torch", "python")
    ),
    "saves random states of an earlier moment: get them in write, when the steps are done": (
        without(AT_THE_START),
        without(BEFORE_THE_STEP),
    ),
    "loses the schedule and the loss scale: save and load these, too": (
        without("scheduler", "scaler")
    ),
    "loses the schedule, the position in the data, and maybe the loss scale: save them, too": (
        without("scheduler", "stream"),
        without("scheduler", "stream", "scaler"),
    ),
    "gives all ranks the random states of one: each rank has its own": (
        without(whose=0),
        without(whose=-1),
    ),
}
