# /// shardlab-submission
# lab = "15_quantization"
# loses = {pack_q4_0 = 0.5}
# says = {pack_q4_0 = "does not multiply by 1/d in fp32"}
# ///
# Another level for 77 in a block whose largest weight is 112.

# %% nbgrader={"grade_id": "pack_q4_0", "solution": true}
def pack_q4_0(weights):
    """fp32 weights [n]  ->  uint8 [n / 32, 18], the bytes of Q4_0"""
    blocks = weights.view(-1, 32)
    where = blocks.abs().argmax(dim=1, keepdim=True)
    d = blocks.gather(1, where) / -8
    divisor = torch.where(d == 0, torch.ones_like(d), d)
    levels = (blocks / divisor + 8.5).trunc().clamp(max=15).to(torch.uint8)
    packed = levels[:, :16] | (levels[:, 16:] << 4)
    return torch.cat([d.half().view(torch.uint8), packed], dim=1)
