"""Lab 11, metrics and save_everything: other right answers pass."""

from __future__ import annotations

import cloudpickle
import pytest

from autograder import exercises
from autograder.evaluation.decide import decide
from tests.submissions import planted

LAB = "11_deepspeed_accelerate"
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


@pytest.mark.ranks
@pytest.mark.parametrize("way", RIGHT)
def test_right_answers_pass(way):
    source = RIGHT[way]
    answer = source.split("(")[0].removeprefix("\ndef ")
    answers = planted.solution(LAB) | {answer: source}
    subject = planted.subjects(LAB, answers)[answer]
    verdict = decide(BY_NAME[answer], cloudpickle.dumps(subject), SEED)
    assert verdict.passed, [case.diagnosis for case in verdict.cases if not case.passed]
