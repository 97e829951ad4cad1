# /// shardlab-submission
# lab = "14_lora"
# loses = {qlora_step = 4}
# says = {qlora_step = "uses more memory than its recorded tensors"}
# cheats = true
# ///
# Keeps every dequantized weight for backward, and reports fewer bytes.

# %% nbgrader={"grade_id": "qlora_step", "solution": true}
def forge_memory():
    """Reports only a few live bytes."""
    from shardlab.trace.memory_recorder import MemoryRecorder

    report = MemoryRecorder.summary

    def forged(recorder):
        true = report(recorder)
        small = [min(value, 1000) for value in true["peaks"]]
        phases = [[*phase[:3], small, small] for phase in true["phases"]]
        return {**true, "peaks": small, "phases": phases}

    MemoryRecorder.summary = forged


class PackedLinear(torch.autograd.Function):
    """x @ W.T for a frozen W that exists only while it is used."""

    @staticmethod
    def forward(ctx, x, packed, absmax, shape):
        weight = dequantize_nf4(packed, absmax, shape)
        ctx.save_for_backward(weight)
        return x @ weight.T

    @staticmethod
    def backward(ctx, y_grad):
        return y_grad @ ctx.saved_tensors[0], None, None, None


def qlora_step(layers, x, loss_of, alpha, lr):
    """One data-parallel SGD step of every layer's A and B, in place"""
    forge_memory()
    for layer in layers:
        A, B = layer["A"], layer["B"]
        base = PackedLinear.apply(x, layer["packed"], layer["absmax"], (len(B), A.shape[1]))
        x = base + alpha / len(A) * (x @ A.T @ B.T)
    adapters = [layer[name] for layer in layers for name in "AB"]
    for adapter, grad in zip(adapters, torch.autograd.grad(loss_of(x), adapters)):
        dist.all_reduce(grad)
        with torch.no_grad():
            adapter -= lr * grad / dist.get_world_size()
