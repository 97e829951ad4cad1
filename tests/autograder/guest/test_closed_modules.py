"""No lab can be answered by calling a ready-made solution in shardlab, torch or another library."""

from __future__ import annotations

import gc
import importlib
import re
import sys
from collections.abc import Callable, Iterator
from types import CodeType, FunctionType, ModuleType, SimpleNamespace
from typing import Any

import cloudpickle
import pytest

from autograder import exercises
from autograder.evaluation.decide import decide
from autograder.evaluation.trial import RankPool, Trials, rng_for
from autograder.exercise import Case, Exercise, Formula, equal
from autograder.exercise.hidden import HiddenHalf
from autograder.grading.record.source_rules import find_forbidden
from autograder.guest import closed_modules
from autograder.guest.closed_modules import is_closed
from shardlab import launch
from shardlab.ranks.threads import one_thread
from shardlab.ranks.trust import Trust
from shardlab.simulate import pipeline
from tests.autograder.exercise_halves import on_ranks
from tests.submissions import planted

SEED = 11
EXERCISES = {
    exercise.name: (lab, exercise) for lab in exercises.labs() for exercise in exercises.of_lab(lab)
}
# {exercise: an answer that calls a solution of shardlab, torch or another library}
BORROWED = {
    "one_device.step_bytes": """
from shardlab.models import bigram
def step_bytes(**setting):
    kept = {}
    with torch.autograd.graph.saved_tensors_hooks(
        lambda tensor: kept.setdefault(tensor.data_ptr(), tensor), lambda tensor: tensor):
        model, optimizer = bigram.train_one_step(**setting)
    own = {each.data_ptr() for each in model.parameters()}
    kept = [each for at, each in kept.items() if at not in own and each.is_floating_point()]
    parameters = sum(each.nbytes for each in model.parameters())
    states = [each for state in optimizer.state.values() for each in state.values()]
    masters = [] if setting["precision"] == "fp32" else optimizer.param_groups[0]["params"]
    held = sum(each.nbytes for each in [*states, *masters] if torch.is_tensor(each))
    return {"parameters": parameters, "gradients": parameters, "optimizer": held,
            "activations": sum(each.nbytes for each in kept)}
""",
    "fsdp_in_practice.hsdp_bytes": """
from shardlab.estimate import hybrid_sharding
def hsdp_bytes(parameters, replicas, shards, element_bytes=2, reshard_after_forward=True):
    sent = hybrid_sharding.sent_bytes(parameters, replicas, shards, parameter_bytes=element_bytes,
        gradient_bytes=element_bytes, gathers=2 if reshard_after_forward else 1)
    return {"within": sent.within, "across": sent.across}
""",
    "fsdp_in_practice.which_is_it": """
from shardlab.recorded_runs import step_traces
def which_is_it(trace):
    return next(method for method, known in step_traces.load().values() if known == trace)
""",
    "dp_vs_ddp.hub_bytes": """
from shardlab.estimate import hub_sent_bytes
def hub_bytes(parameter_bytes, world_size):
    return [(each, each) for each in hub_sent_bytes(parameter_bytes, world_size)]
""",
    "dp_vs_ddp.ring_bytes": """
from types import SimpleNamespace
from shardlab.trace import measured_traffic
def ring_bytes(parameter_bytes, world_size):
    ranks = range(world_size)
    calls = [SimpleNamespace(op="all_reduce", rank=rank, group=ranks, bytes=parameter_bytes,
        is_p2p=False) for rank in ranks]
    sent = measured_traffic.ring_bytes(calls, world_size)
    return [(int(sent[rank].sum()), int(sent[:, rank].sum())) for rank in ranks]
""",
    "ring_all_reduce.bytes_per_rank": """
def bytes_per_rank(length, element_bytes, world_size):
    from shardlab.estimate.collectives import ring_sent_bytes
    return ring_sent_bytes(length * element_bytes, world_size)
""",
    "zero.zero_bytes": """
from shardlab.estimate import memory
def zero_bytes(parameters, world_size, stage, offload=False):
    states = memory.model_states(
        parameters, stage=stage, world_size=world_size, offload_optimizer=offload)
    return {**states.device, "host": states.host_bytes}
""",
    "zero.shard_bounds": """
from shardlab import shards
def shard_bounds(sizes, world_size):
    layout = shards.flat({str(i): size for i, size in enumerate(sizes)}, world_size, stage=1)
    each = layout.length // world_size
    return [(rank * each, (rank + 1) * each) for rank in range(world_size)]
""",
    "fsdp.gather_and_free": """
from torch.distributed.fsdp import fully_shard
def gather_and_free(modules):
    return [p.to_local() for each in modules for p in fully_shard(each).parameters()]
""",
    "offload.offload_bytes_per_step": """
from shardlab.estimate.offload import moved_bytes
def offload_bytes_per_step(method, parameters, world_size, precision="bf16", micro_batches=1):
    moved = moved_bytes(parameters, method, world_size=world_size, micro_batches=micro_batches,
        element_bytes=4 if precision == "fp32" else 2, state_bytes=8 if precision == "fp32" else 12)
    return moved.to_host_bytes, moved.to_device_bytes
""",
    "tensor_parallel.tp_bytes_per_layer": """
from shardlab.estimate import traffic
def tp_bytes_per_layer(batch, tokens, width, tp_size, element_bytes=2):
    return traffic.tensor_parallel_layer(
        batch * tokens, width, tp_size, element_bytes=element_bytes).total_bytes
""",
    "pipeline.gpipe_schedule": """
def gpipe_schedule(devices, micro_batches):
    from torch.distributed.pipelining import schedules
    return schedules._get_1f1b_rank_ops(1, devices, 1, 1, micro_batches, 0)
""",
    "pipeline.one_f_one_b_schedule": """
from shardlab.simulate.pipeline import one_f_one_b
def one_f_one_b_schedule(devices, micro_batches):
    return one_f_one_b(devices, micro_batches)
""",
    "pipeline.bubble_fraction": """
from shardlab import launch
from shardlab.simulate import pipeline
def bubble_fraction(devices, micro_batches, chunks=1):
    schedule = pipeline.interleaved_one_f_one_b(devices, micro_batches, chunks)
    return pipeline.simulate(schedule).bubble_fraction
""",
    "pipeline.run_schedule": """
from shardlab import pipeline
def run_schedule(schedule, stages, inputs, targets, shape):
    n = len(targets or inputs or [0] * 3)
    ran = pipeline.run_schedule(schedule, stages, inputs or [0] * n, targets or [0] * n,
        functional.mse_loss, between=shape)
    return ran.loss
""",
    "pipeline.interleaved_schedule": """
from shardlab.simulate.pipeline import generators
def interleaved_schedule(devices, micro_batches, chunks):
    return generators.interleaved_one_f_one_b(devices, micro_batches, chunks)
""",
    "pipeline.zero_bubble_schedule": """
from shardlab import launch
from shardlab.simulate import pipeline
def zero_bubble_schedule(devices, micro_batches):
    return pipeline.zb_h1(devices, micro_batches)
""",
    "activation_checkpointing.activation_bytes": """
from shardlab.estimate import activations
def activation_bytes(
    tokens, samples, width, heads, tp_size=1, sequence_parallel=False, recompute="none"):
    return activations.layer_bytes(tokens, samples, width, heads, tensor_parallel=tp_size,
        sequence_parallel=sequence_parallel, recompute=recompute)
""",
    "lora.LoRALinear": """
class LoRALinear(nn.Module):
    def __init__(self, linear, r, alpha):
        from peft import LoraConfig, inject_adapter_in_model
        super().__init__()
        config = LoraConfig(r=r, lora_alpha=alpha, target_modules=["linear"])
        self.linear = inject_adapter_in_model(config, nn.ModuleDict({"linear": linear})).linear
        self.A, self.B = (each.default.weight for each in (self.linear.lora_A, self.linear.lora_B))
        self.merge, self.unmerge = self.linear.merge, self.linear.unmerge
    def forward(self, x):
        return self.linear(x)
""",
    "lora.count_and_ship": """
from shardlab.estimate import lora
def count_and_ship(shapes, r, targets, world_size, tokens):
    matrices = {name.split(".")[-2]: [] for name in shapes}
    for name, shape in shapes.items():
        matrices[name.split(".")[-2]] += [shape] if len(shape) == 2 else []
    adapters = lora.adapter_parameters(sum((matrices[each] for each in targets), []), r)
    base = sum(a * b for module, each in matrices.items() for a, b in each
        if module not in ("token", "position"))
    return {"adapters": adapters, "state_bytes": lora.trained_bytes(adapters) * 3 / 4,
        "sent_bytes": lora.sent_bytes(adapters, world_size),
        "flops": lora.training_flops(base, tokens, is_frozen=True)
            + lora.training_flops(adapters, tokens, is_frozen=False)}
""",
    "quantization.quantize_blockwise": """
def quantize_blockwise(weights, block, points=None):
    import bitsandbytes.functional as bnb
    if points is None:
        code = torch.arange(-127, 129) / 127
        codes, state = bnb.quantize_blockwise(weights, code=code, blocksize=block)
        return (codes.int() - 127).to(torch.int8), state.absmax
    packed, state = bnb.quantize_4bit(weights, blocksize=block, quant_type="nf4")
    codes = torch.stack([packed >> 4, packed & 15], dim=-1).flatten()
    return codes[:weights.numel()].view(weights.shape), state.absmax
""",
    "quantization.pack_q4_0": """
import gguf
def pack_q4_0(weights):
    rows = weights.view(-1, 32).numpy()
    return torch.from_numpy(gguf.quants.quantize(rows, gguf.GGMLQuantizationType.Q4_0))
""",
    "quantization.outliers": """
def outliers(x, w, threshold):
    import bitsandbytes
    state = bitsandbytes.MatmulLtState()
    state.threshold, state.has_fp16_weights = threshold, False
    return bitsandbytes.matmul(x, w, state=state)
""",
    "lora.qlora_step": """
def qlora_step(layers, x, loss_of, alpha, lr):
    import bitsandbytes
    for layer in layers:
        A, B = layer["A"], layer["B"]
        state = bitsandbytes.functional.QuantState(
            layer["absmax"], (len(B), A.shape[1]), NF4_VALUES, 64, "nf4", torch.float32)
        base = bitsandbytes.matmul_4bit(x, layer["packed"].view(1, -1), state)
        x = base + alpha / len(A) * (x @ A.T @ B.T)
    adapters = [layer[name] for layer in layers for name in "AB"]
    for adapter, grad in zip(adapters, torch.autograd.grad(loss_of(x), adapters)):
        dist.all_reduce(grad, op=dist.ReduceOp.AVG)
        adapter.data -= lr * grad
""",
}


@pytest.fixture(autouse=True)
def one_thread_as_in_the_checker() -> Iterator[None]:
    with one_thread():
        yield


def subject_of(name: str) -> object:
    lab, exercise = EXERCISES[name]
    answers = planted.solution(lab) | {exercise.answer: BORROWED[name]}
    return planted.subjects(lab, answers)[exercise.answer]


# ---- every lab closes its solutions --------------------------------------------------------------


@pytest.mark.ranks
@pytest.mark.parametrize("name", BORROWED)
def test_calling_a_ready_made_solution_earns_nothing_and_is_named(name: str) -> None:
    _, exercise = EXERCISES[name]
    with RankPool() as ranks:
        ranks.expect(exercise, exercise.cases[:1])
        trials = Trials(exercise, cloudpickle.dumps(subject_of(name)), SEED, ranks)
        _, judged = trials.run(exercise.cases[0])
    result = judged.result
    assert not result.passed
    named = re.match(r"your answer calls (\S+), which is a ready-made solution: ", result.diagnosis)
    assert named, result.diagnosis
    assert is_closed(named[1], exercise.closed)
    # and the instructor is warned
    assert find_forbidden(BORROWED[name], exercise.allows, exercise.answer, exercise.closed)


WITHOUT_RANKS = [name for name in BORROWED if isinstance(EXERCISES[name][1], Formula)]
WITHOUT_RANKS += ["quantization.pack_q4_0"]


@pytest.mark.parametrize("name", WITHOUT_RANKS)
def test_the_ready_made_solution_would_have_been_correct(name: str) -> None:
    """So these modules must be closed; others may stay open."""
    if name == "pipeline.bubble_fraction":
        pytest.skip("the library's schedules need many steps for it")
    _, exercise = EXERCISES[name]
    for case in exercise.cases[:2]:
        inputs = exercise.draw(case, rng_for(exercise, case, SEED))
        output = exercise.drive(subject_of(name), inputs[0], case)
        assert equal(exercise.expect(case, inputs)[0], output, exercise.tolerance)


def test_every_reference_that_calls_the_library_is_listed() -> None:
    library_references = {
        name
        for name, (_, exercise) in EXERCISES.items()
        if any(is_closed(module, exercise.closed) for module in modules_called(reference(exercise)))
    }
    assert library_references
    assert library_references <= set(BORROWED)


def reference(exercise: Exercise) -> object:
    hidden = exercise.required_half.module
    return hidden.right if hasattr(hidden, "right") else hidden.reference


def modules_called(function: object, seen: set[object] | None = None) -> Iterator[str]:
    """Modules of the functions called by ``function``, directly or through exercises."""
    seen = set() if seen is None else seen
    if not isinstance(function, FunctionType) or function in seen:
        return
    seen.add(function)
    for name in names_in(function.__code__):
        value = function.__globals__.get(name)
        if isinstance(value, ModuleType):
            yield value.__name__
        elif module := getattr(value, "__module__", None):
            yield module
            if module.startswith("autograder.exercises"):
                yield from modules_called(value, seen)


def names_in(code: CodeType) -> Iterator[str]:
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from names_in(constant)


# ---- modules that only one exercise closes -------------------------------------------------------

BY_LIBRARY = """
def answer(x):
    from shardlab.estimate import ring_sent_bytes
    return ring_sent_bytes(x, 4)
"""
BY_HAND = """
def answer(x):
    return 1.5 * x
"""


def pickled_answer(source: str) -> bytes:
    notebook: dict[str, Any] = {"__name__": "__main__"}
    exec(source, notebook)
    return bytes(cloudpickle.dumps(notebook["answer"]))


def drive_once(subject: Callable[[Any], Any], given: Any, case: Case) -> Any:
    return subject(given)


def exercise_that_closes(*closed: str) -> Exercise:
    return on_ranks(
        "toy.answer",
        [Case("2 ranks", 2)],
        inputs=lambda case, rng: 8,
        drive=drive_once,
        reference=lambda case, inputs: 12.0,
        closed=closed,
    )


@pytest.mark.ranks
@pytest.mark.parametrize("trust", Trust)
def test_a_module_stays_open_on_the_ranks_of_other_exercises(trust: Trust) -> None:
    """Both exercises take their ranks from one pool, as those of one submission do."""
    other, closing = exercise_that_closes(), exercise_that_closes("shardlab.estimate")
    with RankPool(trust=trust) as ranks:
        by_hand, by_library = pickled_answer(BY_HAND), pickled_answer(BY_LIBRARY)
        assert decide(closing, by_hand, SEED, trust=trust, ranks=ranks).passed
        assert decide(other, by_library, SEED, trust=trust, ranks=ranks).passed
        assert len({kind.closed for kind in ranks._rank_sets}) == 2
        verdict = decide(closing, by_library, SEED, trust=trust, ranks=ranks)
    assert not verdict.passed
    assert "ring_sent_bytes, which is a ready-made solution" in verdict.cases[0].diagnosis
    assert find_forbidden(BY_LIBRARY, None, "answer", closing.closed)
    assert not find_forbidden(BY_LIBRARY, None, "answer", other.closed)


@pytest.mark.ranks
def test_a_library_that_is_not_installed_is_rejected_by_name() -> None:
    """A grader does not have to install every library that students may have."""
    source = "def answer(x):\n    import uninstalled.nf4\n    return uninstalled.nf4.linear(x)\n"
    with RankPool() as ranks:
        verdict = decide(
            exercise_that_closes("uninstalled"), pickled_answer(source), SEED, ranks=ranks
        )
    assert "your answer calls uninstalled, which is a ready-made" in verdict.cases[0].diagnosis


def test_what_an_exercise_closes_is_added_to_what_its_lab_closes() -> None:
    public = exercise_that_closes("torch.distributed.fsdp")
    half = HiddenHalf(SimpleNamespace())
    loaded = public.with_hidden_half(half, "toy", "answer", ("shardlab.estimate",))
    assert loaded.closed == ("shardlab.estimate", "torch.distributed.fsdp")


# ---- closing modules -----------------------------------------------------------------------------

CLOSED = (
    "shardlab.simulate.pipeline.generators",
    "torch.distributed.pipelining",
    "shardlab.pipeline",
)


# Closing a module cannot be undone, so these functions run in separate processes.


def in_another_process(fn: Callable[[], Any]) -> Any:
    return launch(fn, world_size=1, quiet=True).outputs[0]


def refuses_under_any_name() -> str:
    importlib.import_module("torch.distributed.pipelining")  # it defines enums
    kept = pipeline.gpipe
    closed_modules.close_modules(CLOSED)
    assert re.compile("any", re.IGNORECASE | re.ASCII)
    for function in (kept, pipeline.generators.alternate):
        with pytest.raises(PermissionError, match=f"{function.__name__} is a ready-made"):
            function(2, 4)
    assert pipeline.simulate([[("F", 0, 0), ("B", 0, 0)]]).makespan == 3
    return "done"


def refuses_an_import() -> str:
    for name in [name for name in sys.modules if name.startswith("shardlab.estimate")]:
        del sys.modules[name]
    closed_modules.close_modules(["shardlab.estimate"])
    with pytest.raises(PermissionError, match=closed_modules.CLOSED):
        importlib.import_module("shardlab.estimate.traffic")
    return "done"


@pytest.mark.ranks
@pytest.mark.parametrize("fn", [refuses_under_any_name, refuses_an_import])
def test_closed_modules_refuse(fn: Callable[[], str]) -> None:
    assert in_another_process(fn) == "done"


def functions_of_every_form() -> ModuleType:
    module = ModuleType("answers")
    source = """
import functools
def plain(): return 1
def of(x):
    def inside(): return x
    return inside
closure = of(2)
@functools.cache
def cached(): return 3
table = {"four": lambda: 4, "nested": [(lambda: 5,)]}
later = functools.partial(lambda: 6)
class C:
    def __init__(self): super().__init__()
    @staticmethod
    def seven(): return 7
    @classmethod
    def eight(cls): return 8
    @property
    def nine(self): return 9
    @functools.cached_property
    def ten(self): return 10
@functools.wraps(plain)
def wrapper(): return 11
"""
    exec(source, vars(module))
    module.cached()
    return module


def test_functions_are_found_in_every_form() -> None:
    module = functions_of_every_form()
    instance = module.C()
    assert closed_modules.found_in(module).caches == [module.cached]
    closed_modules.close(closed_modules.found_in(module))
    calls = [
        *(module.plain, module.of, module.closure, module.cached, module.wrapper, module.later),
        *(module.table["four"], module.table["nested"][0][0], module.C, module.C.seven),
        *(module.C.eight, lambda: instance.nine, lambda: instance.ten),
    ]
    for call in calls:
        with pytest.raises(PermissionError, match="ready-made"):
            call()


def codes_left_in_memory() -> list[str]:
    """Original code of closed functions that can be reached from any object or frame."""
    names = [name for name in CLOSED if name.startswith("shardlab")]
    closed_modules.close_modules(names)
    gc.unfreeze()
    known: list[Any] = [*gc.get_objects(), *sys._current_frames().values(), *sys.modules.values()]
    seen: set[int] = set()
    found = []
    while known:
        each = known.pop()
        if id(each) in seen:
            continue
        seen.add(id(each))
        if isinstance(each, CodeType):
            file = each.co_filename.replace("/", ".").removesuffix(".py")
            is_body = each.co_name == "<module>"
            if any(f"{name}." in f"{file}." for name in names) and not is_body:
                found.append(f"{each.co_filename}: {each.co_qualname}")
            known += [constant for constant in each.co_consts if isinstance(constant, CodeType)]
        else:
            known += gc.get_referents(each)
    return found


@pytest.mark.ranks
def test_no_object_of_the_process_leads_to_the_original_code() -> None:
    assert in_another_process(codes_left_in_memory) == []


NOT_INSTALLED = {"torchao"}  # here; students may have it


@pytest.mark.parametrize("lab", exercises.labs())
def test_closed_modules_exist_and_are_flagged_for_the_instructor(lab: str) -> None:
    closed = exercises.setting(lab, "CLOSED")
    for name in set(closed) - NOT_INSTALLED:
        for function, _ in closed_modules.found_in(importlib.import_module(name)).refusing:
            called = function.__qualname__.partition(".")[0]
            if called == "<lambda>":  # cannot be imported by name
                continue
            source = f"from {name} import {called}\ndef answer():\n    return {called}()\n"
            assert find_forbidden(source, None, "answer", closed), source
