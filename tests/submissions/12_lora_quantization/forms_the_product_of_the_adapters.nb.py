# /// shardlab-submission
# lab = "12_lora_quantization"
# loses = {qlora_step = 1.6}
# says = {qlora_step = "do not form B·A"}
# ///
# Autograd keeps B·A, as large as the weight, until backward.

# %% nbgrader={"grade_id": "qlora_step", "solution": true}
class PackedLinear(torch.autograd.Function):
    """x @ W.T for a frozen W that exists only while it is used."""

    @staticmethod
    def forward(ctx, x, packed, absmax, shape):
        ctx.save_for_backward(packed, absmax)
        ctx.shape = shape
        return x @ dequantize_nf4(packed, absmax, shape).T

    @staticmethod
    def backward(ctx, y_grad):
        packed, absmax = ctx.saved_tensors
        return y_grad @ dequantize_nf4(packed, absmax, ctx.shape), None, None, None


def qlora_step(layers, x, loss_of, alpha, lr):
    """One data-parallel SGD step of every layer's A and B, in place"""
    adapters = []
    for layer in layers:
        A, B = layer["A"], layer["B"]
        adapters += [A, B]
        base = PackedLinear.apply(x, layer["packed"], layer["absmax"], (len(B), A.shape[1]))
        x = base + alpha / len(A) * (x @ (B @ A).T)
    gradients = torch.autograd.grad(loss_of(x), adapters)
    with torch.no_grad():
        for adapter, gradient in zip(adapters, gradients):
            dist.all_reduce(gradient)
            adapter -= lr * gradient / dist.get_world_size()
