# /// shardlab-submission
# lab = "12_lora_quantization"
# loses = {qlora_step = 0.8}
# says = {qlora_step = "keeps something of every step"}
# ///

# %% nbgrader={"grade_id": "qlora_step", "solution": true}
LOSSES = []

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
    LOSSES.append(loss)
    grads = torch.autograd.grad(loss, adapters, retain_graph=True)
    for p, g in zip(adapters, grads):
        dist.all_reduce(g)
        g /= dist.get_world_size()
        with torch.no_grad():
            p -= lr * g
