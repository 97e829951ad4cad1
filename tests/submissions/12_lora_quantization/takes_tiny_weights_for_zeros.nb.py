# /// shardlab-submission
# lab = "12_lora_quantization"
# loses = {quantize_blockwise = 1.333}
# says = {quantize_blockwise = "takes them for zeros"}
# ///

# %% nbgrader={"grade_id": "quantize_blockwise", "solution": true}
def quantize_blockwise(weights, block, points=None):
    flat = weights.flatten()
    n = flat.numel()
    rows = functional.pad(flat, (0, -n % block)).view(-1, block)
    absmax = rows.abs().amax(dim=1)
    scaled = torch.zeros_like(rows)
    scaled[absmax > 1e-6] = rows[absmax > 1e-6] / absmax[absmax > 1e-6, None]
    if points is None:
        codes = (scaled * 127).round().to(torch.int8)
    else:
        codes = (scaled[..., None] - points).abs().argmin(dim=-1).to(torch.uint8)
    return codes.flatten()[:n].view(weights.shape), absmax
