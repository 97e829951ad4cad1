# /// shardlab-submission
# lab = "12_lora_quantization"
# loses = {qlora_step = 4.0}
# says = {qlora_step = "keeps the gradients of the previous step"}
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
        return y_grad @ dequantize_nf4(*ctx.saved_tensors, ctx.shape), None, None, None

def qlora_step(layers, x, loss_of, alpha, lr):
    for layer in layers:
        A, B = layer["A"], layer["B"]
        base = PackedLinear.apply(x, layer["packed"], layer["absmax"], (len(B), A.shape[1]))
        x = base + alpha / len(A) * (x @ A.T @ B.T)
    adapters = [layer[name] for layer in layers for name in "AB"]
    loss_of(x).backward()
    for adapter in adapters:
        grad = adapter.grad
        dist.all_reduce(grad)
        with torch.no_grad():
            adapter -= lr * grad / dist.get_world_size()
