# /// shardlab-submission
# lab = "12_lora_quantization"
# loses = {pack_q4_0 = 3.0}
# says = {pack_q4_0 = "packs neighbors into a byte"}
# ///

# %% nbgrader={"grade_id": "pack_q4_0", "solution": true}
def pack_q4_0(weights):
    blocks = weights.view(-1, 32)
    d = blocks.gather(1, blocks.abs().argmax(dim=1, keepdim=True)) / -8
    inverse = torch.where(d == 0, 0.0, 1 / d)
    levels = (blocks * inverse + 8.5).to(torch.uint8).clamp(max=15)
    nibbles = levels[:, ::2] | levels[:, 1::2] << 4
    return torch.cat([d.half().view(torch.uint8), nibbles], dim=1)
