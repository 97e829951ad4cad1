# /// shardlab-submission
# lab = "15_quantization"
# loses = {quantize_blockwise = 2.0}
# says = {quantize_blockwise = "a fixed code fits only some points"}
# ///

# %% nbgrader={"grade_id": "quantize_blockwise", "solution": true}
def quantize_blockwise(weights, block, points=None):
    flat = weights.flatten()
    codes = torch.zeros_like(flat, dtype=torch.int8 if points is None else torch.uint8)
    absmax = torch.zeros(-(-len(flat) // block))
    for i, start in enumerate(range(0, len(flat), block)):
        part = flat[start:start + block]
        absmax[i] = part.abs().max()
        if absmax[i] == 0:
            continue
        if points is None:
            codes[start:start + block] = (part / absmax[i] * 127).round()
        else:
            codes[start:start + block] = (part[:, None] / absmax[i] - points).abs().argmin(1)
    return codes.view(weights.shape), absmax
