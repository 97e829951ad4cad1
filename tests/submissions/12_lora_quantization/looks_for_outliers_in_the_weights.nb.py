# /// shardlab-submission
# lab = "12_lora_quantization"
# loses = {outliers = 3}
# says = {outliers = "looks for outliers in the weights"}
# ///

# %% nbgrader={"grade_id": "outliers", "solution": true}
def outliers(x, w, threshold):
    """x [rows, features], w [out, features]  ->  about x @ w.T [rows, out], most of it in int8"""
    def quantize_rows(matrix):
        scales = matrix.abs().amax(dim=1, keepdim=True).clamp(min=1e-30) / 127
        return (matrix / scales).round().to(torch.int8), scales

    is_outlier = w.abs().amax(dim=0) > threshold
    x_codes, x_scales = quantize_rows(x[:, ~is_outlier])
    w_codes, w_scales = quantize_rows(w[:, ~is_outlier])
    sums = x_codes.int() @ w_codes.T.int()
    return sums * x_scales * w_scales.T + x[:, is_outlier] @ w[:, is_outlier].T
