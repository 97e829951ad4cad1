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
# FSDP is ZeRO-3 for whole modules: a **unit** is a module whose parameters are gathered before it computes, and freed after it.
#
# | exercise | points |
# |---|---|
# | 1 · `hsdp_bytes` | 2 |
# | 2 · `gather_and_free` | 5 |

# %%
from functools import partial

import torch
import torch.distributed as dist
from torch import nn

from autograder import check
from shardlab import launch
from shardlab.widgets import memory_timeline

# %% [markdown]
# ## 1 · `hsdp_bytes`
#
# On a cluster, the links within a node are fast and those between nodes are slow. **HSDP** (hybrid sharding) shards only within a node. The ranks form a mesh of R rows and S columns:
#
# - a row is a **shard group**: its S ranks share one copy of the model, each has 1/S of it. They gather the parameters and reduce-scatter the gradients, as in FSDP;
# - a column is a **replica group**: its R ranks hold the same shard, and all-reduce their shards of the gradients.
#
# How many bytes does **one rank** send in a step with one forward and one backward pass? Return a dict of two numbers: `"within"` its shard group, and `"across"`, to ranks of other groups. Each collective is a ring: an all-gather or a reduce-scatter over n ranks sends (n − 1)/n of the whole tensor per rank, an all-reduce twice as much. With `reshard_after_forward=False` the parameters stay whole between forward and backward. Sizes are not rounded, and nothing is padded.

# %%
def mesh_spec(replicas, shards):
    """Row: a shard group. Column: a replica group."""
    return torch.arange(replicas * shards).view(replicas, shards)

mesh_spec(replicas=2, shards=4)

# %% [markdown]
# **Budget** · no communication: this is arithmetic.
#
# <details><summary>Hint 1 · two ends that you know</summary>
#
# R = 1 is plain FSDP on S ranks: nothing goes across. S = 1 is DDP on R ranks: every rank has a whole copy, and nothing stays within.
# </details>
# <details><summary>Hint 2 · within a shard group</summary>
#
# Three collectives over the S ranks, each with the whole model: an all-gather of the parameters for forward, another for backward, and a reduce-scatter of the gradients. Which of them is not needed if the parameters stay whole?
# </details>
# <details><summary>Hint 3 · across</summary>
#
# After the reduce-scatter a rank has 1/S of the gradient, summed over its group. Only this shard is all-reduced, over R ranks.
# </details>

# %% nbgrader={"grade_id": "hsdp_bytes", "solution": true}
def hsdp_bytes(parameters, replicas, shards, element_bytes=2, reshard_after_forward=True):
    """(8, 2, 2)  ->  {"within": 24, "across": 8}"""
    ### BEGIN SOLUTION
    model_bytes = parameters * element_bytes
    tensors = 3 if reshard_after_forward else 2
    return {
        "within": tensors * (shards - 1) / shards * model_bytes,
        "across": 2 * (replicas - 1) / replicas * model_bytes / shards,
    }
    ### END SOLUTION

# %% [markdown]
# 7 billion parameters in 16 bits on 64 ranks, with your formula: from DDP (S = 1) to FSDP over all ranks (S = 64). Nodes of 8 ranks: up to S = 8, only what goes across uses the slow links.

# %%
print(" S   R  within, GB  across, GB")
for shards in (1, 2, 4, 8, 16, 64):
    sent = hsdp_bytes(7e9, 64 // shards, shards)
    print(f"{shards:2}  {64 // shards:2}  {sent['within'] / 1e9:10.2f}  {sent['across'] / 1e9:10.2f}")

# %% nbgrader={"grade_id": "check_hsdp_bytes", "grade": true, "points": 2}
check("fsdp.hsdp_bytes", hsdp_bytes)

# %% [markdown]
# ## 2 · `gather_and_free`
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
    """own: a slice of the module's parameters, always there; whole: all of them, now and then"""

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
# `gather_and_free(modules)` takes a list of modules, equal on all ranks, in the order in which the model calls them. It turns each into a unit, installs hooks, and returns the list of the units' slices, `own`. From then on `model(x)` and `loss.backward()` work as before, on every rank with its own batch, and after backward each slice's `.grad` is this rank's slice of the **mean** gradient over the ranks. The loop below shows how it is used:
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
# - a unit is gathered before it computes, and freed after it: in forward after the module's call, in backward once its gradients are complete;
# - **one** unit is prefetched: before unit k computes, the all-gather of the next one is started, but not waited for. In forward the next one is k + 1, in backward k − 1;
# - as soon as a unit's gradients are complete, they are reduce-scattered, and only the slice remains.
#
# Every forward pass is followed by its backward pass, and every parameter gets a gradient. The last unit may stay whole between forward and backward, because backward needs it first.

# %%
def gather_and_free_spec(units):
    """Which units have memory while unit k computes: first in forward, then in backward."""
    forward = [[k, k + 1] if k + 1 < units else [k] for k in range(units)]
    backward = [[k - 1, k] if k > 0 else [k] for k in reversed(range(units))]
    return forward, backward

gather_and_free_spec(3)

# %% [markdown]
# These hooks are called, and what they return is ignored, as long as it is `None`:
#
# | registered with | called |
# |---|---|
# | `module.register_forward_pre_hook(hook)` | `hook(module, inputs)` before the module's forward pass |
# | `module.register_forward_hook(hook)` | `hook(module, inputs, output)` after it |
# | `output.register_hook(hook)` | `hook(gradient)` in backward, before the backward pass of the module that computed `output` |
#
# The last one is for one tensor, so register it in each forward pass. For the end of a unit's backward pass use `unit.when_gradients_are_complete(function)`. PyTorch's `register_full_backward_hook` is no replacement: for a module whose input needs no gradient, such as the first one, it is called before the module's gradients are computed.
#
# **Budget** · sends ≤ 1.02 × ideal bytes per rank and step, ideal = 3(N − 1)/N · Ψ: two all-gathers and one reduce-scatter of each padded unit · at most two units have memory at any time · live in forward ≤ 1.02 × (the slices + two units + activations) · live in backward ≤ 1.02 × (the slices and their gradients + two units + one unit's gradients in exchange + activations). The budget includes one more exchange for each of gloo's two threads, which may release it a little late · no unit has memory after backward.
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
# Three inner functions: `before(k, following, *_)`, which is called before forward with `following = k + 1` and before backward with `following = k - 1`; `after_forward(k, module, inputs, output)`, which frees the unit and registers the hook for backward on `output`; and `after_backward(k)`, which takes the gradients, frees the unit, and sets its slice's `.grad`. Mind that -1 is an index, too: `units[-1]` is the last unit.
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

# %% nbgrader={"grade_id": "check_gather_and_free", "grade": true, "points": 5}
check("fsdp.gather_and_free", gather_and_free)
