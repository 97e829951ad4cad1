"""Lab 10, train_resumable: a training whose ranks are killed, and the loss curve of what follows.

The job is small and has everything that a checkpoint must not forget: Adam, a schedule, a position
in the data, dropout and a coin toss (torch's and Python's random states, each rank's own) and a
loss scale, for its gradients are rounded to 16 bits.  It computes in fp64, so that machines differ
by less than any slip does.
"""

from __future__ import annotations

import copy
import random
import shutil
import tempfile
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from autograder.compare import equal
from autograder.drive import standing_in
from autograder.exercise import Attempt, Budget, Case, Exercise, Finding, Plain
from autograder.exercises.checkpoint_shards import from_outputs
from autograder.exercises.shared_disk import (
    KILLED,
    RETURNED,
    Colleagues,
    Ended,
    die,
    raise_what_went_wrong,
    run_ranks,
)
from autograder.kept_back import kept_back

WIDTHS = (8, 64, 64, 1)
SAMPLES = 4  # in a batch of one rank
FIRST_SCALE, GROWS_AFTER = 2.0**18, 4
TOLERANCE = 1e-6
STATE_BYTES = 8 * 3  # fp64: a parameter and Adam's two states
RANDOM_BYTES = 16_384  # both random states, and what torch.save adds, for each rank


# ---- the job ------------------------------------------------------------------------------------


class Stream:
    """A rank's batches, from ``position`` on."""

    def __init__(self, given: Any, rank: int, world_size: int) -> None:
        self.inputs, self.targets = given["inputs"], given["targets"]
        self.rank, self.world_size = rank, world_size
        self.position = 0

    def next(self) -> tuple[Tensor, Tensor]:
        which = (self.position * self.world_size + self.rank) % len(self.inputs)
        self.position += 1
        return self.inputs[which], self.targets[which]

    def state_dict(self) -> dict[str, int]:
        return {"position": self.position}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.position = state["position"]


class Scaler:
    """A loss scale that halves where a gradient overflows 16 bits, and doubles after some steps."""

    def __init__(self) -> None:
        self.scale, self.good_steps = FIRST_SCALE, 0

    def step(self, optimizer: torch.optim.Optimizer, parameters: list[nn.Parameter]) -> bool:
        """Whether there was one."""
        gradients = [each.grad for each in parameters if each.grad is not None]
        if not all(bool(torch.isfinite(gradient).all()) for gradient in gradients):
            self.scale, self.good_steps = self.scale / 2, 0
            return False
        for gradient in gradients:
            gradient /= self.scale
        optimizer.step()
        self.good_steps += 1
        if self.good_steps == GROWS_AFTER:
            self.scale, self.good_steps = self.scale * 2, 0
        return True

    def state_dict(self) -> dict[str, float]:
        return {"scale": self.scale, "good_steps": self.good_steps}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.scale, self.good_steps = state["scale"], state["good_steps"]


def model_of(given: Any) -> nn.Sequential:
    first, second, last = given["weights"]
    layers = [nn.Linear(each.shape[1], each.shape[0], device="meta") for each in given["weights"]]
    for layer, weight in zip(layers, (first, second, last), strict=True):
        layer.weight = nn.Parameter(weight.clone())
        layer.bias = nn.Parameter(torch.zeros(len(weight), dtype=weight.dtype))
    parts = [layers[0], nn.Tanh(), nn.Dropout(0.2), layers[1], nn.Tanh(), nn.Dropout(0.2)]
    return nn.Sequential(*parts, layers[2])


class Job:
    """What the lab's Job is: model, optimizer, scheduler, stream, scaler, and step()."""

    def __init__(
        self,
        given: Any,
        rank: int,
        world_size: int,
        mean: Callable[[Tensor], Tensor] = lambda tensor: tensor,
        before_update: Callable[[], None] = lambda: None,
    ) -> None:
        self.model = model_of(given)
        self.parameters = list(self.model.parameters())
        self.optimizer = torch.optim.Adam(self.parameters, lr=0.02)
        self.scheduler = torch.optim.lr_scheduler.LambdaLR(
            self.optimizer, lambda step: min((step + 1) / 4, 1) * 0.9**step
        )
        self.stream = Stream(given, rank, world_size)
        self.scaler = Scaler()
        self.mean, self.before_update = mean, before_update

    def step(self) -> float:
        loss_and_gradients = self.mean(self.forward_and_backward())
        self.before_update()
        return self.update(loss_and_gradients)

    def forward_and_backward(self) -> Tensor:
        """This rank's loss, and the gradients of its scaled loss as 16 bits hold them, flat."""
        inputs, targets = self.stream.next()
        if random.random() < 0.5:
            inputs = inputs.flip(1)
        loss = nn.functional.mse_loss(self.model(inputs), targets)
        gradients = torch.autograd.grad(loss * self.scaler.scale, self.parameters)
        rounded = [each.half().to(each.dtype).flatten() for each in gradients]
        return torch.cat([loss.detach().view(1), *rounded])

    def update(self, loss_and_gradients: Tensor) -> float:
        sizes = [each.numel() for each in self.parameters]
        loss, *gradients = loss_and_gradients.split([1, *sizes])
        for parameter, gradient in zip(self.parameters, gradients, strict=True):
            parameter.grad = gradient.view_as(parameter).clone()
        if self.scaler.step(self.optimizer, self.parameters):
            self.scheduler.step()
        return float(loss)


def seed_all(seed: int) -> None:
    torch.manual_seed(seed)
    random.seed(seed)


# ---- inputs -------------------------------------------------------------------------------------


def draw_job(case: Case, rng: np.random.Generator) -> list[Plain]:
    """fp64. ``seeds``: [life][rank], another random state for each start of the job."""
    samples = case.params["steps"] * case.params["ranks"]

    def normal(*shape: int) -> Tensor:
        return torch.from_numpy(rng.standard_normal(shape))

    weights = [normal(b, a) / a**0.5 for a, b in pairwise(WIDTHS)]
    lives = len(case.params["kills"]) + 1
    return [
        {
            "weights": weights,
            "inputs": normal(samples, SAMPLES, WIDTHS[0]),
            "targets": 2 * normal(samples, SAMPLES, 1),
            "seeds": rng.integers(1, 10**6, (lives, case.params["ranks"])).tolist(),
        }
    ]


# ---- beside the student's code ------------------------------------------------------------------


def drive_training(subject: Any, given: Any, case: Case) -> Plain:
    root = Path(tempfile.mkdtemp())
    try:
        was_killed = []
        for life, kill in enumerate([*case.params["kills"], {"where": "nowhere"}]):
            ends = live(subject, root, given, case, life, kill)
            raise_what_went_wrong([end for end in ends if end.how != "waits"])
            was_killed.append(any(end.how == KILLED for end in ends))
        if any(end.how != RETURNED for end in ends):
            raise_what_went_wrong(ends)
        straight = run_ranks(
            lambda colleagues: straight_on(colleagues, given, case), ranks_of(case)
        )
        returned = [in_pairs(end.value) for end in ends]
        return {
            "steps": [[step for step, _ in pairs] for pairs in returned],
            "losses": [torch.tensor([loss for _, loss in pairs]).double() for pairs in returned],
            "kills": was_killed,
            "bit for bit": all(
                0 <= step < len(straight[rank].value) and straight[rank].value[step] == loss
                for rank, pairs in enumerate(returned)
                for step, loss in pairs
            ),
            "checkpoint bytes": newest_bytes(root),
        }
    finally:
        shutil.rmtree(root, ignore_errors=True)


def live(
    subject: Any, root: Path, given: Any, case: Case, life: int, kill: dict[str, Any]
) -> list[Ended]:
    """One start of the job, until it is done or killed."""

    def on_rank(colleagues: Colleagues) -> Any:
        seed_all(given["seeds"][life][colleagues.rank])
        is_victim = colleagues.rank == kill.get("rank", 0)
        steps_done = done_before(case, life)

        def die_in(where: str) -> None:
            if is_victim and kill["where"] == where and steps_done == kill["step"] + 1:
                die()

        def amid_a_step() -> None:
            nonlocal steps_done
            steps_done += 1
            die_in("step")

        job = job_of(colleagues, given, amid_a_step)

        def atomic_commit(_: Any, step: int, write: Any) -> None:
            folder = root / f"of_life_{life}_{step}"
            folder.mkdir(exist_ok=True)
            write(folder)
            die_in("save")
            colleagues.meet("written")
            if colleagues.rank == 0:
                shutil.rmtree(root / f"step_{step:08}", ignore_errors=True)
                folder.rename(root / f"step_{step:08}")
            colleagues.meet("named")

        standing_in(subject, atomic_commit=atomic_commit)
        return subject(root, job, case.params["steps"], case.params["every"])

    return run_ranks(on_rank, ranks_of(case))


def done_before(case: Case, life: int) -> int:
    """Steps in the checkpoint that a start of the job finds."""
    every, done = case.params["every"], 0
    for kill in case.params["kills"][:life]:
        reached = kill.get("step", case.params["steps"])
        done = max(done, reached // every * every)
    return done


def job_of(colleagues: Colleagues, given: Any, before_update: Callable[[], None]) -> Job:
    def mean(tensor: Tensor) -> Tensor:
        return torch.stack(colleagues.meet("mean", tensor)).mean(dim=0)

    return Job(given, colleagues.rank, colleagues.world_size, mean, before_update)


def straight_on(colleagues: Colleagues, given: Any, case: Case) -> list[float]:
    """The job as it goes where nobody is killed."""
    seed_all(given["seeds"][0][colleagues.rank])
    job = job_of(colleagues, given, lambda: None)
    return [job.step() for _ in range(case.params["steps"])]


def in_pairs(returned: Any) -> list[tuple[int, float]]:
    """[(step, loss), ...]; raises TypeError where it is no {step: loss}."""
    if not isinstance(returned, dict):
        raise TypeError(f"{RETURNS_NO_DICT}, not {type(returned).__name__}")
    return sorted((int(step), float(loss)) for step, loss in returned.items())


RETURNS_NO_DICT = "train_resumable should return {step: loss}"


def ranks_of(case: Case) -> int:
    return int(case.params["ranks"])


def newest_bytes(root: Path) -> int:
    folders = sorted(root.glob("step_*"))
    return sum(path.stat().st_size for path in folders[-1].iterdir()) if folders else 0


# ---- in the checker's process -------------------------------------------------------------------

PIECES = ("model", "optimizer", "scheduler", "stream", "scaler")
SLIPS = (
    *("", *PIECES, "torch", "python", "both random states"),
    *("rank 0's random states", "last rank's random states"),
)


def expect_training(case: Case, inputs: Any) -> list[Plain]:
    right = last_life(case, inputs[0], "")
    return [
        {
            "steps": [right["steps"]] * ranks_of(case),
            "losses": [right["losses"]] * ranks_of(case),
            "kills": [kill["where"] != "nowhere" for kill in case.params["kills"]] + [False],
            "bit for bit": True,
        }
    ]


@kept_back(lambda case, inputs: [(case, inputs[0], slip) for slip in SLIPS])
def last_life(case: Case, given: Any, slip: str) -> Plain:
    """{"steps", "losses"} of the last start, where all that is saved comes back but ``slip``."""
    ranks, every = ranks_of(case), case.params["every"]
    before = torch.get_rng_state(), random.getstate()
    saved: Any = None
    losses: dict[int, float] = {}
    try:
        for life, kill in enumerate([*case.params["kills"], {"where": "nowhere"}]):
            jobs = [Job(given, rank, ranks) for rank in range(ranks)]
            dice = [dice_of(seed) for seed in given["seeds"][life]]
            done, losses = 0, {}
            if saved:
                done = restore(jobs, dice, saved, slip)
            for step in range(done, case.params["steps"]):
                loss = step_together(jobs, dice)
                if kill == {**kill, "where": "step", "step": step}:
                    break
                losses[step] = loss
                if (step + 1) % every == 0:
                    if kill == {**kill, "where": "save", "step": step}:
                        break
                    saved = snapshot(jobs, dice, step + 1)
    finally:
        torch.set_rng_state(before[0])
        random.setstate(before[1])
    return {
        "steps": list(losses),
        "losses": torch.tensor(list(losses.values()), dtype=torch.float64),
    }


Dice = dict[str, Any]  # a rank's random states, while another's turn it is


def dice_of(seed: int) -> Dice:
    seed_all(seed)
    return {"torch": torch.get_rng_state(), "python": random.getstate()}


def step_together(jobs: list[Job], dice: list[Dice]) -> float:
    by_rank = []
    for job, states in zip(jobs, dice, strict=True):
        torch.set_rng_state(states["torch"])
        random.setstate(states["python"])
        by_rank.append(job.forward_and_backward())
        states |= {"torch": torch.get_rng_state(), "python": random.getstate()}
    together = torch.stack(by_rank).mean(dim=0)
    losses = [job.update(together) for job in jobs]  # all alike
    return losses[0]


def snapshot(jobs: list[Job], dice: list[Dice], done: int) -> Any:
    pieces = {name: getattr(jobs[0], name).state_dict() for name in PIECES}
    return {"done": done, "dice": [dict(states) for states in dice], **copy.deepcopy(pieces)}


def restore(jobs: list[Job], dice: list[Dice], saved: Any, slip: str) -> int:
    for job in jobs:
        for name in PIECES:
            if name != slip:
                getattr(job, name).load_state_dict(copy.deepcopy(saved[name]))
    for rank, states in enumerate(dice):
        whose = {"rank 0's random states": 0, "last rank's random states": -1}.get(slip, rank)
        for name in ("torch", "python"):
            if slip not in (name, "both random states"):
                states[name] = saved["dice"][whose][name]
    return int(saved["done"])


# ---- mistakes by their names --------------------------------------------------------------------

LOST = {
    "model": "does not bring the parameters back",
    "optimizer": "loses the optimizer's state: Adam starts with empty averages",
    "scheduler": "loses the scheduler's state: the learning rate starts over",
    "stream": "loses the position in the data: it sees the first batches again",
    "scaler": "loses the loss scale: it starts over, and steps overflow again",
    "torch": "does not restore torch's random state: dropout draws other numbers",
    "python": "does not restore Python's random state: random.random() draws other numbers",
    "both random states": "restores no random state: dropout and random.random() draw other "
    "numbers",
    "rank 0's random states": "gives all ranks the random states of one: each rank has its own",
    "last rank's random states": "gives all ranks the random states of one: each rank has its own",
}


def finding(mistake: str, evidence: str = "") -> Finding:
    return Finding("train_resumable", mistake, evidence, anyone="train_resumable")


def output_of(attempt: Attempt) -> dict[str, Any] | None:
    output = attempt.outputs[0]
    return output if attempt.error is None and isinstance(output, dict) else None


def wrong_steps(attempt: Attempt) -> Finding | None:
    output = output_of(attempt)
    if output is None:
        return None
    wanted, last = attempt.expected[0]["steps"][0], attempt.case.params["steps"]
    for got in output["steps"]:
        if got == wanted:
            continue
        first, due = (got or [last])[0], (wanted or [last])[0]
        evidence = f"{got}, expected {wanted}"
        if first == 0 and due != 0:
            return finding("starts over at step 0: go on from the newest checkpoint", evidence)
        if 0 < abs(first - due) < attempt.case.params["every"]:
            return finding(
                "goes on at the wrong step after a restart: after step s, s + 1 steps are done",
                evidence,
            )
        return finding("runs other steps after a restart than those that are left", evidence)
    return None


def lost_something(attempt: Attempt) -> Finding | None:
    """Names what was not restored by the loss curve that comes of it."""
    output = output_of(attempt)
    if output is None or equal(attempt.expected[0]["losses"], output["losses"], TOLERANCE):
        return None
    for slip, mistake in LOST.items():
        wrong = last_life(attempt.case, attempt.inputs[0], slip)["losses"]
        if equal([wrong] * len(output["losses"]), output["losses"], TOLERANCE):
            return finding(mistake)
    return finding("restores too little: the losses after a restart are not those of a run without")


def not_bit_for_bit(attempt: Attempt) -> Finding | None:
    output = output_of(attempt)
    if output is None or output["bit for bit"]:
        return None
    return finding("comes near the loss curve, but not to the bit: something was rounded or lost")


def saves_too_much(attempt: Attempt) -> Finding | None:
    for spent in attempt.spent:
        if spent.ranks_over:
            return finding(
                "saves what all ranks have alike more than once: let rank 0 write it, and each "
                "rank only what is its own",
                f"{spent.used[0]:,} bytes, {spent.limit[0]:,} are enough",
            )
    return None


def checkpoint_limit(case: Case) -> list[float]:
    parameters = sum(b * (a + 1) for a, b in pairwise(WIDTHS))
    return [1.1 * STATE_BYTES * parameters + RANDOM_BYTES * ranks_of(case)]


TRAIN_RESUMABLE = Exercise(
    name="save_resume.train_resumable",
    points=6,
    cases=(
        Case(
            "1 rank, killed in step 7",
            1,
            {"ranks": 1, "steps": 12, "every": 3, "kills": [{"where": "step", "step": 7}]},
        ),
        Case(
            "2 ranks, killed while they save",
            1,
            {
                "ranks": 2,
                "steps": 14,
                "every": 4,
                "kills": [{"where": "save", "step": 11, "rank": 1}],
            },
        ),
        Case(
            "2 ranks, killed twice",
            1,
            {
                "ranks": 2,
                "steps": 13,
                "every": 3,
                "kills": [
                    {"where": "step", "step": 5, "rank": 0},
                    {"where": "save", "step": 11, "rank": 1},
                ],
            },
            hidden=True,
        ),
        Case(
            "1 rank, started again when all is done",
            1,
            {"ranks": 1, "steps": 6, "every": 2, "kills": [{"where": "nowhere"}]},
            hidden=True,
            weight=0.5,
        ),
    ),
    draw=draw_job,
    drive=drive_training,
    expect=expect_training,
    tolerance=TOLERANCE,
    budgets=(
        Budget(
            "saves what ranks have alike once",
            limit=checkpoint_limit,
            used=from_outputs("checkpoint bytes"),
            heading="in a checkpoint",
        ),
    ),
    diagnoses=(wrong_steps, lost_something, not_bit_for_bit, saves_too_much),
)
