// The attributes of ops that describe an update.

#ifndef TFCTR_OPS_CC_KERNELS_OPTIMIZER_ATTRIBUTES_H_
#define TFCTR_OPS_CC_KERNELS_OPTIMIZER_ATTRIBUTES_H_

#include "tensorflow/core/framework/op_kernel.h"
#include "tfctr_ops/cc/store/sparse_optimizer.h"

namespace tfctr {

absl::Status OptimizerFromAttributes(tensorflow::OpKernelConstruction* ctx,
                                     SparseOptimizer* optimizer);

// Attributes are floats, and 1 - 0.999f is off by 2e-5 of itself: brings back
// the decimal number that the user wrote.
double ShortestDouble(float value);

}  // namespace tfctr

#endif  // TFCTR_OPS_CC_KERNELS_OPTIMIZER_ATTRIBUTES_H_
