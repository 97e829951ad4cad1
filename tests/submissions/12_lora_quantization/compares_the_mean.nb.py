# /// shardlab-submission
# lab = "12_lora_quantization"
# loses = {outliers = 1.2}
# says = {outliers = "misses a feature of which one value"}
# ///

# %% nbgrader={"grade_id": "outliers", "solution": true}
def outliers(x, w, threshold):
    def quantize_rows(matrix):
        scales = matrix.abs().amax(dim=1, keepdim=True).clamp(min=1e-30) / 127
        return (matrix / scales).round().to(torch.int8), scales

    is_outlier = x.abs().mean(dim=0) > threshold
    x_codes, x_scales = quantize_rows(x[:, ~is_outlier])
    w_codes, w_scales = quantize_rows(w[:, ~is_outlier])
    sums = x_codes.int() @ w_codes.T.int()
    return sums * x_scales * w_scales.T + x[:, is_outlier] @ w[:, is_outlier].T
