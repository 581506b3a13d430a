// Inputs of kernels, checked: the two that make up a batch of keys, and
// scalars. Shape functions see static shapes only, and eager calls skip them.

#ifndef TFCTR_OPS_CC_KERNELS_KEY_INPUTS_H_
#define TFCTR_OPS_CC_KERNELS_KEY_INPUTS_H_

#include <algorithm>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tfctr_ops/cc/store/batch.h"

namespace tfctr {

// Reads `ids` from input `index` and `features` from the next. The tensors must
// outlive `keys`.
inline absl::Status KeysFromInputs(tensorflow::OpKernelContext* ctx, int index,
                                   KeyBatch* keys) {
  const tensorflow::Tensor& ids = ctx->input(index);
  const tensorflow::Tensor& features = ctx->input(index + 1);
  if (ids.dims() != 1 || features.dims() != 1) {
    return absl::InvalidArgumentError(absl::StrCat(
        "`ids` and `features` must have rank 1. Received: ids.shape=",
        ids.shape().DebugString(),
        ", features.shape=", features.shape().DebugString(),
        ". Flatten the ids first: tf.reshape(ids, [-1])."));
  }
  *keys = {ids.flat<int64_t>().data(), ids.NumElements(),
           features.flat<int32_t>().data(), features.NumElements()};
  const bool divides =
      keys->num_features > 0 ? keys->n % keys->num_features == 0 : keys->n == 0;
  if (!divides) {
    return absl::InvalidArgumentError(absl::StrCat(
        "The number of ids must be a multiple of the number of features. "
        "Received: ",
        keys->n, " ids, ", keys->num_features, " features."));
  }
  return absl::OkStatus();
}

// Reads how often each key counts from input `index`, which may be empty. The
// tensor must outlive `keys`.
inline absl::Status CountsFromInput(tensorflow::OpKernelContext* ctx, int index,
                                    KeyBatch* keys) {
  const tensorflow::Tensor& counts = ctx->input(index);
  const int64_t n = counts.NumElements();
  if (counts.dims() != 1 || (n != 0 && n != keys->n)) {
    return absl::InvalidArgumentError(absl::StrCat(
        "`counts` must have one count for each of the ", keys->n,
        " ids, or none. Received: counts.shape=", counts.shape().DebugString(),
        "."));
  }
  if (n == 0) return absl::OkStatus();
  keys->counts = counts.flat<int32_t>().data();
  const int32_t least = *std::min_element(keys->counts, keys->counts + n);
  if (least >= 0) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      "`counts` must not be negative. Received: a count of ", least, "."));
}

// Reads the scalar input `index`, which messages call `name`.
template <typename T>
absl::Status ScalarFromInput(tensorflow::OpKernelContext* ctx, int index,
                             const char* name, T* value) {
  const tensorflow::Tensor& tensor = ctx->input(index);
  if (tensor.dims() != 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("`", name, "` must be a scalar. Received: ", name,
                     ".shape=", tensor.shape().DebugString(), "."));
  }
  *value = tensor.scalar<T>()();
  return absl::OkStatus();
}

}  // namespace tfctr

#endif  // TFCTR_OPS_CC_KERNELS_KEY_INPUTS_H_
