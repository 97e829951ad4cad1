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
# # Lab 04 · ZeRO
#
# Plain data parallelism keeps every parameter, every gradient and all of Adam's states on every rank. ZeRO gives each rank a slice (a **shard**) of them instead: of the optimizer states (stage 1), of the gradients too (stage 2), of the parameters too (stage 3). You will count the bytes, compute the slices, and build all three stages.
#
# **In this lab you**
#
# - compute the model states' bytes for each ZeRO stage;
# - shard optimizer states, gradients and parameters yourself, on real ranks;
# - choose the lowest stage that fits a given model and device.
#
# **You need:** [chapter 04](../../course/chapters/04_zero.ipynb).
#
# <!-- table of points -->
#
# Each exercise has a task, a **spec** that runs, a **budget**, your cell, a picture of what your code did, and a check. The check starts real ranks, compares every rank's result with one process, and compares the bytes it sent and the bytes it kept alive with the budget. Grading adds hidden cases: other sizes, other numbers of ranks. A mistake in one exercise never costs points in a later one.

# %%
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn

from autograder import check
from shardlab import data, launch, models, show_table
from shardlab.widgets import memory_bars, memory_timeline, shard_map, traffic_map

# %% [markdown]
# ## 1 · `zero_bytes`
#
# How many bytes of model states does **one rank** hold? A model has Ψ parameters and trains on N ranks in 16 bits with Adam: 2 bytes for a parameter, 2 for its gradient, and K = 12 for the optimizer: an fp32 master copy of the parameter and Adam's two states, 4 bytes each.
#
# Return a dict of four numbers: `"parameters"`, `"gradients"` and `"optimizer"` on the device, and `"host"`. With `offload=True` (only at stages 2 and 3) the slices of gradients and optimizer states are on the host instead of the device, as in ZeRO-Offload; otherwise `"host"` is 0. A rank's share is Ψ/N, not rounded.

# %%
def zero_bytes_spec(billions, world_size):
    """GB (10⁹ bytes) on one device, by stage: the ZeRO paper's table 1, arXiv 1910.02054"""
    table = {(7.5, 64): [120, 31.4, 16.6, 1.88], (128, 16): [2048, 608, 368, 128]}
    return table[billions, world_size]

zero_bytes_spec(7.5, 64)

# %% [markdown]
# **Budget** · no communication: this is arithmetic.
#
# <details><summary>Hint 1 · stage 0</summary>
#
# Nothing is sharded: 2Ψ, 2Ψ and 12Ψ, 16Ψ in all. With 7.5 billion parameters that is 120 GB.
# </details>
# <details><summary>Hint 2 · which stage shards what</summary>
#
# Stage 1: the optimizer states. Stage 2: the gradients, too. Stage 3: the parameters, too. Divide what is sharded by N; the rest stays whole on every rank.
# </details>
# <details><summary>Hint 3 · nearly there</summary>
#
# `share = parameters / world_size`, and then `2 * (share if stage >= 3 else parameters)` for the parameters. Offload moves two of the numbers to `"host"` and sets them to 0.
# </details>

# %% nbgrader={"grade_id": "zero_bytes", "solution": true}
def zero_bytes(parameters, world_size, stage, offload=False):
    """(8, 4, 0)  ->  {"parameters": 16, "gradients": 16, "optimizer": 96, "host": 0}"""
    ### BEGIN SOLUTION
    share = parameters / world_size
    sizes = {
        "parameters": 2 * (share if stage >= 3 else parameters),
        "gradients": 2 * (share if stage >= 2 else parameters),
        "optimizer": 12 * (share if stage >= 1 else parameters),
        "host": 0,
    }
    if offload:
        sizes["host"] = sizes["gradients"] + sizes["optimizer"]
        sizes["gradients"] = sizes["optimizer"] = 0
    return sizes
    ### END SOLUTION

# %% [markdown]
# The paper's table from your formula, in GB: 7.5 billion parameters, one column per stage.

# %%
def gigabytes(world_size):
    return [sum(zero_bytes(7.5e9, world_size, stage).values()) / 1e9 for stage in range(4)]

show_table(
    {"N": "d", **{f"stage {stage}": ".2f" for stage in range(4)}},
    [(n, *gigabytes(n)) for n in (1, 4, 16, 64, 256, 1024)],
)

# %% nbgrader={"grade_id": "check_zero_bytes", "grade": true}
check("zero.zero_bytes", zero_bytes)

# %% [markdown]
# ## 2 · `shard_bounds`
#
# Which elements belong to which rank? ZeRO does not assign whole layers. It concatenates all parameters into **one flat buffer**, pads it with zeros until N divides its length, and splits it into N equal slices. They are equal because collectives need the same length on every rank.
#
# Given the size of each parameter in elements, return `(start, stop)` of each rank's slice of the padded buffer.

# %%
def shard_bounds_spec(tensors, world_size):
    """[a a a] [b b b b] [c c c], 4 ranks  ->  a a a | b b b | b c c | c 0 0"""
    flat = torch.cat(tensors)
    padded = F.pad(flat, (0, -len(flat) % world_size))
    return padded.view(world_size, -1)

shard_bounds_spec([torch.full((3,), 1), torch.full((4,), 2), torch.full((3,), 3)], 4)

# %% [markdown]
# **Budget** · no communication: this is arithmetic.
#
# <details><summary>Hint 1 · where a layer ends does not matter</summary>
#
# Only the sum of the sizes does. Above, rank 1 and rank 2 share the second parameter, and rank 3 holds one element and two zeros.
# </details>
# <details><summary>Hint 2 · how long a slice is</summary>
#
# ⌈Ψ/N⌉, the quotient rounded up. The last slice may reach past the last parameter: that is the padding.
# </details>
# <details><summary>Hint 3 · rounding up</summary>
#
# `-(-a // b)` is ⌈a/b⌉ in integer arithmetic. Then slice r is `(r * length, (r + 1) * length)`.
# </details>

# %% nbgrader={"grade_id": "shard_bounds", "solution": true}
def shard_bounds(sizes, world_size):
    """([3, 4, 3], 4)  ->  [(0, 3), (3, 6), (6, 9), (9, 12)]"""
    ### BEGIN SOLUTION
    length = -(-sum(sizes) // world_size)
    return [(rank * length, (rank + 1) * length) for rank in range(world_size)]
    ### END SOLUTION

# %% [markdown]
# Your slices: one row per rank, one letter per element, dots for padding:

# %%
buffer = ("aaa" + "bbbb" + "ccc").ljust(12, "·")
for rank, (start, stop) in enumerate(shard_bounds([3, 4, 3], 4)):
    print(f"rank {rank}  {buffer[start:stop]}")

# %% [markdown]
# The same for a small GPT, from the library's formula. Hover over a piece to see its tensor, and change the stage.

# %%
shard_map(models.gpt("0.1M"), world_size=4, stage=1)

# %% nbgrader={"grade_id": "check_shard_bounds", "grade": true}
check("zero.shard_bounds", shard_bounds)

# %% [markdown]
# ### Helpers
#
# The rest of the lab uses these four helpers. `flatten` makes a flat buffer, and `view_into` turns parameters into views of it. `gather` joins all ranks' slices.
#
# `reduce_scatter` sums a flat tensor over all ranks and returns slice r of the sum on rank r: every rank sends each other rank its slice, then adds up what it received. Each rank sends $\frac{N-1}{N}$ of the tensor's bytes, as much as NCCL does for `dist.reduce_scatter_single`. On a CPU that call would send **twice as much**: gloo runs it as an all-reduce and discards the rest. The budgets below are the ZeRO paper's, so use this helper.

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
def gather(own):
    """rank0 [1 2] | rank1 [3 4]  ->  [1 2 3 4] on both, a new tensor"""
    flat = own.new_empty(dist.get_world_size() * len(own))
    dist.all_gather_single(flat, own.detach())
    return flat

# %%
def reduce_scatter(flat):
    """rank0 [1 2] | rank1 [10 20]  ->  [11] | [22]"""
    world_size = dist.get_world_size()
    assert len(flat) % world_size == 0, "pad: world_size must divide the length"
    received = torch.empty_like(flat)
    dist.all_to_all_single(received, flat)
    return received.view(world_size, -1).sum(dim=0)

# %% [markdown]
# ## 3 · `Zero1AdamW`
#
# Stage 1. Every rank has all parameters and, after backward, all of its own gradients, but it keeps Adam's states **only for its slice**. `step()` averages the gradients over the ranks so that each rank has its slice of the mean, updates that slice with AdamW, and gathers the slices so that every rank has all updated parameters again.
#
# `Zero1AdamW(parameters, **options)` takes a list of parameters, equal on all ranks, and AdamW's options. Afterwards every rank's parameters equal those of one process that trains with `torch.optim.AdamW` on all ranks' batches together.

# %%
def zero1_adamw_spec(parameters, gradients_by_rank, **options):
    """One process: the mean of the ranks' gradients, one AdamW over everything."""
    optimizer = torch.optim.AdamW(parameters, **options)
    for parameter, *gradients in zip(parameters, *gradients_by_rank):
        parameter.grad = sum(gradients) / len(gradients)
    optimizer.step()
    return parameters

zero1_adamw_spec([nn.Parameter(torch.ones(2))], [[torch.ones(2)], [3 * torch.ones(2)]], lr=0.1)

# %% [markdown]
# **Budget** · sends ≤ 1.02 × ideal bytes per rank, ideal = $\frac{2(N-1)}{N} S$ per step, where S is the padded buffer's bytes: as much as DDP's all-reduce, and nothing in the constructor · holds, between steps, ≤ 1.02 × 8 bytes per element of a slice, in addition to the parameters: Adam's two states, no second copy of the parameters, no buffer of an exchange, and nothing that grows, not even a list of numbers. The slice's `.grad` may stay.
#
# The check trains with `eps=2`. AdamW divides a gradient by its own magnitude: with the usual `eps=1e-8` a factor of N would hardly change the update, and rounding errors in a gradient near zero would become full-size updates. Everything is float32, on the wire as well: 16-bit numbers would be too far off. Every parameter has a `.grad` when `step()` is called; parameter groups, changed options and saving the states are not required.
#
# <details><summary>Hint 1 · no copies</summary>
#
# `self.flat = flatten(parameters, N)` and `view_into(self.flat, parameters)`: from now on the model computes with the flat buffer, and your slice `self.flat[start:stop]` is a view of it. AdamW on that view updates the model.
# </details>
# <details><summary>Hint 2 · AdamW on a slice</summary>
#
# AdamW updates each element independently, so `torch.optim.AdamW([own], **options)` gives a slice the same values as an AdamW over everything. It reads `own.grad`.
# </details>
# <details><summary>Hint 3 · the two exchanges</summary>
#
# Before the update, `reduce_scatter(flatten([p.grad for p in parameters], N)) / N` is the slice of the mean gradient. After it, `dist.all_gather_single(self.flat, own)` fills the buffer with all slices.
# </details>

# %% nbgrader={"grade_id": "Zero1AdamW", "solution": true}
class Zero1AdamW:
    """parameters equal on all ranks, .grad each rank's own  ->  after step() equal again"""

    def __init__(self, parameters, **options):
        ### BEGIN SOLUTION
        self.parameters, self.world_size = parameters, dist.get_world_size()
        self.flat = flatten(parameters, self.world_size)
        view_into(self.flat, parameters)
        sizes = [parameter.numel() for parameter in parameters]
        start, stop = shard_bounds(sizes, self.world_size)[dist.get_rank()]
        self.own = self.flat[start:stop]
        self.adamw = torch.optim.AdamW([self.own], **options)
        ### END SOLUTION

    def step(self):
        ### BEGIN SOLUTION
        gradients = flatten([parameter.grad for parameter in self.parameters], self.world_size)
        self.own.grad = reduce_scatter(gradients) / self.world_size
        self.adamw.step()
        self.own.grad = None
        dist.all_gather_single(self.flat, self.own)
        ### END SOLUTION

# %% [markdown]
# A GPT with 0.3 million parameters on four ranks, one step with your optimizer: what is alive on rank 0, then what each rank sent, next to the formula.
#
# At the peak, in the step, the picture shows about 965 KiB of "other": 456 KiB are the text, which each rank reads itself. The rest is temporary: for each element of the slice AdamW computes a root and a quotient in fp32, 8 bytes.

# %%
def one_step():
    torch.manual_seed(0)  # the same parameters on every rank
    model = models.gpt("0.3M")
    optimizer = Zero1AdamW(list(model.parameters()), lr=1e-3)
    batch = data.batch(0, 1, rank=dist.get_rank(), world_size=dist.get_world_size())
    model(*batch).backward()
    optimizer.step()

run = launch(one_step, world_size=4, memory=True)
memory_timeline(run)

# %%
parameters = models.count_parameters(models.gpt("0.3M"))
traffic_map(run, predicted=[2 * 3 / 4 * 4 * parameters] * 4)

# %% nbgrader={"grade_id": "check_Zero1AdamW", "grade": true}
check("zero.Zero1AdamW", Zero1AdamW)

# %% [markdown]
# ## 4 · `zero2_backward`
#
# Stage 2. Backward computes gradients one after the other, from the last layer to the first, so a rank never needs to hold them all. Run the backward pass of `loss`, and **as soon as a bucket's gradients are complete**, reduce-scatter them, keep this rank's slice of their mean and free the rest.
#
# `buckets` is a list of lists of parameters, in the order in which backward reaches them: any number in a bucket, and two buckets may share a layer. Each bucket is flattened and padded separately. Return a list: this rank's slice of each bucket.
#
# Backward runs **once**, and leaves nothing else behind: at the end no parameter has a `.grad` or one of your hooks, the graph is freed, only the slices are alive, and `buckets` is unchanged. Nothing grows from call to call, not even a list of numbers. Every parameter gets a gradient, and has none before.

# %%
def zero2_backward_spec(gradients_by_rank, world_size):
    """One bucket: flatten every rank's gradients, average, pad; rank r gets slice r."""
    flats = [flatten(gradients, world_size) for gradients in gradients_by_rank]
    return (sum(flats) / world_size).view(world_size, -1)

zero2_backward_spec([[torch.tensor([1.0, 2.0]), torch.tensor([3.0])]] * 2, 2)

# %% [markdown]
# **Budget** · sends ≤ 1.02 × ideal bytes per rank, ideal = $\frac{N-1}{N}$ of each padded bucket · holds ≤ 1.02 × (Ψ/N + one bucket) of gradients at any time · exchanges one bucket at a time: at most 3 × the bytes that one exchange sends and receives, because each of gloo's two threads may release an earlier one a little late · keeps ≤ 1.02 × Ψ/N at the end: its slices.
#
# <details><summary>Hint 1 · when a gradient is ready</summary>
#
# `parameter.register_post_accumulate_grad_hook(hook)` calls `hook(parameter)` during backward, once its `.grad` is complete. It returns a handle with `.remove()`.
# </details>
# <details><summary>Hint 2 · when a bucket is full</summary>
#
# Count down from `len(bucket)`. The hook that reaches 0 flattens the bucket, sets its `.grad`s to `None`, and calls `reduce_scatter`. Each hook has to know its bucket: `functools.partial(hook, i)` stores the value of `i`, but a function or lambda defined in a loop reads `i` when it runs, after the loop, and then it is the last one.
# </details>
# <details><summary>Hint 3 · what keeps memory alive</summary>
#
# A view keeps its whole tensor alive: `whole[start:stop]` keeps all of `whole`. The lab's `reduce_scatter` returns a new tensor, not a view. Remove the hooks afterwards.
# </details>

# %% nbgrader={"grade_id": "zero2_backward", "solution": true}
def zero2_backward(loss, buckets):
    """loss [], buckets of parameters  ->  [slice of the first bucket's mean gradient, …]"""
    ### BEGIN SOLUTION
    world_size = dist.get_world_size()
    slices, missing = [None] * len(buckets), [len(bucket) for bucket in buckets]

    def make_hook(i):
        def hook(_):
            missing[i] -= 1
            if missing[i] == 0:
                flat = flatten([parameter.grad for parameter in buckets[i]], world_size)
                for parameter in buckets[i]:
                    parameter.grad = None
                slices[i] = reduce_scatter(flat) / world_size
        return hook

    handles = [
        parameter.register_post_accumulate_grad_hook(make_hook(i))
        for i, bucket in enumerate(buckets)
        for parameter in bucket
    ]
    loss.backward()
    for handle in handles:
        handle.remove()
    return slices
    ### END SOLUTION

# %% [markdown]
# Eight layers, one bucket each. Each peak is a bucket that is reduced and freed; below, the slices accumulate.

# %%
def eight_layers():
    layers = [nn.Linear(256, 256) for _ in range(8)]
    loss = nn.Sequential(*layers)(torch.randn(2, 256)).square().mean()
    return zero2_backward(loss, [list(layer.parameters()) for layer in reversed(layers)])

run = launch(eight_layers, world_size=4, memory=True)
memory_timeline(run)

# %% nbgrader={"grade_id": "check_zero2_backward", "grade": true}
check("zero.zero2_backward", zero2_backward)

# %% [markdown]
# ## 5 · `Zero3Linear`
#
# Stage 3. A linear layer that keeps only its rank's slice of weight and bias. It **gathers** the whole layer before use and **frees** it right after, in forward and again in backward.
#
# `Zero3Linear(linear)` takes a whole `nn.Linear`, equal on all ranks, and has one parameter: its slice of `weight` and `bias`, flattened in this order. `forward(x)`, x [samples, in], returns what `linear(x)` returns. After backward the parameter's `.grad` is this rank's slice of the mean gradient over the ranks, and `x.grad` is the rank's own gradient. As with any layer, several forward passes may come before their backward passes, which may come in any order; gradients add up in `.grad`; x need not require a gradient; and y_grad, which other layers may get too, stays unchanged. Keep what belongs to one call on `ctx`, not on the module. Autocast and a second backward pass through the same graph are not required. You may change the starter code below; as written, its `forward` needs `self.own`, the slice as an `nn.Parameter`, and `self.shape`, the weight's shape.

# %%
def zero3_linear_spec(linear, x, y_grad):
    """One process: the layer's output, and the gradients that backward computes from y_grad."""
    y = linear(x)
    x_grad, weight_grad, bias_grad = torch.autograd.grad(y, [x, linear.weight, linear.bias], y_grad)
    assert torch.allclose(x_grad, y_grad @ linear.weight)
    assert torch.allclose(weight_grad, y_grad.T @ x)
    assert torch.allclose(bias_grad, y_grad.sum(dim=0))
    return y, x_grad, weight_grad, bias_grad

zero3_linear_spec(nn.Linear(2, 2), torch.ones(1, 2, requires_grad=True), torch.ones(1, 2))

# %% [markdown]
# Autograd saves what backward will need: a gathered weight passed to `F.linear` would stay alive until backward, for every layer. So the layer is a `torch.autograd.Function`: autograd does not record its `forward`, and you write its `backward`.
#
# ```python
# class Double(torch.autograd.Function):
#     @staticmethod
#     def forward(ctx, x, note):
#         ctx.save_for_backward(x)   # tensors to keep; ctx.note = … for anything else
#         return 2 * x
#     @staticmethod
#     def backward(ctx, y_grad):
#         (x,) = ctx.saved_tensors
#         return 2 * y_grad, None    # one per argument of forward; None: no gradient
#
# y = Double.apply(x, "a note")
# ```
#
# **Budget** · sends ≤ 1.02 × and ≥ 0.9 × ideal bytes per rank, ideal = $\frac{3(N-1)}{N}$ of each padded layer (a **unit**): two gathers and one reduce-scatter. Exchanging x and y_grad instead is less only for few samples · no unit live between two units, neither in forward nor in backward: only slices, their gradients and activations. Within a unit nothing is measured, but free there, too, what you no longer need · afterwards only slices and their gradients, no tensor of a call, and nothing that grows from step to step, not even a list of numbers.
#
# <details><summary>Hint 1 · what to save</summary>
#
# Save `x` and the slice: both stay alive anyway. In backward, gather again.
# </details>
# <details><summary>Hint 2 · what keeps a gathered layer alive</summary>
#
# `flat = gather(own)`: the first `shape.numel()` elements are the weight, the next `shape[0]` the bias, then padding. Weight and bias are views of `flat`, and each keeps all of it alive until the function returns.
# </details>
# <details><summary>Hint 3 · nearly there</summary>
#
# The spec has the three gradients. The slice's is `reduce_scatter(flatten([y_grad.T @ x, y_grad.sum(dim=0)], N)) / N`. The module's slice needs a `.clone()`: otherwise it is a view that keeps the whole layer alive.
# </details>

# %% nbgrader={"grade_id": "Zero3Linear", "solution": true}
class GatheredLinear(torch.autograd.Function):
    """x [samples, in], own [slice], shape (out, in)  ->  y [samples, out]"""

    @staticmethod
    def forward(ctx, x, own, shape):
        ### BEGIN SOLUTION
        ctx.save_for_backward(x, own)
        ctx.shape, size = shape, shape.numel()
        flat = gather(own)
        return F.linear(x, flat[:size].view(shape), flat[size : size + shape[0]])
        ### END SOLUTION

    @staticmethod
    def backward(ctx, y_grad):
        ### BEGIN SOLUTION
        x, own = ctx.saved_tensors
        x_grad = y_grad @ gather(own)[: ctx.shape.numel()].view(ctx.shape)
        world_size = dist.get_world_size()
        gradients = flatten([y_grad.T @ x, y_grad.sum(dim=0)], world_size)
        return x_grad, reduce_scatter(gradients) / world_size, None
        ### END SOLUTION


class Zero3Linear(nn.Module):
    """An nn.Linear, equal on all ranks  ->  one that keeps a slice and gathers the rest for use"""

    def __init__(self, linear):
        super().__init__()
        ### BEGIN SOLUTION
        self.shape = linear.weight.shape
        sizes = [linear.weight.numel(), linear.bias.numel()]
        start, stop = shard_bounds(sizes, dist.get_world_size())[dist.get_rank()]
        flat = flatten([linear.weight, linear.bias], dist.get_world_size())
        self.own = nn.Parameter(flat[start:stop].clone())
        ### END SOLUTION

    def forward(self, x):
        return GatheredLinear.apply(x, self.own, self.shape)

# %% [markdown]
# Eight layers again: each peak is a layer that is gathered and freed, eight times in forward and eight times in backward.

# %%
def eight_sharded_layers():
    model = nn.Sequential(*[Zero3Linear(nn.Linear(256, 256)) for _ in range(8)])
    model(torch.randn(2, 256)).square().mean().backward()

run = launch(eight_sharded_layers, world_size=4, memory=True)
memory_timeline(run)

# %% nbgrader={"grade_id": "check_Zero3Linear", "grade": true}
check("zero.Zero3Linear", Zero3Linear)

# %% [markdown]
# What the stages save at scale, from the formula: a model of GPT-3's size on 80 GB GPUs. Move the sliders.

# %%
memory_bars(parameters=175e9, world_size=64, stage=3, capacity_bytes=80e9)

# %% [markdown]
# ## 6 · Which stage?
#
# You want to train a model with 7 billion parameters in bf16 with Adam on 8 GPUs with 48 GB each. What is the lowest stage whose model states leave at least a third of the memory for activations, and how does its traffic compare with DDP's? Would you choose a higher stage if micro-batches are small and you accumulate eight of them per step? Give the numbers. Four to eight sentences.

# %% [markdown] nbgrader={"grade_id": "which_stage", "grade": true, "solution": true, "points": 2}
# ### BEGIN SOLUTION
# A third of 48 GB is 16 GB, so model states may take 32 GB. Stage 0 needs 16 · 7 = 112 GB, stage 1 needs 28 + 84/8 = 38.5 GB, stage 2 needs 14 + 98/8 = 26.25 GB, stage 3 needs 112/8 = 14 GB. Stage 1 fits on the GPU but leaves only 9.5 GB, so stage 2 is the lowest that works.
#
# It sends as much as DDP: a reduce-scatter of the gradients and an all-gather of the parameters, $\frac{2(N-1)}{N} \Psi$ elements per step without accumulation. With eight micro-batches DDP and stage 1 can wait and exchange once per step, but stage 2 has no whole gradients to accumulate into: it reduce-scatters eight times and gathers once, 9 ring halves instead of 2. Stage 3 gathers twice and reduce-scatters once for every micro-batch, 24 halves: more than twice stage 2's traffic, to free 12 GB more. So stay with stage 2, or use the memory that stage 3 frees for larger and fewer micro-batches.
#
# Points: 1 for stage 2 with the figures (38.5 GB is too much, 26.25 GB is not), 1 for the traffic: as much as DDP per micro-batch for stage 2, 1.5 times that for stage 3, and that accumulation multiplies it.
# ### END SOLUTION
