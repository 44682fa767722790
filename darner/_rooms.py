"""Which modules declare each op and builder: rooms of ``ops``, modules of ``compat``, and whatever adds rules to an op from outside its room.

Generated from the registry; do not edit. To bring it up to date: python -m darner.cli.generate
"""

ROOMS = {
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
    "ops.attention": (
        "axial_rope2d cache_update cache_write cached_attention rope rope_tables rope_with_tables "
        "scaled_dot_attention scaled_dot_attention_backward"
    ),
    "ops.complex_numbers": "complex complex_norm_sq complex_norm_sq_backward conjugate imag real",
    "ops.creation": (
        "arange constant eye full full_like input linspace one_hot ones ones_like parameter "
        "project state tril triu zeros zeros_like"
    ),
    "ops.custom": "custom_fn_multi custom_op custom_op_packed recompute_barrier",
    "ops.custom transforms.custom_rules": "custom_fn custom_fn_tuple",
    "ops.elementwise": (
        "abs acos acosh activation_backward add asin asinh atan atan2 atanh bitwise_and "
        "bitwise_or bitwise_xor cast ceil celu chain clip cos cosh div elu eq erf erfc exp exp2 "
        "expm1 floor floor_divide ge geglu gelu gelu_approx glu greater gt hard_sigmoid hard_silu "
        "hard_tanh is_finite is_inf is_nan le leaky_relu log log10 log1p log2 log_sigmoid "
        "logical_and logical_not logical_or logical_xor lt maximum minimum mish mul ne neg pow "
        "quick_gelu recip relu relu6 relu_backward remainder round rsqrt selu shift_left "
        "shift_right sigmoid sign silu silu_grad sin sinh softplus softsign sqrt square "
        "stop_gradient sub swiglu swiglu_concat swiglu_concat_grad swiglu_grad_gate "
        "swiglu_grad_up tan tanh trunc where"
    ),
    "ops.fourier": (
        "fft fft_axis fft_batch_real fft_conv1d fft_norm fft_real fftfreq_tensor fftn "
        "ifft_spectrum ifftn inverse_real_fft irfft pad_last_axis_to_pow2 psd psd_real real_fft "
        "rfft rfftfreq_tensor split_spectrum stft"
    ),
    "ops.indexing": (
        "argsort dynamic_slice dynamic_update_slice embedding gather getitem masked_fill scatter "
        "scatter_add scatter_add_along_axis sort take take_along_axis top_k"
    ),
    "ops.layers": (
        "fused_conv fused_matmul fused_matmul_bias_act grouped_matmul linear lora_matmul "
        "norm_matmul winograd_conv winograd_weight"
    ),
    "ops.linalg": (
        "batched_dense_solve cholesky dense_solve det dot dot_general einsum fold inverse logdet "
        "matmul matmul_at matmul_bt outer slogdet solve triangular_solve vdot windows"
    ),
    "ops.loops": "iterate",
    "ops.loops interpreter transforms.cost transforms.loops.batch transforms.loops.forward transforms.loops.reverse": "loop",
    "ops.losses": (
        "bce_loss bce_with_logits_loss cosine_similarity cross_entropy_loss huber_loss kl_div "
        "l1_loss log_softmax log_softmax_backward masked_softmax mse_loss nll_loss smooth_l1_loss "
        "softmax softmax_backward softmax_cross_entropy_backward "
        "softmax_cross_entropy_with_logits softmin"
    ),
    "ops.norms": (
        "batch_norm batch_norm_backward batch_norm_training fused_residual_ln "
        "fused_residual_rms_norm group_norm group_norm_backward_beta group_norm_backward_gamma "
        "group_norm_backward_input group_norm_silu instance_norm l2_normalize layer_norm "
        "layer_norm2d layer_norm_backward_beta layer_norm_backward_gamma "
        "layer_norm_backward_input rms_norm rms_norm_backward_beta rms_norm_backward_gamma "
        "rms_norm_backward_input"
    ),
    "ops.quantised": (
        "dequant_grouped_matmul dequant_matmul dequant_matmul_nvfp4 dequant_matmul_packed "
        "dequant_moe_weights dequantize dequantize_blocks dequantize_per_channel fake_quantize "
        "q_conv2d q_matmul quantize quantize_per_channel"
    ),
    "ops.random": (
        "bernoulli dropout greedy random_bernoulli random_bits random_integers random_normal "
        "random_permutation random_step random_uniform sample"
    ),
    "ops.reductions": (
        "all any argmax argmin count_nonzero cummax cummin cumprod cumsum linear_recurrence "
        "logsumexp max mean min norm prod std sum var"
    ),
    "ops.shapes": (
        "broadcast_to chunk diagonal expand expand_dims flatten flip iota meshgrid moveaxis "
        "narrow pad pad_with repeat reshape roll slice split squeeze stack swapaxes tile trace "
        "transpose unsqueeze"
    ),
    "ops.shapes compat.flat": "concat",
    "ops.spatial": (
        "adaptive_avg_pool adaptive_avg_pool1d adaptive_avg_pool2d adaptive_avg_pool3d avg_pool "
        "avg_pool1d avg_pool2d avg_pool3d avg_pool_backward conv conv1d conv2d conv3d "
        "conv_input_grad conv_transpose1d conv_transpose2d conv_transpose3d conv_weight_grad "
        "global_avg_pool global_max_pool max_pool max_pool1d max_pool2d max_pool3d "
        "max_pool_backward min_pool pixel_shuffle pixel_unshuffle pool prod_pool resize_bilinear "
        "resize_linear resize_nearest sum_pool unfold"
    ),
    "ops.splats": (
        "gaussian_splat_prepare gaussian_splat_rasterize gaussian_splat_render "
        "gaussian_splat_render_backward gaussian_splat_render_decomposed "
        "gaussian_splat_render_meta splat_blend splat_blend_backward splat_lists"
    ),
    "ops.state_space": (
        "gated_delta_net gated_delta_net_backward gated_delta_net_carry gated_delta_net_final "
        "selective_scan selective_scan_backward"
    ),
}
