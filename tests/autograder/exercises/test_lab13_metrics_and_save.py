"""Lab 13, metrics and save_everything: other right answers pass."""

from __future__ import annotations

from pathlib import Path

import cloudpickle
import pytest
import torch
from accelerate.data_loader import BatchSamplerShard
from torch.utils.data import DataLoader, TensorDataset

from autograder import exercises
from autograder.evaluation.decide import decide
from autograder.evaluation.trial import RankPool, Trials
from tests.submissions import corpus, planted
from tests.submissions.deciding import inputs_of

LAB = "13_accelerate"
SEED = 11
BY_NAME = {exercise.answer: exercise for exercise in exercises.of_lab(LAB)}
RIGHT = {
    "gather_for_metrics where the dataset has a length": """
def metrics(accelerator, model, loader):
    hit_by_index = {}
    for index, inputs, targets in loader:
        index, hits = accelerator.gather_for_metrics((index, model(inputs).argmax(1) == targets))
        hit_by_index |= dict(zip(index.tolist(), hits.tolist()))
    return torch.tensor([*hit_by_index.values()]).float().mean()
""",
    "all hits at once, as objects": """
def metrics(accelerator, model, loader):
    own = {}
    for index, inputs, targets in loader:
        own |= dict(zip(index.tolist(), (model(inputs).argmax(1) == targets).tolist()))
    by_rank = [None] * accelerator.num_processes
    dist.all_gather_object(by_rank, own)
    hits = {index: hit for each in by_rank for index, hit in each.items()}
    return sum(hits.values()) / len(hits)
""",
    "right answers and samples, summed over the ranks, without repeated ones": """
def metrics(accelerator, model, loader):
    seen, own = set(), torch.zeros(2, dtype=torch.float64)
    for index, inputs, targets in loader:
        predicted = model(inputs).argmax(-1)
        everyones = accelerator.gather(index).view(accelerator.num_processes, -1).tolist()
        for rank, indices in enumerate(everyones):
            for at, i in enumerate(indices):
                if i not in seen and rank == accelerator.process_index:
                    own += torch.tensor([predicted[at] == targets[at], 1])
                seen.add(i)
    right, samples = accelerator.reduce(own, "sum")
    return (right / samples).item()
""",
    "an all-gather of a table with a row for each sample": """
def metrics(accelerator, model, loader):
    rows = [
        torch.stack([index, (model(inputs).max(1).indices == targets).long()], 1)
        for index, inputs, targets in loader
    ]
    table = accelerator.gather(torch.cat(rows)).unique(dim=0)
    return table[:, 1].double().mean().item()
""",
    "runs through the used batches, prepares the scheduler": """
def save_everything(accelerator, job, folder, until):
    accelerator.prepare(job.scheduler)
    accelerator.register_for_checkpointing(job.progress)
    accelerator.register_for_checkpointing(job.average)
    if Path(folder).exists():
        accelerator.load_state(str(folder))
    while job.progress.steps < until:
        epoch, used = divmod(job.progress.steps, len(job.loader))
        job.loader.set_epoch(epoch)
        for i, batch in enumerate(job.loader):
            if i >= used and job.progress.steps < until:
                job.step(batch)
    accelerator.wait_for_everyone()
    accelerator.save_state(folder, safe_serialization=False)
""",
    "asks for the notebook's own classes": """
def save_everything(accelerator, job, folder, until):
    own = [each for each in vars(job).values() if isinstance(each, (Average, Progress))]
    assert isinstance(job, Job)
    accelerator.register_for_checkpointing(job.scheduler, *own)
    if folder.exists():
        accelerator.load_state(folder)
    while job.progress.steps < until:
        epoch, used = divmod(job.progress.steps, len(job.loader))
        job.loader.set_epoch(epoch)
        for batch in skip_first_batches(job.loader, used):
            job.step(batch)
            if job.progress.steps == until:
                break
    accelerator.save_state(folder)
""",
    "finds its place by running through whole epochs": """
def save_everything(accelerator, job, folder, until):
    class Everything:
        parts = job.scheduler, job.average, job.progress
        def state_dict(self):
            return {str(i): part.state_dict() for i, part in enumerate(self.parts)}
        def load_state_dict(self, state):
            for i, part in enumerate(self.parts):
                part.load_state_dict(state[str(i)])
    accelerator.register_for_checkpointing(Everything())
    if any(folder.glob("*")):
        accelerator.load_state(folder)
    done = job.progress.steps
    n = len(job.loader)
    for epoch in range(done // n, until // n + 1):
        job.loader.set_epoch(epoch)
        for i, batch in enumerate(job.loader):
            if done <= epoch * n + i < until:
                job.step(batch)
    dist.barrier()
    accelerator.save_state(output_dir=folder)
""",
    "skips in the first epoch only": """
def save_everything(accelerator, job, folder, until):
    accelerator.register_for_checkpointing(job.progress, job.average, job.scheduler)
    if folder.is_dir():
        accelerator.load_state(folder)
    epoch, used = divmod(job.progress.steps, len(job.loader))
    job.loader.set_epoch(epoch)
    loader = skip_first_batches(job.loader, used)
    while job.progress.steps < until:
        for batch in loader:
            job.step(batch)
            if job.progress.steps == until:
                break
        epoch, loader = epoch + 1, job.loader
        loader.set_epoch(epoch)
    accelerator.save_state(folder)
""",
}


@pytest.mark.parametrize("case", BY_NAME["metrics"].cases, ids=lambda case: case.name)
def test_a_rank_has_only_the_samples_of_its_own_batches(case):
    inputs = inputs_of(BY_NAME["metrics"], case)
    dataset = TensorDataset(torch.arange(case.params["samples"]))
    loader = DataLoader(dataset, batch_size=case.params["batch"]).batch_sampler
    owners = torch.zeros(case.params["samples"])
    for rank, given in enumerate(inputs):
        shard = BatchSamplerShard(loader, case.world_size, rank, even_batches=True)
        own = sorted({index for batch in shard for index in batch})
        has = given["inputs"].isfinite().all(dim=1)
        assert has.nonzero().flatten().tolist() == own
        assert (given["targets"] >= 0).tolist() == has.tolist()
        owners += has
    assert owners.min() == 1 or case.params["samples"] < case.world_size
    hits = [(given["inputs"] @ given["weight"].T).argmax(1) == given["targets"] for given in inputs]
    accuracy = BY_NAME["metrics"].expect(case, inputs)[0]["accuracy"]
    assert any(own.double().mean() != accuracy for own in hits)


def corpus_answers(attack):
    return corpus.answers_in((Path(corpus.HERE) / "attacks" / f"{attack}.nb.py").read_text())


@pytest.mark.ranks
def test_only_files_remain_of_a_start():
    """Of the memory, the module's attributes and the working folder of its process, nothing."""
    exercise = BY_NAME["save_everything"]
    subject = planted.subjects(
        LAB, planted.solution(LAB) | corpus_answers("keeps_the_job_in_memory")
    )
    blob = cloudpickle.dumps(subject["save_everything"])
    case = exercise.cases[0]
    with RankPool() as ranks:
        ranks.expect(exercise, [case])
        result = Trials(exercise, blob, SEED, ranks).run(case)[1].result
    assert not result.passed
    assert "remain" in result.diagnosis or "restart" in result.diagnosis, result.diagnosis


@pytest.mark.ranks
@pytest.mark.parametrize("way", RIGHT)
def test_right_answers_pass(way):
    source = RIGHT[way]
    answer = source.split("(")[0].removeprefix("\ndef ")
    answers = planted.solution(LAB) | {answer: source}
    subject = planted.subjects(LAB, answers)[answer]
    verdict = decide(BY_NAME[answer], cloudpickle.dumps(subject), SEED)
    assert verdict.passed, [case.diagnosis for case in verdict.cases if not case.passed]
