# /// shardlab-submission
# lab = "15_quantization"
# loses = {quantize_blockwise = 2.0}
# says = {quantize_blockwise = "in 'absmax'"}
# ///

# %% nbgrader={"grade_id": "quantize_blockwise", "solution": true}
def quantize_blockwise(weights, block, points=None):
    codes = torch.zeros(weights.numel(), dtype=torch.int8 if points is None else torch.uint8)
    scales = []
    for i in range(max(weights.numel() // block, 1)):
        part = weights.flatten()[i * block : (i + 1) * block]
        absmax = part.abs().max()
        scaled = part / absmax if absmax > 0 else part
        if points is None:
            code = torch.round(scaled * 127).to(torch.int8)
        else:
            code = (scaled[:, None] - points).abs().argmin(1).to(torch.uint8)
        codes[i * block : (i + 1) * block] = code
        scales.append(absmax)
    return codes.view(weights.shape), torch.stack(scales)
