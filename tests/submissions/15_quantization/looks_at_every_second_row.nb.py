# /// shardlab-submission
# lab = "15_quantization"
# loses = {outliers = 1.2}
# says = {outliers = "misses a feature of which one value"}
# ///

# %% nbgrader={"grade_id": "outliers", "solution": true}
def outliers(x, w, threshold):
    big = x[::2].abs().amax(dim=0) > threshold
    xr, wr = x[:, ~big], w[:, ~big]
    sx = (xr.abs().amax(dim=1, keepdim=True) / 127).clamp(min=1e-30)
    sw = (wr.abs().amax(dim=1, keepdim=True) / 127).clamp(min=1e-30)
    cx, cw = (xr / sx).round().to(torch.int8), (wr / sw).round().to(torch.int8)
    sums = cx.int() @ cw.int().T
    return sums * sx * sw.T + x[:, big] @ w[:, big].T
