"""Which module declares each op and builder, and which others add rules to it.

Generated from the registry; do not edit. To bring it up to date: python -m darner.cli.generate
"""

HOMES = {
    "compat.attention": (
        "attention attention_ attention_backward attention_backward_all attention_bias "
        "attention_kind attention_kind_opts attention_opts causal_attention cross_attention "
        "full_attention multi_head_attn sliding_window_attention"
    ),
    "compat.flat": (
        "conv2d_grad_input conv2d_grad_weight conv2d_hw max_pool_2d split_a split_b upsample_2x "
        "upsample_2x_grad"
    ),
    "compat.gradients": (
        "conv2d_backward_input conv2d_backward_weight cumsum_backward gather_backward "
        "group_norm_grad_input group_norm_grad_weight_bias layer_norm_grad_wb layer_norm_grad_x "
        "maxpool2d_backward rms_norm_grad_w rms_norm_grad_x rope_backward rope_grad"
    ),
    "compat.kinds": "activation binary compare reduce",
    "compat.names": (
        "bias_add broadcast_add concat_ fused_swiglu_ffn gather_ input_u32 linear_bias "
        "linear_bias_act linear_fused ln mean_all mm narrow_ param parameter_f16 parameter_q4 "
        "parameter_q8 reshape_ resize_nearest_2x rope_dynamic_offset rope_n rope_with_offset "
        "scalar shared_matmul_pair sm sum_all sum_rows swiglu_ffn transpose_"
    ),
    "compat.scans": (
        "scan scan_backward scan_backward_with_checkpoints scan_backward_xs "
        "scan_backward_xs_with_checkpoints scan_checkpointed scan_trajectory "
        "scan_with_bcasts_and_xs scan_with_xs"
    ),
    "ops.attention.attention ops.attention.gradients": "scaled_dot_attention",
    "ops.attention.cache": "cache_update cache_write cached_attention",
    "ops.attention.gradients": "attention_statistics scaled_dot_attention_backward",
    "ops.attention.rope": "axial_rope2d rope rope_tables rope_with_tables",
    "ops.complex_numbers.numbers": "complex complex_norm_sq complex_norm_sq_backward conjugate imag real",
    "ops.creation.filling": "arange eye full full_like linspace one_hot ones ones_like tril triu zeros zeros_like",
    "ops.creation.leaves": "constant input parameter project state",
    "ops.custom.functions": "custom_fn_multi",
    "ops.custom.functions transforms.custom_rules": "custom_fn custom_fn_tuple",
    "ops.custom.recompute": "recompute_barrier",
    "ops.custom.registered": "custom_op custom_op_packed",
    "ops.elementwise.activation_gradients ops.elementwise.activations": (
        "activation_backward relu_backward silu_grad swiglu_concat_grad swiglu_grad_gate "
        "swiglu_grad_up"
    ),
    "ops.elementwise.activations ops.elementwise.activation_gradients": (
        "celu elu geglu gelu gelu_approx glu hard_sigmoid hard_silu hard_tanh leaky_relu "
        "log_sigmoid mish quick_gelu relu relu6 selu sigmoid silu softplus softsign swiglu "
        "swiglu_concat"
    ),
    "ops.elementwise.arithmetic": "cast clip greater stop_gradient where",
    "ops.elementwise.arithmetic ops.complex_numbers.parts ops.declare": "div mul",
    "ops.elementwise.arithmetic ops.declare": "add atan2 chain floor_divide maximum minimum pow remainder sub",
    "ops.elementwise.comparison": "bitwise_and bitwise_or bitwise_xor shift_left shift_right",
    "ops.elementwise.comparison ops.declare": "eq ge gt le logical_and logical_not logical_or logical_xor lt ne",
    "ops.elementwise.functions": "abs",
    "ops.elementwise.functions ops.declare": (
        "acos acosh asin asinh atan atanh ceil cos cosh erf erfc exp exp2 expm1 floor is_finite "
        "is_inf is_nan log log10 log1p log2 neg recip round rsqrt sign sin sinh sqrt square tan "
        "tanh trunc"
    ),
    "ops.elementwise.reduced_precision": "reduce_precision",
    "ops.fourier.spectra": (
        "fft_axis fft_batch_real fft_conv1d fft_norm fft_real fftfreq_tensor fftn ifft_spectrum "
        "ifftn irfft pad_last_axis_to_pow2 psd psd_real rfft rfftfreq_tensor split_spectrum stft"
    ),
    "ops.fourier.transforms": "fft inverse_real_fft real_fft",
    "ops.indexing.index": (
        "dynamic_slice dynamic_update_slice gather scatter_add scatter_add_along_axis "
        "take_along_axis"
    ),
    "ops.indexing.ordering": "argsort sort top_k",
    "ops.indexing.reading": "embedding getitem masked_fill take",
    "ops.indexing.scatter": "scatter",
    "ops.layers.fused": "fused_conv fused_matmul norm_matmul winograd_conv winograd_weight",
    "ops.layers.linear": "fused_matmul_bias_act grouped_matmul linear lora_matmul",
    "ops.linalg.contract": "dot_general fold windows",
    "ops.linalg.einsum": "einsum",
    "ops.linalg.matrix": "dot matmul matmul_at matmul_bt outer vdot",
    "ops.linalg.systems": (
        "batched_dense_solve cholesky dense_solve det inverse logdet slogdet solve "
        "triangular_solve"
    ),
    "ops.loops.iterate": "iterate",
    "ops.loops.loop interpreter transforms.cost transforms.loops.batch transforms.loops.forward transforms.loops.reverse": "loop",
    "ops.losses.losses": (
        "bce_loss bce_with_logits_loss cosine_similarity cross_entropy_loss huber_loss kl_div "
        "l1_loss mse_loss nll_loss smooth_l1_loss"
    ),
    "ops.losses.losses ops.elementwise.activations": "softmax_cross_entropy_backward softmax_cross_entropy_with_logits",
    "ops.losses.softmax": "log_softmax log_softmax_backward masked_softmax softmax softmax_backward softmin",
    "ops.norms.channel_gradients": (
        "batch_norm_backward group_norm_backward_beta group_norm_backward_gamma "
        "group_norm_backward_input"
    ),
    "ops.norms.channels": "batch_norm group_norm_silu",
    "ops.norms.channels ops.norms.channel_gradients": "batch_norm_training group_norm instance_norm layer_norm2d",
    "ops.norms.last_axes": "l2_normalize",
    "ops.norms.last_axes ops.norms.last_axes_gradients": "fused_residual_ln fused_residual_rms_norm layer_norm rms_norm",
    "ops.norms.last_axes_gradients": (
        "layer_norm_backward_beta layer_norm_backward_gamma layer_norm_backward_input "
        "rms_norm_backward_beta rms_norm_backward_gamma rms_norm_backward_input"
    ),
    "ops.quantised.packed": "dequantize_blocks",
    "ops.quantised.packed_products": (
        "dequant_grouped_matmul dequant_matmul dequant_matmul_nvfp4 dequant_matmul_packed "
        "dequant_moe_weights"
    ),
    "ops.quantised.quantise": (
        "dequantize dequantize_per_channel fake_quantize q_conv2d q_matmul quantize "
        "quantize_per_channel"
    ),
    "ops.random.bits": "random_bits random_step",
    "ops.random.distributions": "bernoulli",
    "ops.random.distributions ops.random.bits": "dropout random_bernoulli random_integers random_normal random_permutation random_uniform",
    "ops.random.sampling": "greedy sample",
    "ops.reductions.reduce": "all any argmax argmin cummax cummin cumprod cumsum linear_recurrence max min prod sum",
    "ops.reductions.statistics": "count_nonzero",
    "ops.reductions.statistics ops.reductions.reduce": "logsumexp mean norm std var",
    "ops.shapes.joining": "chunk narrow pad_with roll split stack",
    "ops.shapes.primitives": "broadcast_to flip iota pad reshape slice transpose",
    "ops.shapes.primitives compat.flat": "concat",
    "ops.shapes.shaping": (
        "diagonal expand expand_dims flatten meshgrid moveaxis repeat squeeze swapaxes tile trace "
        "unsqueeze"
    ),
    "ops.spatial.conv": "conv conv_input_grad conv_weight_grad",
    "ops.spatial.conv_forms": "conv1d conv2d conv3d conv_transpose1d conv_transpose2d conv_transpose3d unfold",
    "ops.spatial.conv_last": "conv_last conv_last_input_grad conv_last_weight_grad",
    "ops.spatial.pool": "adaptive_avg_pool avg_pool avg_pool_backward max_pool max_pool_backward",
    "ops.spatial.pool_forms": (
        "adaptive_avg_pool1d adaptive_avg_pool2d adaptive_avg_pool3d avg_pool1d avg_pool2d "
        "avg_pool3d global_avg_pool global_max_pool max_pool1d max_pool2d max_pool3d min_pool "
        "pool prod_pool sum_pool"
    ),
    "ops.spatial.resize": "pixel_shuffle pixel_unshuffle resize_bilinear resize_linear resize_nearest",
    "ops.splats.render": (
        "gaussian_splat_prepare gaussian_splat_rasterize gaussian_splat_render "
        "gaussian_splat_render_backward gaussian_splat_render_decomposed "
        "gaussian_splat_render_meta"
    ),
    "ops.splats.tiles": "splat_blend splat_blend_backward splat_lists",
    "ops.state_space.delta_net": "gated_delta_net gated_delta_net_backward gated_delta_net_carry gated_delta_net_final",
    "ops.state_space.selective_scan": "selective_scan selective_scan_backward",
}
