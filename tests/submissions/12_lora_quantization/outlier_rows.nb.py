# /// shardlab-submission
# lab = "12_lora_quantization"
# loses = {outliers = 2.4}
# says = {outliers = "takes the outliers' rows out of x"}
# ///

# %% nbgrader={"grade_id": "outliers", "solution": true}
def outliers(x, w, threshold):
    """x [rows, features], w [out, features]  ->  about x @ w.T [rows, out], most of it in int8"""
    def quantize_rows(matrix):
        scales = matrix.abs().amax(dim=1, keepdim=True).clamp(min=1e-30) / 127
        return (matrix / scales).round().to(torch.int8), scales

    is_outlier = x.abs().amax(dim=1) > threshold
    y = x @ w.T
    x_codes, x_scales = quantize_rows(x[~is_outlier])
    w_codes, w_scales = quantize_rows(w)
    sums = x_codes.int() @ w_codes.T.int()
    y[~is_outlier] = sums * x_scales * w_scales.T
    return y
