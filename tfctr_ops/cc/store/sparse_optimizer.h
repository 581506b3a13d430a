// SparseOptimizer: what the fused update does to the row of a key, as data.
//
// `g` is the sum of the key's gradients in the step, `w` its weights, `t` the
// number of the step, counted from 1. Rows without a gradient do not move, not
// even by their momentum or weight decay.
//
//   every kind       with a clip_ratio, g *= min(1, clip / |g|), where
//                    clip = count * max(clip_ratio * |w|, clip_floor);
//                    g += 2 l2_penalty w, but for a count of 0;  then
//                    w -= learning_rate * weight_decay * w;  then the rest
//   sgd              w -= learning_rate * g
//   adagrad          a += g^2;  w -= learning_rate * g / sqrt(a + epsilon)
//   rowwise adagrad  a += mean(g^2), one number per row; w as above
//   adam             m += (1 - beta_1) (g - m);  v += (1 - beta_2) (g^2 - v)
//                    w -= learning_rate * sqrt(1 - beta_2^t) / (1 - beta_1^t)
//                         * m / (sqrt(v) + epsilon)
//                    with per_row_bias_correction, t counts the row's updates
//   ftrl             h = g + 2 l2_shrinkage w;  n' = n + g^2
//                    z += h - (n'^-p - n^-p) / learning_rate * w;  n = n'
//                    w = (clip(z, -l1, l1) - z)
//                        / (n^-p / learning_rate + 2 l2 + beta / learning_rate)
//                    where p = learning_rate_power; learning_rate 0 moves
//                    nothing
//
// These are the formulas of the Keras optimizers of the same names (Keras 3),
// applied to distinct rows. The clip is CowClip (Zheng et al., 2022,
// https://arxiv.org/abs/2204.06240, Algorithm 1). `count` is how many samples
// of the step have the key: the sum of KeyBatch::counts over its lookups. |.|
// is the L2 norm of the row. A gradient of zeros stays so, a count of 0 makes
// any gradient zero, and otherwise an infinite ratio or floor clips none.
// Without a clip_ratio nothing is counted: each row of the step has a sample.

#ifndef TFCTR_OPS_CC_STORE_SPARSE_OPTIMIZER_H_
#define TFCTR_OPS_CC_STORE_SPARSE_OPTIMIZER_H_

#include <cstdint>

namespace tfctr {

struct SparseOptimizer {
  enum class Kind { kSgd, kAdagrad, kRowwiseAdagrad, kAdam, kFtrl };

  Kind kind = Kind::kSgd;
  double beta_1 = 0.9;
  double beta_2 = 0.999;
  float epsilon = 1e-7f;
  bool per_row_bias_correction = false;
  float weight_decay = 0.0f;
  float initial_accumulator = 0.1f;
  float learning_rate_power = -0.5f;
  float l1 = 0.0f;
  float l2 = 0.0f;
  float l2_shrinkage = 0.0f;
  float beta = 0.0f;
  float clip_ratio = -1.0f;  // Negative: no clipping.
  float clip_floor = 0.0f;
  float l2_penalty = 0.0f;

  bool clips() const { return clip_ratio >= 0; }

  // How many floats of state a row of `dim` weights carries.
  int64_t NumSlotFloats(int64_t dim) const;
  // Sets the state of a new row.
  void InitializeSlots(int64_t dim, float* slots) const;
};

// What one step brings to every row.
struct UpdateStep {
  float learning_rate;
  int64_t number;      // Counted from 1.
  uint32_t dirty = 1;  // What RowHeader::dirty becomes.
};

}  // namespace tfctr

#endif  // TFCTR_OPS_CC_STORE_SPARSE_OPTIMIZER_H_
