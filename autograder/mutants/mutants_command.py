"""python -m autograder mutants [LAB ...] [--sample N] [--jobs N]"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import sys
from collections.abc import Iterator
from concurrent.futures import Future, ProcessPoolExecutor, as_completed

from autograder.mutants.changes import Mutant

PART = 12  # mutants that a process decides before it reports


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    command = commands.add_parser(
        "mutants", help="change the solutions' code; list the changes that still earn full marks"
    )
    command.add_argument("labs", nargs="*", metavar="LAB", help="default: all")
    command.add_argument("--sample", type=int, metavar="N", help="only N changes of each exercise")
    command.add_argument("--only", metavar="ANSWER", help="only this exercise of the labs")
    command.add_argument("--jobs", type=int, default=os.cpu_count() or 1, metavar="N")
    command.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Exit status 1 if a change survives for which no EQUIVALENT_ANSWERS gives a reason."""
    from autograder import exercises

    known = exercises.labs()
    if unknown := [lab for lab in arguments.labs if lab not in known]:
        print(f"no lab {', '.join(unknown)}; there are {', '.join(known)}", file=sys.stderr)
        return 2
    names = [
        (lab, exercise.name)
        for lab in arguments.labs or known
        for exercise in exercises.of_lab(lab)
        if arguments.only in (None, exercise.answer)
    ]
    if not names or arguments.jobs < 1 or (arguments.sample or 1) < 1:
        print("nothing to do: see --only, --jobs and --sample", file=sys.stderr)
        return 2
    unexplained = 0
    columns = "{:<48} {:>8} {:>12} {:>6} {:>12}".format
    print(columns("exercise", "changes", "lose points", "equal", "unexplained"), flush=True)
    for name, decided in _decided(names, arguments.sample, arguments.jobs):
        lost = sum(not survives for _, survives, _ in decided)
        open_ones = [text for text, survives, reason in decided if survives and not reason]
        equal = len(decided) - lost - len(open_ones)
        print(columns(name, len(decided), lost, equal, len(open_ones)), flush=True)
        for text in open_ones:
            print(f"    {text}", flush=True)
        unexplained += len(open_ones)
    return 1 if unexplained else 0


Row = tuple[str, bool, str]  # the change, whether it survives, why it is correct


def _decided(
    names: list[tuple[str, str]], sample: int | None, jobs: int
) -> Iterator[tuple[str, list[Row]]]:
    """Each exercise as soon as all its changes are decided."""
    from autograder import exercises
    from autograder.mutants.survivors import mutants_of

    context = multiprocessing.get_context("spawn")  # each process has its own rank server
    with ProcessPoolExecutor(jobs, mp_context=context) as pool:
        parts: dict[Future[list[Row]], str] = {}
        rows: dict[str, list[Row]] = {name: [] for _, name in names}
        try:
            for lab, name in names:
                found = mutants_of(lab, exercises.load(name), sample)
                for start in range(0, len(found), PART):
                    chosen = found[start : start + PART]
                    parts[pool.submit(_decide_part, lab, name, chosen)] = name
            left = [*parts.values()]
            for done in as_completed(parts):
                name = parts[done]
                rows[name] += done.result()
                left.remove(name)
                if name not in left:
                    yield name, rows[name]
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise


def _decide_part(lab: str, name: str, chosen: list[Mutant]) -> list[Row]:
    from autograder import exercises
    from autograder.evaluation.trial import RankPool
    from autograder.mutants.survivors import decide_mutants
    from shardlab.ranks.trust import Trust

    exercise = exercises.load(name)
    with RankPool(trust=Trust.UNTRUSTED) as ranks:
        ranks.expect(exercise, exercise.cases)
        decided = decide_mutants(lab, exercise, chosen, ranks)
        return [(str(each.mutant), each.survives, each.reason) for each in decided]
