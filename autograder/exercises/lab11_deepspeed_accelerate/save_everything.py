"""Stop a training job, restart it from its checkpoint, and compare with an uninterrupted run.

Each rank has its own folder, as in a sandbox; at the next start, all of them contain the files that
any rank saved, as on a shared disk.
"""

from __future__ import annotations

from collections.abc import Mapping
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

from autograder.exercise import Attempt, Case, Finding, OnRanks, Plain
from autograder.exercise.compare import equal
from autograder.exercise.signs import MistakeText, finished, on_each_rank
from autograder.exercises.lab11_deepspeed_accelerate.accelerators import new_accelerator
from autograder.guest.on_rank import gets_pickled_answer
from shardlab.ranks.explain import each_rank_text

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


def with_weights(model: nn.Module, weights: list[Tensor]) -> nn.Module:
    for parameter, weight in zip(model.parameters(), weights, strict=True):
        parameter.data = weight.clone()
    return model


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
    losses, done, saved, files = [], [], [], dict[str, bytes]()
    states: list[Tensor] = []
    for start, end in enumerate(case.params["ends"]):
        with TemporaryDirectory() as name:
            folder = Path(name, "checkpoint")
            write_files(folder, files)
            job = new_job(given, start)
            cloudpickle.loads(pickled)(job.accelerator, job, folder, end)
            files = with_changes(files, folder)
        losses.append(torch.tensor(job.losses, dtype=torch.float64))
        done.append(job.progress.steps)
        saved.append(sorted(files))
        states += [job.first_state, job.last_state]
    final = torch.cat([each.flatten() for each in job.average.weights])
    whole = new_job(given, 0)
    while whole.progress.steps < case.params["ends"][-1]:
        for batch in whole.loader:
            whole.step(batch)
    exact = torch.tensor(whole.losses, dtype=torch.float64)[: case.params["ends"][-1]]
    return {
        "losses": losses,
        "average": final,
        "done": done,
        "saved": saved,
        "continues random numbers": all(map(torch.equal, states[1:-1:2], states[2::2])),
        "bit for bit": torch.equal(torch.cat(losses), exact),
    }


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


def steps_due(case: Case) -> list[int]:
    """The number of steps of each start."""
    return [end - begin for begin, end in pairwise([0, *case.params["ends"]])]


@on_each_rank
def saves_nothing(output: Any) -> MistakeText:
    if not output["saved"][0]:
        return "leaves no checkpoint in `folder`: call accelerator.save_state at the end"
    return None


@on_each_rank
def wrong_steps(output: Any, case: Case) -> MistakeText:
    got, ends = [len(each) for each in output["losses"]], case.params["ends"]
    if got == steps_due(case):
        return None
    evidence = f"{got} steps at its starts, expected {steps_due(case)}"
    if got == list(ends) != output["done"]:
        return "counts `until` from the restart: it is the total over all starts", evidence
    if got == list(ends):
        mistake = (
            "begins at step 0 after a restart: load the checkpoint, and register job.progress "
            "before, or nothing saves it"
        )
        return mistake, evidence
    return "does not run exactly the steps that remain until `until`", evidence


@on_each_rank
def only_close(output: Any, expected: Any, case: Case) -> MistakeText:
    """Applies to two ranks, where sums have only one order.  DDP rebuilds its buckets after the
    first step, so with more ranks, a restarted ring adds that step's gradients in another order."""
    if case.world_size > 2 or output["bit for bit"]:
        return None
    if not equal(expected, output, TOLERANCE):
        return None  # and another mistake is named
    return "has losses close to those of an uninterrupted run, but not bit-equal ones"


def other_random_numbers(attempt: Attempt) -> Finding | None:
    ranks = [rank for rank, out in finished(attempt) if not out["continues random numbers"]]
    if not ranks:
        return None
    mistake = (
        "has different random numbers after a restart: save_state saves their states on each rank "
        "that calls it, load_state restores them; before the first step nothing may draw or set a "
        "seed"
    )
    if 0 not in ranks:
        mistake = (
            "has different random numbers after a restart, while rank 0 continues with its own: "
            "each rank saves its own random states, so call save_state on every rank, not only on "
            "the main process"
        )
    return Finding(each_rank_text(ranks), mistake, who_if_hidden="a rank")


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
    signs=(other_random_numbers,),
)
