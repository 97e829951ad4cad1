# /// shardlab-submission
# lab = "12_lora_quantization"
# loses = {qlora_step = 4.0}
# says = {qlora_step = "calls all_reduce more than once for each"}
# ///

# %% nbgrader={"grade_id": "qlora_step", "solution": true}
class PackedLinear(torch.autograd.Function):
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
    adapters = []
    for layer in layers:
        A, B = layer["A"], layer["B"]
        base = PackedLinear.apply(x, layer["packed"], layer["absmax"], (len(B), A.shape[1]))
        x = base + alpha / len(A) * (x @ A.T @ B.T)
        adapters += [A, B]
    loss = loss_of(x)
    grads = torch.autograd.grad(loss, adapters)
    shown = loss.detach().clone()
    dist.all_reduce(shown)
    for p, g in zip(adapters, grads):
        dist.all_reduce(g)
        g /= dist.get_world_size()
        with torch.no_grad():
            p -= lr * g
