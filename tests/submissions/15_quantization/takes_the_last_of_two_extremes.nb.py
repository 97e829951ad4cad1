# /// shardlab-submission
# lab = "15_quantization"
# loses = {pack_q4_0 = 1.5}
# says = {pack_q4_0 = "does not take the first of two weights"}
# ///

# %% nbgrader={"grade_id": "pack_q4_0", "solution": true}
def pack_q4_0(weights):
    rows = weights.view(-1, 32)
    at = 31 - rows.abs().flip(1).argmax(dim=1, keepdim=True)
    d = rows.gather(1, at) / -8
    inverse = torch.where(d == 0, 0.0, 1 / d)
    levels = (rows * inverse + 8.5).to(torch.uint8).clamp(max=15)
    low, high = levels[:, :16], levels[:, 16:]
    return torch.cat([d.half().view(torch.uint8), low | (high << 4)], dim=1)
