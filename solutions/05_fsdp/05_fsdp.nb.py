# ---
# jupyter:
#   jupytext:
#     text_representation:
#       extension: .py
#       format_name: percent
#   kernelspec:
#     display_name: Python 3 (ipykernel)
#     language: python
#     name: python3
# ---

# %% [markdown]
# # Lab 05 · FSDP
#
# FSDP is ZeRO-3 for whole modules: a **unit** is a module whose parameters are gathered before it computes and freed after it. You will gather and free units yourself, and then choose the units of PyTorch's `fully_shard`.
#
# **In this lab you**
#
# - gather and free the parameters of a module yourself, and prefetch the next one's;
# - wrap a model with `fully_shard` within a budget of bytes and calls;
# - explain what FSDP can do for a layer that is too large, and what it cannot.
#
# **You need:** [chapter 05](../../course/chapters/05_fsdp.ipynb).
#
# <!-- table of points -->
#
# Each exercise has a task, a **spec** that runs, a **budget**, your cell, a picture of what your code did, and a check. The check starts real ranks, compares every rank's result with one process, and compares the bytes it sent and the bytes it kept alive with the budget. Grading adds hidden cases: other sizes, other numbers of ranks. A mistake in one exercise never costs points in a later one.

# %%
print("Loading PyTorch's FSDP: a few seconds, longer the first time on a computer …")

from functools import partial

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard

from autograder import check
from shardlab import launch, show_table
from shardlab.widgets import memory_timeline

# %% [markdown]
# ## 1 · `gather_and_free`
#
# In lab 04 you gathered and freed one layer. FSDP does it for any modules, one after the other, and without changing their code: with **hooks**, functions that a module calls before and after its forward and its backward pass. And it **prefetches**: while one unit computes, the all-gather of the next is already under way.
#
# ### Helpers
#
# The first three are from lab 04.

# %%
def flatten(tensors, world_size):
    """[a a] [b b b], 4 ranks  ->  a a b b b 0 0 0   a copy, padded"""
    length = sum(tensor.numel() for tensor in tensors)
    flat = tensors[0].new_zeros(length + -length % world_size)
    torch.cat([tensor.detach().flatten() for tensor in tensors], out=flat[:length])
    return flat

# %%
def view_into(flat, parameters):
    """Turns each parameter into a view of its part of flat: changing one changes the other."""
    start = 0
    for parameter in parameters:
        parameter.data = flat[start : start + parameter.numel()].view_as(parameter)
        start += parameter.numel()

# %%
def reduce_scatter(flat):
    """rank0 [1 2] | rank1 [10 20]  ->  [11] | [22]   sends (N − 1)/N of flat"""
    world_size = dist.get_world_size()
    received = torch.empty_like(flat)
    dist.all_to_all_single(received, flat)
    return received.view(world_size, -1).sum(dim=0)

# %% [markdown]
# A `Unit` has the parameters of one module in a flat buffer, `whole`, and this rank's slice of it, `own`. The slice stays, the buffer comes and goes: `free` releases its memory, and `start_gather` allocates it again and starts to fill it. The parameters remain views of the buffer all the time. This is how FSDP does it, too: autograd keeps views of the weights for backward, and they are valid again as soon as the buffer is.

# %%
class Unit:
    """own: a slice of the module's parameters, always there; whole: all of them, while gathered"""

    def __init__(self, module):
        world_size = dist.get_world_size()
        self.module, self.parameters = module, list(module.parameters())
        self.whole = flatten(self.parameters, world_size)
        view_into(self.whole, self.parameters)
        self.own = self.whole.chunk(world_size)[dist.get_rank()].clone()
        self.gathering = None  # the all-gather that is under way
        self.free()

    @property
    def has_memory(self):
        """The buffer is whole, or an all-gather is filling it."""
        return self.whole.untyped_storage().nbytes() > 0

    def start_gather(self):
        """Returns at once: the all-gather is now under way."""
        assert self.gathering is None, "start_gather: this unit's all-gather is under way already"
        self.whole.untyped_storage().resize_(self.whole.nbytes)
        self.gathering = dist.all_gather_single(self.whole, self.own, async_op=True)

    def wait(self):
        """Returns when the buffer is whole."""
        if self.gathering is not None:
            self.gathering.wait()
            self.gathering = None

    def free(self):
        assert self.gathering is None, "free: wait for the all-gather that fills this buffer"
        self.whole.untyped_storage().resize_(0)

    def take_gradients(self):
        """The module's gradients, flattened and padded; they are removed from its parameters."""
        missing = [parameter for parameter in self.parameters if parameter.grad is None]
        assert not missing, "take_gradients: backward has not computed all of them"
        flat = flatten([parameter.grad for parameter in self.parameters], dist.get_world_size())
        for parameter in self.parameters:
            parameter.grad = None
        return flat

    def when_gradients_are_complete(self, function):
        """Calls function() in each backward pass, once all parameters have their gradient."""
        arrived = 0

        def hook(_):
            nonlocal arrived
            arrived = (arrived + 1) % len(self.parameters)
            if arrived == 0:
                function()

        for parameter in self.parameters:
            parameter.register_post_accumulate_grad_hook(hook)

# %% [markdown]
# ### The schedule
#
# `gather_and_free(modules)` takes a list of modules, equal on all ranks, in the order in which the model calls them. It turns each into a unit, installs hooks, and returns the list of the units' slices, `own`. From then on `model(x)` and `loss.backward()` work as before, on every rank with its own batch, and after backward each slice's `.grad` is this rank's slice of the **mean** gradient over the ranks (`zero_grad` resets it after each step). The loop below shows how it is used:
#
# ```python
# slices = gather_and_free(modules)
# optimizer = torch.optim.SGD(slices, lr=0.1)
# for inputs, targets in batches:
#     loss_of(model, inputs, targets).backward()
#     optimizer.step()
#     optimizer.zero_grad()
# ```
#
# In each forward and each backward pass:
#
# - a unit is gathered before it computes, and freed after it: in forward after the module's call, in backward once its gradients are complete, at the latest before the next unit computes;
# - **one** unit is prefetched: before unit k computes, the all-gather of the next one is started, but not waited for. In forward the next one is k + 1, in backward k − 1;
# - as soon as a unit's gradients are complete, before the next unit's backward pass, they are reduce-scattered, and only the slice remains.
#
# Every forward pass is followed by its backward pass, and every parameter gets a gradient. The last unit may stay whole between forward and backward, because backward needs it first. No other unit may.

# %%
def gather_and_free_spec(units):
    """Which units have memory while unit k computes: first in forward, then in backward."""
    forward = [[k, k + 1] if k + 1 < units else [k] for k in range(units)]
    backward = [[k - 1, k] if k > 0 else [k] for k in reversed(range(units))]
    return forward, backward

gather_and_free_spec(3)

# %% [markdown]
# These hooks are called; they have to return `None`, since another value would replace the input, the output or the gradient:
#
# | registered with | called |
# |---|---|
# | `module.register_forward_pre_hook(hook)` | `hook(module, inputs)` before the module's forward pass |
# | `module.register_forward_hook(hook)` | `hook(module, inputs, output)` after it |
# | `output.register_hook(hook)` | `hook(gradient)` in backward, before the backward pass of the module that computed `output` |
#
# The last one is for one tensor, so register it in each forward pass. For the end of a unit's backward pass use `unit.when_gradients_are_complete(function)`. PyTorch's `register_full_backward_hook` does not work here: for a module whose input needs no gradient, such as the first one, it is called before the module's gradients are computed.
#
# **Budget** · no barrier: the collectives wait for each other. In each step
#
# - a rank sends ≤ 1.02 × ideal bytes, ideal = $\frac{3(N-1)}{N}\,\Psi$: two all-gathers and one reduce-scatter of each padded unit;
# - at most two units have memory at any time, and none after backward;
# - live in forward ≤ 1.02 × (the slices + two units + activations);
# - live in backward ≤ 1.02 × (the slices and their gradients + two units + three exchanges of a unit's gradients + activations). An exchange holds them twice, as sent and as received. One is your own; gloo's two threads may each keep another a moment longer;
# - after backward nothing of the step is left but the slices' gradients: no output or gradient of a module, and nothing that grows from step to step, not even a list of numbers.
#
# <details><summary>Hint 1 · one function for both directions</summary>
#
# Before unit k computes, three things happen: its all-gather is started if it has no memory yet, it is waited for, and the next unit's all-gather is started. Forward and backward differ only in which unit is the next one. There is none after the last.
# </details>
# <details><summary>Hint 2 · each hook has to know its unit</summary>
#
# `enumerate(units)` gives k and the unit. A function or lambda that is defined in a loop reads `k` when it runs, after the loop, and then it is the last one. `functools.partial(hook, k)` stores the value: it is called with `k` first, then with what the module passes. `def hook(k, *_)` ignores the latter.
# </details>
# <details><summary>Hint 3 · nearly there</summary>
#
# Three inner functions: `before(k, following, *_)` for both directions, `after_forward(k, module, inputs, output)` and `after_backward(k)`. Two of them free a unit. Which one has the tensor on which the hook for backward is registered? And note that -1 is an index, too: `units[-1]` is the last unit.
# </details>

# %% nbgrader={"grade_id": "gather_and_free", "solution": true}
def gather_and_free(modules):
    """modules, equal on all ranks  ->  their slices on this rank, which the optimizer updates"""
    ### BEGIN SOLUTION
    units = [Unit(module) for module in modules]

    def fetch(k):
        if 0 <= k < len(units) and not units[k].has_memory:
            units[k].start_gather()

    def before(k, following, *_):
        fetch(k)
        units[k].wait()
        fetch(following)

    def after_forward(k, module, inputs, output):
        units[k].free()
        output.register_hook(partial(before, k, k - 1))

    def after_backward(k):
        flat = units[k].take_gradients()
        units[k].free()
        units[k].own.grad = reduce_scatter(flat) / dist.get_world_size()

    for k, unit in enumerate(units):
        unit.module.register_forward_pre_hook(partial(before, k, k + 1))
        unit.module.register_forward_hook(partial(after_forward, k))
        unit.when_gradients_are_complete(partial(after_backward, k))
    return [unit.own for unit in units]
    ### END SOLUTION

# %% [markdown]
# Eight units of 0.5 MiB, one step on four ranks: what is alive on rank 0. On the left the whole model, 4 MiB, is sharded one unit after the other. Then at most two units are whole at a time, 1 MiB, in forward and in backward: each step up is an all-gather, each step down a unit that is freed. The slices below them are drawn as "optimizer", because no module owns them.

# %%
def one_step():
    torch.manual_seed(0)  # the same parameters on every rank
    blocks = [nn.Sequential(nn.Linear(256, 256), nn.Tanh(), nn.Linear(256, 256)) for _ in range(8)]
    model = nn.Sequential(*blocks)
    slices = gather_and_free(blocks)
    model(torch.randn(2, 256)).square().mean().backward()
    torch.optim.SGD(slices, lr=0.1).step()

run = launch(one_step, world_size=4, memory=True)
memory_timeline(run)

# %% nbgrader={"grade_id": "check_gather_and_free", "grade": true}
check("fsdp.gather_and_free", gather_and_free)

# %% [markdown]
# ## 2 · `wrap`
#
# Now PyTorch's own `fully_shard`. Each call makes one **unit**: the parameters of that module, without those that an earlier call took. A unit is gathered as a whole, computes, and is freed. So the choice of units has two costs:
#
# - **memory**: while a layer computes, its unit is whole, and so are the units that contain it, up to the root.
# - **collectives**: in a step every unit is gathered twice, for forward and for backward, and its gradients are reduce-scattered once. The root stays whole after forward and is gathered once. So $U$ units make $3U - 1$ collectives.
#
# `wrap(model, unit_bytes)` calls `fully_shard` on some modules of `model`, and on `model` itself, so that **no unit has more than `unit_bytes` bytes of parameters, and there are as few units as possible**. It then builds and returns the optimizer, `torch.optim.SGD` with learning rate 0.1. The check trains the model with it for two steps; losses and parameters must equal those of one process on all ranks' batches.
#
# The models differ. In some a block is too large for a unit and has to be split. In others, blocks are so small that they should not be units: their parameters stay in the unit of the module that contains them. Decide by the sizes, not by the modules' names. Call `fully_shard` with one module at a time, and leave its options at their defaults.
#
# You may assume: every module has a `forward`; no parameter is shared by two modules; all parameters are float32 and trained; there are no buffers; every layer (a module without children) fits into a unit. A block may have parameters of its own, next to those of its children.

# %%
def wrap_spec(sizes, unit_bytes):
    """One level: the sizes of a root's children  ->  (sizes of the units, the root's last; collectives)"""
    in_the_root, units = sorted(sizes), []
    while sum(in_the_root) > unit_bytes:
        units.append(in_the_root.pop())
    return [*units, sum(in_the_root)], 3 * (len(units) + 1) - 1

wrap_spec([30, 50, 10, 50], unit_bytes=50)

# %% [markdown]
# **Budget** · no unit above `unit_bytes`; one of exactly `unit_bytes` is allowed · parameters that are whole at one time ≤ `unit_bytes` × the number of units that can contain each other (the root, a block, a layer: 3) · exactly $3U - 1$ collectives per step, where $U$ is the least possible number of units. Their number, unlike their bytes, is the same with every backend.
#
# <details><summary>Hint 1 · the order of calls</summary>
#
# `fully_shard` takes the parameters that no earlier call took, so call it on the inner modules first and on the root last. It replaces each parameter by a DTensor, the rank's shard; an optimizer that was built before would update tensors that the model no longer uses.
# </details>
# <details><summary>Hint 2 · one level</summary>
#
# Suppose you know how many bytes each child leaves for the unit that contains it. While their sum is too large, one child must become a unit: the one that leaves the most bytes, since no other choice reduces the sum more. These bytes are then in a unit of their own, and no longer count for the parent.
# </details>
# <details><summary>Hint 3 · all levels</summary>
#
# A recursive function whose result is the number of bytes that a module leaves for the unit that contains it. A layer leaves all its bytes. What does a block leave, once hint 2 is applied to its children? Think of the block's own parameters, too: `module.parameters(recurse=False)`. Read the sizes before you shard.
# </details>

# %% nbgrader={"grade_id": "wrap", "solution": true}
def wrap(model, unit_bytes):
    """model, equal on all ranks  ->  its optimizer; the model is sharded in few enough units"""
    ### BEGIN SOLUTION
    def rest(module):
        """Bytes that this module leaves for the unit that contains it."""
        own = sum(p.numel() * p.element_size() for p in module.parameters(recurse=False))
        left = {child: rest(child) for child in module.children()}
        while own + sum(left.values()) > unit_bytes:
            heaviest = max(left, key=left.get)
            fully_shard(heaviest)
            del left[heaviest]
        return own + sum(left.values())

    rest(model)
    fully_shard(model)
    return torch.optim.SGD(model.parameters(), lr=0.1)
    ### END SOLUTION

# %% [markdown]
# Your units on two ranks, for three budgets. This model has a large block, four of medium size and two tiny ones. In 1,000 KiB the whole model fits into one unit.

# %%
def make_model():
    torch.manual_seed(0)  # the same parameters on every rank
    blocks = [
        nn.Sequential(nn.Linear(64, width), nn.Tanh(), nn.Linear(width, 64))
        for width in (256, 256, 16, 512, 16, 256, 256)
    ]
    return nn.Sequential(nn.Linear(64, 64), *blocks, nn.Linear(64, 8))

def one_step(unit_bytes):
    model = make_model()
    optimizer = wrap(model, unit_bytes)
    model(torch.randn(8, 64)).square().mean().backward()
    optimizer.step()

runs = {f"{kib} KiB": launch(one_step, kib * 1024, world_size=2, memory=True) for kib in (1000, 300, 140)}

def peak_bytes(run):
    in_step = [phase for phase in run.memory[0].phases if phase.name in ("forward", "backward")]
    return max(sum(phase.at_peak.values()) for phase in in_step)

show_table(
    {"unit_bytes": "", "collectives": "d", "bytes live at the peak": ",d"},
    [(name, len(run.calls) // 2, peak_bytes(run)) for name, run in runs.items()],
)

# %% [markdown]
# At first each rank has the whole model, until `wrap` has sharded it. Forward and backward follow: live bytes rise when a unit is gathered and fall when it is freed.

# %%
memory_timeline(runs)

# %% nbgrader={"grade_id": "check_wrap", "grade": true}
check("fsdp.wrap", wrap)

# %% [markdown]
# ## 3 · Does FSDP help?
#
# A model has 40 blocks of 0.5 billion parameters each and a head of 4 billion, one `Linear`. It is trained in bf16 with fp32 masters and Adam, 16 bytes per parameter, on one node of 8 GPUs with 80 GB each. A colleague writes: "The head does not fit next to the rest, so let us use FSDP: it will split the head's matrix multiplication. And since FSDP moves all parameters in every step, it must send more than tensor parallelism; with longer sequences both will send more." What is right, what is wrong? Give each rank's bytes of model states and what the largest unit adds to them in backward, and say which of the two methods' traffic grows with the number of tokens. Would you also use tensor parallelism for the head? Four to eight sentences.
#
# What a unit takes for each of its parameters, while it is whole: 2 bytes for the bf16 copy; in backward 2 more for its bf16 gradient; then the copy is freed, and while the gradient is reduced, 4 bytes for an fp32 copy of it.

# %% [markdown] nbgrader={"grade_id": "does_fsdp_help", "grade": true, "solution": true, "points": 2}
# ### BEGIN SOLUTION
# The model has 40 · 0.5 + 4 = 24 billion parameters: 384 GB of model states, 48 GB on each of 8 ranks, so sharded they fit. But FSDP does not split a matrix multiplication. Each rank gathers the whole head, 8 GB in bf16, to compute it on its own tokens. In backward its whole gradient is next to it, 8 GB in bf16; then the parameters are freed, and the gradient is copied to fp32 to be reduced, 8 + 16 GB. That makes 48 + 24 = 72 GB, and only 8 GB remain for activations and for a prefetched block (1 GB): too tight, although a block, an eighth of the head, is no problem.
#
# FSDP's traffic does not depend on the tokens: two all-gathers and a reduce-scatter of the parameters, $\frac{3(N-1)}{N}\,\Psi$ elements per step. Tensor parallelism sends activations, so its traffic grows with batch and sequence length: with few tokens it sends less, with many tokens FSDP sends less. So neither "must send more".
#
# For the head tensor parallelism is a good choice: each rank keeps and computes an eighth of the matrix, 0.5 billion parameters, and never gathers the rest; the blocks can stay with FSDP. Smaller units would not help, because the head is one layer.
#
# Points: 1 for the numbers (48 GB of states; 8 GB for the whole head and 8 for its gradient, or 8 + 16 while it is reduced: the largest unit decides; whoever says that the parameters are still whole then, 8 GB more, has the point too), 1 for what FSDP is: it gathers whole layers and splits no matrix multiplication, and its traffic grows with parameters, that of tensor parallelism with tokens.
# ### END SOLUTION
