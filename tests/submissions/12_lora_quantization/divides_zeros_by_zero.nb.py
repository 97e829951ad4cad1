# /// shardlab-submission
# lab = "12_lora_quantization"
# loses = {quantize_blockwise = 2.0}
# says = {quantize_blockwise = "0 / 0 is NaN"}
# ///

# %% nbgrader={"grade_id": "quantize_blockwise", "solution": true}
def quantize_blockwise(weights, block, points=None):
    flat = weights.flatten()
    blocks = nn.functional.pad(flat, (0, -len(flat) % block)).view(-1, block)
    absmax = blocks.abs().amax(dim=1)
    scaled = blocks / absmax[:, None]
    if points is None:
        codes = (scaled * 127).round().to(torch.int8)
    else:
        codes = (scaled[..., None] - points).abs().argmin(dim=-1).to(torch.uint8)
    return codes.flatten()[: len(flat)].view(weights.shape), absmax
