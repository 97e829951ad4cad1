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
# # Lab 08 · Tensor parallel
#
# Until now every rank computed whole layers, on its own part of the batch. Here all ranks have the **same** batch, and each has a share of every **weight matrix**. You will split a matrix both ways, combine the two splits into an MLP and an attention layer that communicate once per pass, split the vocabulary for the loss, and count the bytes.
#
# **In this lab you**
#
# - build column-parallel and row-parallel layers, an MLP and attention with correct gradients;
# - compute a cross-entropy loss without gathering the logits;
# - predict the bytes, and place ranks on a mesh.
#
# **You need:** [chapter 08](../../course/chapters/08_tensor_parallel.ipynb).
#
# <!-- table of points -->
#
# Each exercise has a task, a **spec** that runs, a **budget**, your cell, a picture of what your code did, and a check. The check starts real ranks, compares outputs and gradients on every rank with one process that has the whole layer, and counts the collectives in forward and in backward. Grading adds hidden cases: other sizes, other numbers of heads and ranks. A mistake in one exercise never costs points in a later one.
#
# N is the number of ranks; it divides everything that is split. Letters, as in the chapter: T tokens of the whole batch, D width, V vocabulary.

# %%
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn

from autograder import check
from shardlab import data, holds, launch, measure, models, show_table
from shardlab.widgets import tensor_split, timeline, traffic_map

# %% [markdown]
# ## 1 · `ColumnLinear`
#
# `y = x @ W` needs all of `x`, but each **column** of y needs only one column of `W`. So split `W` into N blocks of columns: every rank has all of x and computes its own columns of y, without communication.
#
# `ColumnLinear(linear)` takes a whole `nn.Linear` with a bias, equal on all ranks, and keeps this rank's share of it, and nothing else, in two parameters, `weight` and `bias`, laid out as in `nn.Linear`. `forward(x)`, x [..., in] in any memory layout and equal on all ranks, returns this rank's columns [..., out/N]. Everything is float32, also in collectives.
#
# Backward needs communication. x went to all ranks, so its gradient is the **sum** of their gradients. Every rank needs that sum. But x may also be used elsewhere, for example in a residual connection `x + layer(x)`: what it gets from there is already whole, and must not be summed.

# %%
@torch.no_grad()
def column_linear_spec(linear, x, world_size):
    """x W  ->  [x W0 | x W1 | …], block r on rank r"""
    return linear(x).chunk(world_size, dim=-1)

column_linear_spec(nn.Linear(3, 4), torch.ones(1, 3), 2)

# %% [markdown]
# Autograd does not differentiate collectives. Wrap the collective in a `torch.autograd.Function`, and write the backward yourself:
#
# ```python
# class Double(torch.autograd.Function):
#     @staticmethod
#     def forward(ctx, x):
#         return 2 * x
#     @staticmethod
#     def backward(ctx, y_grad):
#         return 2 * y_grad          # one per argument of forward
#
# y = Double.apply(x)
# ```
#
# **Budget** · no all-reduce in forward · 1 all-reduce in backward, of x's gradient and nothing else: sends ≤ 1.02 × ideal bytes per rank, ideal = $\frac{2(N-1)}{N}$ of x's bytes · holds only its share of the weights, and nothing that grows from step to step, not even a list of numbers.
#
# <details><summary>Hint 1 · columns in `nn.Linear`</summary>
#
# `nn.Linear` computes `x @ weight.T + bias`, and its weight is [out, in]. Columns of the product are **rows** of `weight`. The bias goes with them.
# </details>
# <details><summary>Hint 2 · what keeps memory alive</summary>
#
# A slice is a view, and a view keeps its whole tensor alive. `.detach().clone()` makes an independent tensor.
# </details>
# <details><summary>Hint 3 · forward does nothing, backward sums</summary>
#
# In `CopyToRanks`, forward returns `x.view_as(x)`. Backward copies `y_grad`, calls `dist.all_reduce` on the copy, which sums in place, and returns it. Make the copy contiguous, which NCCL requires: `y_grad.clone(memory_format=torch.contiguous_format)`.
# </details>
# <details><summary>Hint 4 · nearly there</summary>
#
# `linear.weight.chunk(N)[rank]` is the share. `forward` is `F.linear(CopyToRanks.apply(x), self.weight, self.bias)`.
# </details>

# %% nbgrader={"grade_id": "ColumnLinear", "solution": true}
class CopyToRanks(torch.autograd.Function):
    """Forward: x unchanged. Backward: the sum of all ranks' gradients."""

    @staticmethod
    def forward(ctx, x):
        ### BEGIN SOLUTION
        return x.view_as(x)
        ### END SOLUTION

    @staticmethod
    def backward(ctx, y_grad):
        ### BEGIN SOLUTION
        x_grad = y_grad.clone(memory_format=torch.contiguous_format)
        dist.all_reduce(x_grad)
        return x_grad
        ### END SOLUTION


class ColumnLinear(nn.Module):
    """An nn.Linear, equal on all ranks  ->  block r of its columns on rank r"""

    def __init__(self, linear):
        super().__init__()
        ### BEGIN SOLUTION
        world_size, rank = dist.get_world_size(), dist.get_rank()
        self.weight = nn.Parameter(linear.weight.chunk(world_size)[rank].detach().clone())
        self.bias = nn.Parameter(linear.bias.chunk(world_size)[rank].detach().clone())
        ### END SOLUTION

    def forward(self, x):
        """x [..., in]  ->  [..., out/N]"""
        ### BEGIN SOLUTION
        return F.linear(CopyToRanks.apply(x), self.weight, self.bias)
        ### END SOLUTION

# %% [markdown]
# Your layer on four ranks over time. Forward is empty; backward has one all-reduce.

# %%
def one_column_layer():
    torch.manual_seed(0)  # the same layer and input on every rank
    layer, x = ColumnLinear(nn.Linear(256, 1024)), torch.randn(64, 256, requires_grad=True)
    with measure("forward"):
        y = layer(x)
    with measure("backward"):
        y.sum().backward()
    return list(layer.weight.shape), list(y.shape)

run = launch(one_column_layer, world_size=4)
print("weight and output of rank 0:", *run.outputs[0])
timeline(run)

# %% nbgrader={"grade_id": "check_ColumnLinear", "grade": true}
check("tensor_parallel.ColumnLinear", ColumnLinear)

# %% [markdown]
# ## 2 · `RowLinear`
#
# The other way to split: N blocks of **rows**. Row i of `W` multiplies only column i of x, so a rank with a block of rows needs only the same block of x's columns, which is exactly what a `ColumnLinear` leaves there. It computes a partial sum of y, as large as y itself, and the **sum** over the ranks is y.
#
# `RowLinear(linear)` keeps, in two parameters, `weight` and `bias`, this rank's share of the weight and, on every rank, the **whole** bias: y has all its columns, so all ranks have the same bias, and backward must give it the same gradient on every rank. `forward(x)`, x [..., in/N], returns y [..., out], equal on all ranks.

# %%
@torch.no_grad()
def row_linear_spec(linear, x_parts):
    """[x0 | x1 | …] and stacked rows W0, W1, …  ->  x0 W0 + x1 W1 + … + bias"""
    rows = linear.weight.chunk(len(x_parts), dim=1)
    y = sum(x @ w.T for x, w in zip(x_parts, rows)) + linear.bias
    assert torch.allclose(y, linear(torch.cat(x_parts, dim=-1)))
    return y

row_linear_spec(nn.Linear(4, 2), [torch.ones(1, 2), 2 * torch.ones(1, 2)])

# %% [markdown]
# **Budget** · 1 all-reduce in forward, of y and nothing else: sends ≤ 1.02 × ideal bytes per rank, ideal = $\frac{2(N-1)}{N}$ of y's bytes · no all-reduce in backward · holds only its share of the weight, the bias, and nothing that grows from step to step, not even a list of numbers.
#
# <details><summary>Hint 1 · backward</summary>
#
# y is the sum of all partial sums, so the gradient of each is y's gradient. Every rank already has that: `SumOverRanks.backward` has nothing to do.
# </details>
# <details><summary>Hint 2 · the bias</summary>
#
# Anything added before the all-reduce is added N times. With `bias / N` on every rank y is right, but the bias's gradient is not. With the bias only on rank 0, only rank 0 trains it.
# </details>
# <details><summary>Hint 3 · nearly there</summary>
#
# The share is `linear.weight.chunk(N, dim=1)[rank]`. Forward: `SumOverRanks.apply(F.linear(x, self.weight)) + self.bias`, where `SumOverRanks.forward` copies its argument and all-reduces the copy.
# </details>

# %% nbgrader={"grade_id": "RowLinear", "solution": true}
class SumOverRanks(torch.autograd.Function):
    """Forward: the sum of all ranks' partial sums. Backward: the gradient unchanged."""

    @staticmethod
    def forward(ctx, partial):
        ### BEGIN SOLUTION
        y = partial.clone(memory_format=torch.contiguous_format)
        dist.all_reduce(y)
        return y
        ### END SOLUTION

    @staticmethod
    def backward(ctx, y_grad):
        ### BEGIN SOLUTION
        return y_grad
        ### END SOLUTION


class RowLinear(nn.Module):
    """An nn.Linear, equal on all ranks  ->  block r of its rows, and the whole bias, on rank r"""

    def __init__(self, linear):
        super().__init__()
        ### BEGIN SOLUTION
        share = linear.weight.chunk(dist.get_world_size(), dim=1)[dist.get_rank()]
        self.weight = nn.Parameter(share.detach().clone())
        self.bias = nn.Parameter(linear.bias.detach().clone())
        ### END SOLUTION

    def forward(self, x):
        """x [..., in/N]  ->  [..., out]"""
        ### BEGIN SOLUTION
        return SumOverRanks.apply(F.linear(x, self.weight)) + self.bias
        ### END SOLUTION

# %% [markdown]
# What each rank sends, next to the formula: the output is 64 · 1024 · 4 bytes, and a ring sends $\frac{2(N-1)}{N}$ of it.

# %%
def one_row_layer():
    torch.manual_seed(0)
    layer, x = RowLinear(nn.Linear(1024, 1024)), torch.randn(64, 1024)
    return layer(x.chunk(dist.get_world_size(), dim=1)[dist.get_rank()])

run = launch(one_row_layer, world_size=4)
traffic_map(run, predicted=[2 * 3 / 4 * 64 * 1024 * 4] * 4)

# %% nbgrader={"grade_id": "check_RowLinear", "grade": true}
check("tensor_parallel.RowLinear", RowLinear)

# %% [markdown]
# ## 3 · `tp_mlp`
#
# The MLP of our GPT is `down(gelu(up(x)))`, D → 4D → D. Both matrices have to be split, with a GELU in between. The GELU of a sum is not the sum of GELUs, but it works elementwise: on a block of columns as well as on all of them. So there is one order of splits that needs no communication between the two matrices.
#
# `tp_mlp(mlp)` takes a whole `models.MLP`, equal on all ranks, and returns it with `up` and `down` replaced by this rank's shares. Its `forward` stays unchanged. x and y are whole on every rank.

# %%
def tp_mlp_spec(mlp, x, world_size):
    """down(gelu(up(x))): each rank has columns of up, the same rows of down, and a partial sum"""
    inner = F.gelu(mlp.up(x)).chunk(world_size, dim=-1)
    rows = mlp.down.weight.chunk(world_size, dim=1)
    return sum(part @ w.T for part, w in zip(inner, rows)) + mlp.down.bias

small = models.MLP(models.GPTConfig(layers=1, heads=1, width=2, context=8))
y, summed = (each.detach() for each in (small(torch.ones(3, 2)), tp_mlp_spec(small, torch.ones(3, 2), 4)))
holds("four partial sums, added up, and the whole MLP", summed, y, rtol=1e-5, atol=1e-6)

# %% [markdown]
# **Budget** · 1 all-reduce in forward · 1 all-reduce in backward · no tensor of the inner width 4D is sent · each rank holds only its shares.
#
# <details><summary>Hint 1 · two splits, two orders</summary>
#
# Column then row: up leaves each rank with the columns that down's rows need. Row then column: up ends in a sum, and its output has to be split again.
# </details>
# <details><summary>Hint 2 · nearly there</summary>
#
# `mlp.up = …` replaces a module. Two of these, and `return mlp`.
# </details>

# %% nbgrader={"grade_id": "tp_mlp", "solution": true}
def tp_mlp(mlp):
    """models.MLP, equal on all ranks  ->  the same, with this rank's share of up and down"""
    ### BEGIN SOLUTION
    mlp.up = ColumnLinear(mlp.up)
    mlp.down = RowLinear(mlp.down)
    return mlp
    ### END SOLUTION

# %% [markdown]
# Two matrices, one all-reduce each way. Step through it; the bytes next to the formula's are those of your run.

# %%
def one_mlp():
    torch.manual_seed(0)
    mlp = tp_mlp(models.MLP(models.SIZES["1M"]))
    x = torch.randn(2, 128, 128, requires_grad=True)
    with measure("forward"):
        y = mlp(x)
    with measure("backward"):
        y.sum().backward()

run = launch(one_mlp, world_size=4)
tensor_split("mlp", tokens=2 * 128, width=128, world_size=4, measured=run)

# %% nbgrader={"grade_id": "check_tp_mlp", "grade": true}
check("tensor_parallel.tp_mlp", tp_mlp)

# %% [markdown]
# ## 4 · `tp_attention`
#
# Attention splits naturally: heads are independent. Give each rank 1/N of them, whole heads, with their queries, keys and values, and the rows of the output matrix that belong to them.
#
# The catch is how our GPT stores them. One matrix, `qkv`, computes all three. Its weight has 3D rows: first all heads' queries, then all keys, then all values. In each third, head h has rows h · d to (h + 1) · d, where d is the width of a head.
#
# `tp_attention(attention)` takes a whole `models.Attention`, equal on all ranks, and returns it with `qkv` and `out` replaced by this rank's shares: rank r has block r of the heads. Its `forward` stays unchanged: it splits the output of `qkv` into three equal parts and each of those into `self.heads` heads.

# %%
def tp_attention_spec(heads, world_size):
    """Rows of the qkv weight, one name per head  ->  each rank's rows, in order"""
    q, k, v = ([f"{name}{head}" for head in range(heads)] for name in "qkv")
    own = heads // world_size
    return [[*q[i : i + own], *k[i : i + own], *v[i : i + own]] for i in range(0, heads, own)]

tp_attention_spec(heads=4, world_size=2)

# %% [markdown]
# **Budget** · 1 all-reduce in forward · 1 all-reduce in backward · each rank holds only its own heads.
#
# <details><summary>Hint 1 · what goes wrong at first</summary>
#
# `ColumnLinear(attention.qkv)` as it stands gives rank 0 queries but no values. So reorder the rows before you split: q of rank 0, k of rank 0, v of rank 0, q of rank 1, …
# </details>
# <details><summary>Hint 2 · how many heads</summary>
#
# `attention.heads` is the number of heads into which forward splits the output of `qkv`. A rank has fewer.
# </details>
# <details><summary>Hint 3 · the new order</summary>
#
# `q, k, v = tensor.chunk(3)`, then split each of them into N, and `torch.cat` the pieces in the new order, for both weight and bias. `with torch.no_grad(): tensor.copy_(…)` writes into a parameter.
# </details>
# <details><summary>Hint 4 · nearly there</summary>
#
# `zip(q.chunk(N), k.chunk(N), v.chunk(N))` gives three pieces for each rank. After that it is as in `tp_mlp`: columns, then rows. The columns of `out`'s weight are already ordered by head.
# </details>

# %% nbgrader={"grade_id": "tp_attention", "solution": true}
def tp_attention(attention):
    """models.Attention, equal on all ranks  ->  the same, with this rank's heads"""
    ### BEGIN SOLUTION
    world_size = dist.get_world_size()
    for tensor in (attention.qkv.weight, attention.qkv.bias):
        by_rank = zip(*(part.chunk(world_size) for part in tensor.detach().chunk(3)))
        with torch.no_grad():
            tensor.copy_(torch.cat([part for of_rank in by_rank for part in of_rank]))
    attention.heads //= world_size
    attention.qkv = ColumnLinear(attention.qkv)
    attention.out = RowLinear(attention.out)
    return attention
    ### END SOLUTION

# %% [markdown]
# That was the last piece. Here is a whole GPT, with each of its layers split over four ranks. All have the same batch. The loss should equal that of one process, and we count the all-reduces.

# %%
def tp_gpt(size):
    torch.manual_seed(0)
    model = models.gpt(size)
    for block in model.blocks:
        block.attention, block.mlp = tp_attention(block.attention), tp_mlp(block.mlp)
    return model

# %%
def one_step():
    model = tp_gpt("1M")
    with measure("forward"):
        loss = model(*data.batch(0, batch_size=2))
    with measure("backward"):
        loss.backward()
    return loss.item()

run = launch(one_step, world_size=4)

# %%
torch.manual_seed(0)
in_one_process = models.gpt("1M")(*data.batch(0, batch_size=2)).item()
rows = [("one process", in_one_process), *((f"rank {r}", loss) for r, loss in enumerate(run.outputs))]
show_table({"run on": "", "loss": ".5f"}, rows)
calls = sum(call.rank == 0 and call.op == "all_reduce" for call in run.calls)
print(f"{calls} all-reduces in {models.SIZES['1M'].layers} layers: {calls / models.SIZES['1M'].layers} each")

# %%
timeline(run)

# %% nbgrader={"grade_id": "check_tp_attention", "grade": true}
check("tensor_parallel.tp_attention", tp_attention)

# %% [markdown]
# ## 5 · `vocab_parallel_cross_entropy`
#
# The matrix that computes the logits is the widest of all: V columns, 50,000 and more. Split by columns, it gives each rank logits [T, V/N] for its own words, a part of the vocabulary. Gathered, they would be the largest tensor of the whole model. The loss does not need that. For one token with logits $l$ and target $t$ it is
#
# $$-\log \frac{e^{l_t}}{\sum_v e^{l_v}} \;=\; \log \sum_v e^{l_v - m} \;-\; (l_t - m), \qquad m = \max_v l_v,$$
#
# the same for any $m$; the largest logit keeps $e^{l}$ from overflowing. Maximum, sum and target's logit are each one number per token, combined over the ranks.
#
# `vocab_parallel_cross_entropy(logits, targets)`: logits [T, V/N], where the words of rank r start at r·V/N; targets [T], integers below V, the same on every rank. Return the mean loss [], the same on every rank. After `loss.backward()` each rank's logits have their part of the gradient; the loss may be scaled first, as in `(3 * loss).backward()`. The arguments stay unchanged. (Libraries also ignore targets of -100; here every target counts.)

# %%
def cross_entropy_spec(logits_parts, targets):
    """[T, V/N] of each rank  ->  one mean loss"""
    return F.cross_entropy(torch.cat(logits_parts, dim=1), targets)

cross_entropy_spec([torch.zeros(2, 3), torch.ones(2, 3)], torch.tensor([0, 5]))

# %% [markdown]
# **Budget** · passes ≤ 12 bytes per token to collectives, three float32 numbers. So no logits are sent, and no rank can have them all.
#
# <details><summary>Hint 1 · the maximum</summary>
#
# `dist.all_reduce(tensor, op=dist.ReduceOp.MAX)` on the maximum of `logits.detach()`: the loss is the same for any m, so m needs no gradient.
# </details>
# <details><summary>Hint 2 · which rank has the target?</summary>
#
# Rank r has words start = r · V/N up to start + V/N. `inside = (targets >= start) & (targets < start + V/N)`. Each target is inside on exactly one rank. The others must add 0, and must not look up a word that they do not have: `clamp` the index first, then `torch.where` or `* inside`.
# </details>
# <details><summary>Hint 3 · autograd</summary>
#
# Your `SumOverRanks` from exercise 2 sums over the ranks and passes the gradient back unchanged: right for both sums here. The check replaces it with a correct one.
# </details>
# <details><summary>Hint 4 · nearly there</summary>
#
# `shifted = logits - top[:, None]`; `total = SumOverRanks.apply(shifted.exp().sum(dim=1))`; `found = SumOverRanks.apply(own)`, where own is `shifted` at the target, or 0. The loss is `(total.log() - found).mean()`.
# </details>

# %% nbgrader={"grade_id": "vocab_parallel_cross_entropy", "solution": true}
def vocab_parallel_cross_entropy(logits, targets):
    """logits [T, V/N] of this rank's words, targets [T]  ->  mean loss [], equal on all ranks"""
    ### BEGIN SOLUTION
    top = logits.detach().amax(dim=1)
    dist.all_reduce(top, op=dist.ReduceOp.MAX)
    shifted = logits - top[:, None]
    total = SumOverRanks.apply(shifted.exp().sum(dim=1))
    here = targets - dist.get_rank() * logits.shape[1]
    inside = (here >= 0) & (here < logits.shape[1])
    own = shifted.gather(1, here.clamp(0, logits.shape[1] - 1)[:, None])[:, 0]
    found = SumOverRanks.apply(own * inside)
    return (total.log() - found).mean()
    ### END SOLUTION

# %% [markdown]
# 256 tokens and 8,192 words on four ranks: bytes of all logits, and bytes that your loss passed to collectives.

# %%
def one_loss():
    torch.manual_seed(dist.get_rank())  # different logits on each rank
    logits = torch.randn(256, 8192 // dist.get_world_size(), requires_grad=True)
    vocab_parallel_cross_entropy(logits, torch.arange(256) * 32).backward()

run = launch(one_loss, world_size=4)
passed = sum(call.bytes for call in run.calls if call.rank == 0)
show_table({"tensors": "", "bytes": ",d"}, [("all logits", 256 * 8192 * 4), ("passed to collectives", passed)])

# %% nbgrader={"grade_id": "check_vocab_parallel_cross_entropy", "grade": true}
check("tensor_parallel.vocab_parallel_cross_entropy", vocab_parallel_cross_entropy)

# %% [markdown]
# ## 6 · `tp_bytes_per_layer`
#
# How many bytes does **one rank** send for one layer (attention and MLP, forward and backward) and one micro-batch, `batch` sequences of `tokens` tokens? Each half of a layer is a column split followed by a row split, as you built them. Each all-reduce runs as a ring.

# %%
def tp_bytes_spec(run, layers):
    """Measured: what each rank sent, per layer"""
    return [int(sent) / layers for sent in run.traffic.sent_by_rank]

step = launch(one_step, world_size=4)
tp_bytes_spec(step, models.SIZES["1M"].layers)

# %% [markdown]
# **Budget** · no communication: this is arithmetic.
#
# <details><summary>Hint 1 · what is summed</summary>
#
# In forward the output of each half, in backward the gradient of each half's input: all of them `[batch, tokens, width]`. The inner width of the MLP and the number of heads do not matter.
# </details>
# <details><summary>Hint 2 · nearly there</summary>
#
# Four all-reduces, and a ring sends $\frac{2(N-1)}{N}$ of the tensor's bytes in each.
# </details>

# %% nbgrader={"grade_id": "tp_bytes_per_layer", "solution": true}
def tp_bytes_per_layer(batch, tokens, width, tp_size, element_bytes=2):
    """(1, 2048, 12288, 8)  ->  352,321,536 bytes that one rank sends, forward and backward"""
    ### BEGIN SOLUTION
    tensor_bytes = batch * tokens * width * element_bytes
    return 4 * 2 * (tp_size - 1) / tp_size * tensor_bytes
    ### END SOLUTION

# %% [markdown]
# Your formula next to the run of the whole GPT: two sequences, four layers, float32.

# %%
config, tokens = models.SIZES["1M"], data.batch(0, batch_size=2)[0].shape[1]
predicted_bytes = config.layers * tp_bytes_per_layer(2, tokens, config.width, 4, element_bytes=4)
traffic_map(step, predicted=[predicted_bytes] * 4)

# %% nbgrader={"grade_id": "check_tp_bytes_per_layer", "grade": true}
check("tensor_parallel.tp_bytes_per_layer", tp_bytes_per_layer)

# %% [markdown]
# ## 7 · `mesh_coords`
#
# Tensor and data parallelism combine: dp_size copies of the model, each split over tp_size ranks. The ranks form a **mesh** with two axes. The ranks of one copy communicate in every layer, so they should be neighbors, in one node: ranks 0 to tp_size − 1 are the first copy, and so on. Gradients are averaged over the ranks that have the same share of each copy.
#
# Where is a rank? Return a dict: its coordinates `"dp_rank"` (which copy) and `"tp_rank"` (which share), and the two groups it belongs to, itself included, as sorted lists of ranks: `"dp_group"`, those with the same share, and `"tp_group"`, those of the same copy. All numbers are Python's integers.

# %%
def mesh_spec(dp_size, tp_size):
    """One row per copy, one column per share"""
    return torch.arange(dp_size * tp_size).view(dp_size, tp_size)

mesh_spec(2, 4)

# %% [markdown]
# **Budget** · no communication: this is arithmetic.
#
# <details><summary>Hint 1 · coordinates</summary>
#
# In the table above a rank's row is its dp_rank, its column its tp_rank: quotient and remainder.
# </details>
# <details><summary>Hint 2 · groups</summary>
#
# The tp_group is the rank's row of the table, the dp_group its column. `range(start, stop, step)` makes both.
# </details>

# %% nbgrader={"grade_id": "mesh_coords", "solution": true}
def mesh_coords(rank, dp_size, tp_size):
    """(5, 2, 4)  ->  dp_rank 1, tp_rank 1, dp_group [1, 5], tp_group [4, 5, 6, 7]"""
    ### BEGIN SOLUTION
    dp_rank, tp_rank = divmod(rank, tp_size)
    return {
        "dp_rank": dp_rank,
        "tp_rank": tp_rank,
        "dp_group": list(range(tp_rank, dp_size * tp_size, tp_size)),
        "tp_group": list(range(dp_rank * tp_size, (dp_rank + 1) * tp_size)),
    }
    ### END SOLUTION

# %% [markdown]
# Your groups on four ranks: each rank adds 10^rank to the sum of each of its groups, so the digits show a group's members. All ranks must call `dist.new_group` for every group, whether they are in it or not.

# %%
def sums_along_both_axes():
    coords = mesh_coords(dist.get_rank(), 2, 2)
    sums = {}
    for axis in ("dp_group", "tp_group"):
        groups = sorted({tuple(mesh_coords(rank, 2, 2)[axis]) for rank in range(4)})
        made = {group: dist.new_group(group) for group in groups}
        ranks = torch.tensor(10 ** dist.get_rank())
        dist.all_reduce(ranks, group=made[tuple(coords[axis])])
        sums[axis] = f"{ranks.item():04}"
    return sums

run = launch(sums_along_both_axes, world_size=4)
show_table(
    {"rank": "d", "adds": "04d", "sum of its dp_group": "", "sum of its tp_group": ""},
    [(rank, 10**rank, sums["dp_group"], sums["tp_group"]) for rank, sums in enumerate(run.outputs)],
)

# %% nbgrader={"grade_id": "check_mesh_coords", "grade": true}
check("tensor_parallel.mesh_coords", mesh_coords)

# %% [markdown]
# ## 8 · Within a node
#
# A model of GPT-3's size: 175 billion parameters, 96 layers of width 12,288, in bf16. One sequence of 2,048 tokens at a time. Within a node 8 GPUs send 450 GB/s each; between nodes each of the 8 has a network card of 50 GB/s, and NCCL runs a ring through each card. Count 6 FLOPs per parameter and token, forward and backward, at 400 TFLOP/s on each GPU. How long do the all-reduces of one forward and backward pass take, and how long does the arithmetic take, with tp_size = 8 within one node? And with tp_size = 16 over two nodes? Which mesh would you choose for 64 GPUs, and what does its other axis cost? Give the numbers. Four to eight sentences.

# %% [markdown] nbgrader={"grade_id": "within_a_node", "grade": true, "solution": true, "points": 2}
# ### BEGIN SOLUTION
# One layer's output has 2048 · 12288 · 2 = 50.3 MB. With 8 ranks each sends 8 · 7/8 of that per layer, 352 MB, and 33.8 GB for 96 layers: 75 ms at 450 GB/s. The arithmetic takes 6 · 175e9 · 2048 / (8 · 400e12) = 672 ms, so the links add 11%. With 16 ranks it is 8 · 15/16, 36.2 GB, in eight rings, each of which crosses between the nodes through its own card: 91 ms at 8 · 50 GB/s, and the arithmetic takes 336 ms, so the links add 27%. Sixteen GPUs are faster, 427 ms against 747 ms, but compute for only 79% of the time, the eight for 90%.
#
# So tensor parallelism stays within a node, tp_size = 8 with neighboring ranks: 64 GPUs then need 747 / 8 = 93 ms for each sequence, with tp_size = 16 they need 427 / 4 = 107 ms. The other axis, dp_size = 8, costs an all-reduce of gradients: 2 · 7/8 · 350 GB / 8 = 76.6 GB from each GPU, 1.5 s, as long as two sequences take, but once per step and not in each layer, so it pays off with several micro-batches per step. A pipeline between the nodes would send one layer's output and its gradient, 2 ms for each sequence and boundary, and leave stages idle at the beginning and the end of a step.
#
# Points: 1 for the two times against the arithmetic (75 of 672 ms, 91 of 336 ms, or the same with other steps shown), 1 for the mesh: tp 8 inside nodes and another kind of parallelism across them, because less time is wasted, and what that other kind costs.
# ### END SOLUTION
