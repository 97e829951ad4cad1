"""A function that executes a schedule on real ranks."""

from __future__ import annotations

import weakref
import zlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch.distributed as dist
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef

from autograder.exercise import (
    NAMED_MISTAKES,
    Attempt,
    Budget,
    Case,
    Finding,
    Limit,
    OnRanks,
    Plain,
    from_outputs,
)
from autograder.exercise.signs import (
    MistakeText,
    finished,
    keeps_growing,
    on_each_call,
    on_each_rank,
    raises,
)
from autograder.exercises.lab09_pipeline import shared
from autograder.exercises.lab09_pipeline.shared import (
    Plan,
    Stage,
    contents,
    gradients_of,
    shape_of,
    stages_of_ranks,
)
from autograder.guest.growth import STEPS, found_in_more_steps
from shardlab.errors import DeadlockError
from shardlab.run import Call
from shardlab.simulate.pipeline import interleaved_one_f_one_b, one_f_one_b

IN_VARIABLES = 2  # micro-batches whose tensors the names of local variables may still hold
NEXT_CALL = "the next call"  # key of the results of a smaller schedule
ENDS = "inputs", "targets"


def run_case(name: str, schedule: Sequence[Sequence[Sequence[Any]]], **params: Any) -> Case:
    plan: Plan = [[list(action) for action in actions] for actions in schedule]
    sizes = {
        "plan": plan,
        "micro_batches": 1 + max(k for _, _, k in plan[0]),
        "shape": [2, 4],
        "times": 1,
        "more_steps": 0,  # of the first micro-batch
    }
    return Case(name, len(plan), sizes | params)


def all_forwards_first(*devices: tuple[list[int], list[int]]) -> Plan:
    """``devices``: for each, the order of its forwards and that of its backwards; any is legal."""
    return [
        [[kind, stage, k] for kind, order in zip("FB", orders, strict=True) for k in order]
        for stage, orders in enumerate(devices)
    ]


def in_other_order(stages: list[int], plan: Plan) -> Plan:
    """``stages``: for each rank, the stage that it holds."""
    return [plan[stage] for stage in stages]


@dataclass
class Record:
    """What a rank executes, and what it keeps of micro-batches whose backward is over."""

    executed: list[Any] = field(default_factory=list)
    tensors: dict[Any, weakref.ref[Tensor]] = field(default_factory=dict)  # by (stage, k)
    kept: int = 0  # the most at any time
    # Memory of received x, and the size of an x: views keep it, and one buffer may hold many x.
    storages: list[tuple[StorageWeakRef, int, int]] = field(default_factory=list)
    in_flight: int = 0  # the most received x in flight at any time
    # Checksums: of the tensor that each action received, and of its result.
    used: list[list[Any]] = field(default_factory=list)
    x_of: dict[Any, weakref.ref[Tensor]] = field(default_factory=dict)  # by (stage, k)
    made: list[list[Any]] = field(default_factory=list)

    def add(self, *action: Any) -> None:
        over = [each[1:] for each in self.executed if each[0] == "B"]
        kept = [key for key in self.tensors if [*key] in over and self.tensors[key]() is not None]
        ran = [each[1:] for each in self.executed if each[0] == "F" and each[1] > 0]
        self.in_flight = max(self.in_flight, sum(each not in over for each in ran))
        sizes = {ref.cdata: size // of_x for ref, size, of_x in self.storages if not ref.expired()}
        self.kept = max(self.kept, len(kept), sum(sizes.values()) - self.in_flight)
        self.executed.append([*action])

    def in_use(self, x: Tensor) -> int | None:
        """The micro-batch whose forward had this very x, if its backward is still to come."""
        keys = [key for key, ref in self.x_of.items() if ref() is x]
        return next((key[1] for key in keys if ["B", *key] not in self.executed), None)

    def backward(self, *stage_and_k: int, y_grad: Tensor) -> None:
        self.add("B", *stage_and_k)
        self.used.append(["B", *stage_and_k, checksum(y_grad)])


def checksum(tensor: Tensor) -> int:
    """0 for zeros, which anything may have computed."""
    return zlib.crc32(tensor.detach().numpy().tobytes()) if tensor.any() else 0


class RecordingStage(Stage):
    """A stage that records its forwards, and its backwards as their gradients arrive."""

    number: int
    upcoming: list[int]  # micro-batches, in the order of their forwards
    record: Record

    def forward(self, x: Tensor) -> Tensor:
        k = self.record.in_use(x)
        if k is None:
            k = self.upcoming.pop(0) if self.upcoming else -1
        self.record.add("F", self.number, k)
        self.record.x_of[self.number, k] = weakref.ref(x)
        if self.number > 0:
            memory = x.untyped_storage()
            self.record.storages.append((StorageWeakRef(memory), memory.nbytes(), x.nbytes))
        self.record.used.append(["F", self.number, k, checksum(x)])
        y = super().forward(x)
        # The graph from x to y ends in x, so x is alive as long as y; but `inputs` holds stage 0's.
        self.record.tensors[self.number, k] = weakref.ref(x if self.number > 0 else y)
        self.record.made.append(["F", self.number, k, checksum(y)])
        if y.grad_fn is not None:  # a hook of y would also run in autograd.grad(loss, y)
            y.grad_fn.register_prehook(
                lambda grads: self.record.backward(self.number, k, y_grad=grads[0])
            )
        if x.requires_grad:
            made = self.record.made
            x.register_hook(lambda grad: made.append(["B", self.number, k, checksum(grad)]))
        return y


def drive(subject: Any, given: Any, case: Case) -> Plain:
    plan = [[tuple(action) for action in actions] for actions in case.params["plan"]]
    numbers = stages_of_ranks(case)[dist.get_rank()]
    stages = {n: RecordingStage(*of) for n, of in zip(numbers, given["weights"], strict=True)}
    for _ in range(case.params["times"]):  # the last one counts
        output = run_once(subject, stages, given, plan, shape_of(case))
    first = [[action for action in actions if action[2] == 0] for actions in plan]
    smaller = {}

    def one_step() -> None:
        smaller.update(run_once(subject, stages, given, first, shape_of(case)))

    kept = {"run_schedule": subject, "stages": stages}
    grows = found_in_more_steps(kept, one_step, case.params["more_steps"])
    return {**output, NEXT_CALL: smaller, "grows": grows}


def run_once(
    subject: Any,
    stages: dict[int, RecordingStage],
    given: Any,
    plan: list[Any],
    shape: tuple[int, ...],
) -> Plain:
    record, own = Record(), plan[dist.get_rank()]
    for number, stage in stages.items():
        stage.zero_grad()
        stage.upcoming = [k for kind, s, k in own if (kind, s) == ("F", number)]
        stage.number, stage.record = number, record
    m = 1 + max(k for _, _, k in own)
    ends = {end: None if given[end] is None else list(given[end][:m]) for end in ENDS}
    passed = {"schedule": [[*actions] for actions in plan], "stages": dict(stages), **ends}
    watched = {"parameters": stages, **passed}
    before = contents(watched)
    loss = subject(*passed.values(), shape)
    after = contents(watched)
    return {
        "loss": loss,
        "executed": record.executed,
        "gradients": [gradients_of(stage) for stage in stages.values()],
        "had_gradients": [
            any(a[:2] == ["B", number] for a in record.executed) for number in stages
        ],
        "changed": [name for name in watched if after[name] != before[name]],
        "requires_grad": [end for end, each in ends.items() if each and needs_grad(each)],
        "kept": record.kept,
        "used": record.used,
        "made": record.made,
    }


def needs_grad(tensors: list[Tensor]) -> bool:
    return any(isinstance(each, Tensor) and each.requires_grad for each in tensors)


@on_each_rank
def requires_grad_of_arguments(output: Any) -> MistakeText:
    for name in output["requires_grad"]:
        return (
            f"turns on requires_grad of its argument {name}, where gradients then add up from step "
            "to step: only an x that was received needs it"
        )
    return None


def plan_of(case: Case) -> Plan:
    return case.params["plan"]


def tensors_sent(case: Case) -> list[int]:
    """By rank: every activation except the last stage's, every gradient except the first's."""
    plan: Plan = case.params["plan"]
    last = max(stage for actions in plan for _, stage, _ in actions)
    ends, more = [["F", last], ["B", 0]], case.params["more_steps"]
    return [
        sum(1 + more * (k == 0) for kind, stage, k in actions if [kind, stage] not in ends)
        for actions in plan
    ]


@on_each_call
def other_peer(call: Call, case: Case) -> MistakeText:
    """A message to a rank that gets none from this one in a right run."""
    right = shared.messages_of(plan_of(case))[call.rank]
    if call.op == "recv" or call.peer in {peer for op, peer, _ in right if op == "send"}:
        return None
    mistake = "sends to a rank that needs none of its results"
    return mistake, f"to rank {call.peer}, {call.source}"


def waits_in_send(attempt: Attempt) -> Finding | None:
    """Every rank has made a right run's calls so far, and some wait in one of the sends."""
    for rank, right in enumerate(shared.messages_of(plan_of(attempt.case))):
        made = [(call.op, call.peer) for call in attempt.calls_of(rank)]
        if made != [message[:2] for message in right[: len(made)]]:
            return None
    table = attempt.error.table if isinstance(attempt.error, DeadlockError) else ()
    for row in table:
        if row.state == "waiting" and row.call.startswith("send to"):
            mistake = (
                "waits in a send until it is received, which comes too late: send with isend, go "
                "on, and wait for all sends at the end"
            )
            return Finding(f"rank {row.rank}", mistake, row.source)
    return None


tag_as_group = raises(
    "Group .* is not registered",
    "passes a tag as the third positional argument, which is a group: write tag=…",
)


@on_each_rank
def wrong_order(output: Any, expected: Any) -> MistakeText:
    wanted, executed = expected["executed"], output["executed"]
    if executed == wanted or all(kind == "F" for kind, *_ in executed):
        return None  # without any backward: see shared.no_gradients
    pairs = enumerate(zip(executed, wanted, strict=False))
    different = [f"action {i} is {a}, it should be {b}" for i, (a, b) in pairs if a != b]
    mistake = "does not follow the schedule: run the actions of schedule[rank] in order, each once"
    return mistake, different[0] if different else ""


def confuses_messages(attempt: Attempt) -> Finding | None:
    """An action has used the very values that another one has computed."""
    results = {tuple(made): value for _, out in finished(attempt) for *made, value in out["made"]}
    for rank, output in finished(attempt):
        for kind, stage, k, value in output["used"]:
            needed = kind, stage - 1 if kind == "F" else stage + 1, k
            others = [action for action, result in results.items() if result == value]
            if value and others and needed in results and needed not in others:
                mistake = (
                    "uses the result of a different action from the one it needs: messages that "
                    "are sent to a rank at a time need different tags, each with the result of its "
                    "own action, unchanged until the send is over"
                )
                used = f"{(kind, stage, k)} uses that of {others[0]}, it needs that of {needed}"
                return Finding(f"rank {rank}", mistake, used)
    return None


EXERCISE = OnRanks(
    points=6,
    cases=(
        run_case(
            "1 rank, 3 micro-batches, two steps", one_f_one_b(1, 3), times=2, more_steps=STEPS
        ),
        run_case("1F1B, 4 ranks, 5 micro-batches", one_f_one_b(4, 5)),
        run_case(
            "2 ranks of 2 chunks, 4 micro-batches",
            interleaved_one_f_one_b(2, 4, 2),
            more_steps=STEPS,
        ),
        run_case(
            "3 ranks, stages and micro-batches in other orders",
            in_other_order(
                [2, 1, 0],
                all_forwards_first(
                    ([1, 2, 0], [1, 2, 0]), ([2, 0, 1], [2, 1, 0]), ([1, 0, 2], [0, 2, 1])
                ),
            ),
        ),
    ),
    inputs=shared.draw_model,
    drive=drive,
    tolerance=shared.TOLERANCE,
    budgets=(
        shared.sends("sends each activation and each gradient once", tensors_sent),
        shared.waits_for_messages,
        Budget(
            "frees x and y of a micro-batch after its backward",
            from_outputs("kept"),
            lambda case: Limit(IN_VARIABLES),
            heading="kept too long",
            unit="micro-batches",
        ),
    ),
    allows=shared.P2P_ONLY,
    rules=(shared.changes_arguments, requires_grad_of_arguments, keeps_growing),
    signs=(
        other_peer,
        shared.message_never_arrives(plan_of),
        waits_in_send,
        shared.sends_none,
        tag_as_group,
        wrong_order,
        shared.no_gradients,
        NAMED_MISTAKES,
        confuses_messages,
        shared.unwaited,
    ),
)
