"""Stop a training job, restart it from its checkpoint, and compare with an uninterrupted run.

Each start is a process of its own on each rank, and only the files in its checkpoint remain of it.
Each rank has its own folder, as in a sandbox; at the next start, all of them contain the files that
any rank saved, as on a shared disk.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from functools import partial
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import cloudpickle
import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.optim.lr_scheduler import LambdaLR
from torch.utils.data import DataLoader, TensorDataset

from autograder.exercise import Case, OnRanks, Plain, equal
from autograder.exercise.signs import MistakeText, on_each_rank
from autograder.exercises.lab11_save_resume.forked_ranks import protected_parent
from autograder.exercises.lab11_save_resume.rank_errors import fails_on_a_rank
from autograder.exercises.lab13_accelerate.restarts import in_a_fork
from autograder.exercises.lab13_accelerate.shared import new_accelerator, with_weights
from autograder.guest import private_folders
from autograder.guest.on_rank import gets_pickled_answer, with_functions_replaced

FEATURES, WIDTH, BATCH = 6, 8, 2
LR, DECAY, KEEP = 0.05, 0.8, 0.9
TOLERANCE = 1e-9  # in fp64, over a few steps


def draw_inputs(case: Case, rng: np.random.Generator) -> list[Plain]:
    """``weights``: by start, equal on all ranks. ``seeds``: by start, different on each rank."""
    starts, samples = len(case.params["ends"]), case.params["samples"]

    def normal(*shape: int) -> Tensor:
        return torch.from_numpy(rng.standard_normal(shape))

    shapes = [each.shape for each in new_model().parameters()]
    common = {
        "weights": [[normal(*shape) / 2 for shape in shapes] for _ in range(starts)],
        "inputs": normal(samples, FEATURES),
        "targets": normal(samples, 1),
        "data seed": int(rng.integers(1, 10**6)),
    }
    seeds = rng.integers(1, 10**6, (case.world_size, starts)).tolist()
    return [{**common, "seeds": own} for own in seeds]


def new_model() -> nn.Module:
    layers = nn.Linear(FEATURES, WIDTH), nn.Tanh(), nn.Dropout(0.3), nn.Linear(WIDTH, 1)
    return nn.Sequential(*layers).double()


class Average:
    """A running average of a model's weights."""

    def __init__(self, model: nn.Module) -> None:
        self.weights = [each.detach().clone() for each in model.parameters()]

    def update(self, model: nn.Module) -> None:
        for own, each in zip(self.weights, model.parameters(), strict=True):
            own.lerp_(each.detach(), 1 - KEEP)

    def state_dict(self) -> dict[str, Any]:
        return {"weights": self.weights}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.weights = state["weights"]


class Progress:
    def __init__(self) -> None:
        self.steps = 0

    def state_dict(self) -> dict[str, int]:
        return {"steps": self.steps}

    def load_state_dict(self, state: Mapping[str, int]) -> None:
        self.steps = state["steps"]


class Job:
    """As in the lab, on this case's data."""

    def __init__(self, accelerator: Any, given: Any, start: int) -> None:
        dataset = TensorDataset(given["inputs"], given["targets"])
        loader = DataLoader(dataset, BATCH, shuffle=True, generator=torch.Generator())
        model = with_weights(new_model(), given["weights"][start])
        optimizer = torch.optim.AdamW(model.parameters(), LR)
        self.scheduler = LambdaLR(optimizer, lambda step: DECAY**step)
        self.average, self.progress = Average(model), Progress()
        self.accelerator, self.losses = accelerator, list[float]()
        self.model, self.optimizer, self.loader = accelerator.prepare(model, optimizer, loader)
        torch.manual_seed(given["seeds"][start])
        # Random states before the first step and after the last one.
        self.first_state, self.last_state = torch.empty(0), torch.empty(0)

    def step(self, batch: Any) -> None:
        if not self.losses:
            self.first_state = torch.get_rng_state()
        loss = nn.functional.mse_loss(self.model(batch[0]), batch[1])
        self.accelerator.backward(loss)
        self.optimizer.step()
        self.optimizer.zero_grad()
        self.scheduler.step()
        self.average.update(self.model)
        self.progress.steps += 1
        self.losses.append(loss.item())
        self.last_state = torch.get_rng_state()


@gets_pickled_answer
def drive(pickled: bytes, given: Any, case: Case) -> Plain:
    import accelerate.utils  # noqa: F401  so that no start has to

    losses, files = [], dict[str, bytes]()
    states: list[Tensor] = []
    before = private_folders.content()
    with protected_parent(), TemporaryDirectory(ignore_cleanup_errors=True) as name:
        before |= private_folders.content()
        for start, end in enumerate(case.params["ends"]):
            folder = Path(name, f"start_{start}", "checkpoint")
            folder.parent.mkdir()
            write_files(folder, files)
            found: Any = in_a_fork(partial(one_start, pickled, given, start, folder, end))
            files = with_changes(files, folder)
            for path in Path(name).iterdir():
                shutil.rmtree(path, ignore_errors=True)
            private_folders.remove_all_but(before)
            losses.append(found["losses"])
            states += [found["first state"], found["last state"]]
    whole, end = new_job(given, 0), case.params["ends"][-1]
    while whole.progress.steps < end:
        for batch in whole.loader:
            whole.step(batch)
    exact = torch.tensor(whole.losses[:end], dtype=torch.float64)
    return {
        **of_starts(losses),
        "average": found["average"],
        "saves": bool(files),
        "continues random numbers": all(map(torch.equal, states[1:-1:2], states[2::2])),
        "bit for bit": torch.equal(torch.cat(losses), exact),
    }


def one_start(pickled: bytes, given: Any, start: int, folder: Path, end: int) -> Plain:
    """In its own process, which has neither weights nor seeds of other starts."""
    for other in (each for each in range(len(given["weights"])) if each != start):
        given["seeds"][other] = 0
        for tensor in given["weights"][other]:
            tensor.zero_()
    job = new_job(given, start)
    subject = cloudpickle.loads(pickled)
    with_functions_replaced(subject, Job=Job, Average=Average, Progress=Progress)
    subject(job.accelerator, job, folder, end)
    return {
        "losses": torch.tensor(job.losses, dtype=torch.float64),
        "first state": job.first_state,
        "last state": job.last_state,
        "average": torch.cat([each.flatten() for each in job.average.weights]),
    }


def of_starts(losses: Sequence[Tensor]) -> dict[str, Plain]:
    return {f"losses of start {start}": each for start, each in enumerate(losses)}


def new_job(given: Any, start: int) -> Job:
    accelerator = new_accelerator(use_seedable_sampler=True, data_seed=given["data seed"])
    return Job(accelerator, given, start)


def write_files(folder: Path, files: Mapping[str, bytes]) -> None:
    for name, content in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)


def with_changes(files: Mapping[str, bytes], folder: Path) -> dict[str, bytes]:
    """{path: content} with the files that any rank has written; if several have, the first's."""
    paths = [path for path in folder.rglob("*") if path.is_file()]
    own = {str(path.relative_to(folder)): path.read_bytes() for path in paths}
    changed = {name: content for name, content in own.items() if files.get(name) != content}
    by_rank: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(by_rank, changed)
    return {**files, **{name: each[name] for each in reversed(by_rank) for name in each}}


@on_each_rank
def saves_nothing(output: Any) -> MistakeText:
    if not output["saves"]:
        return "leaves no checkpoint in `folder`: call accelerator.save_state at the end"
    return None


@on_each_rank
def wrong_steps(output: Any, case: Case) -> MistakeText:
    ends = case.params["ends"]
    got = [len(output[f"losses of start {start}"]) for start in range(len(ends))]
    due = [end - begin for begin, end in pairwise([0, *ends])]
    if got == due:
        return None
    mistake = (
        "runs `until` steps after a restart: `until` is the total over all starts, so load the "
        "checkpoint, and register job.progress before, or nothing saves it"
        if got == ends
        else "does not run exactly the steps that remain until `until`"
    )
    return mistake, f"{got} steps at its starts, expected {due}"


@on_each_rank
def only_close(output: Any, expected: Any, case: Case) -> MistakeText:
    """Applies to two ranks, where sums have only one order.  DDP rebuilds its buckets after the
    first step, so with more ranks, a restarted ring adds that step's gradients in another order."""
    if case.world_size > 2 or output["bit for bit"]:
        return None
    if not equal(expected, output, TOLERANCE):
        return None  # and another mistake is named
    return "has losses close to those of an uninterrupted run, but not bit-equal ones"


@on_each_rank
def other_random_numbers(output: Any) -> MistakeText:
    if output["continues random numbers"]:
        return None
    return (
        "has different random numbers after a restart: save_state saves each rank's own, so call "
        "it on every rank; load_state restores them, so draw none and set no seed after it"
    )


def stopping(name: str, ranks: int, samples: int, *ends: int) -> Case:
    """``ends``: the step at which each start ends."""
    return Case(name, ranks, {"samples": samples, "ends": [*ends]})


EXERCISE = OnRanks(
    points=4,
    cases=(
        stopping("2 ranks, stopped in the second epoch", 2, 12, 4, 8),
        stopping("4 ranks, 10 samples, stopped twice", 4, 10, 1, 3, 6),
    ),
    inputs=draw_inputs,
    drive=drive,
    tolerance=TOLERANCE,
    rules=(saves_nothing, wrong_steps, only_close),
    signs=(fails_on_a_rank, other_random_numbers),
)
