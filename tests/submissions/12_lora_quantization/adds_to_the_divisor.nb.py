# /// shardlab-submission
# lab = "12_lora_quantization"
# loses = {quantize_blockwise = 1.333}
# says = {quantize_blockwise = "by more than their absmax"}
# ///

# %% nbgrader={"grade_id": "quantize_blockwise", "solution": true}
def quantize_blockwise(weights, block, points=None):
    flat = weights.flatten()
    n = flat.numel()
    rows = functional.pad(flat, (0, -n % block)).view(-1, block)
    absmax = rows.abs().amax(dim=1)
    scaled = rows / (absmax[:, None] + 1e-8)
    if points is None:
        codes = (scaled * 127).round().to(torch.int8)
    else:
        codes = (scaled[..., None] - points).abs().argmin(dim=-1).to(torch.uint8)
    return codes.flatten()[:n].view(weights.shape), absmax
