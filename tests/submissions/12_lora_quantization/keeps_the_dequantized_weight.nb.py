# /// shardlab-submission
# lab = "12_lora_quantization"
# loses = {qlora_step = 1.6}
# says = {qlora_step = "keeps something as large as a weight between forward and backward"}
# ///

# %% nbgrader={"grade_id": "qlora_step", "solution": true}
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
    for layer in layers:
        A, B = layer["A"], layer["B"]
        base = PackedLinear.apply(x, layer["packed"], layer["absmax"], (len(B), A.shape[1]))
        x = base + alpha / len(A) * (x @ A.T @ B.T)
    adapters = [layer[name] for layer in layers for name in "AB"]
    for adapter, grad in zip(adapters, torch.autograd.grad(loss_of(x), adapters)):
        dist.all_reduce(grad)
        with torch.no_grad():
            adapter -= lr * grad / dist.get_world_size()
