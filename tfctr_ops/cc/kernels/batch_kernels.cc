// Kernels on a batch whose rows lie in tables of others: its distinct keys, and
// the ways from rows to occurrences and back.

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "tfctr_ops/cc/kernels/key_inputs.h"
#include "tfctr_ops/cc/kernels/resources.h"
#include "tfctr_ops/cc/store/distinct_keys.h"
#include "tfctr_ops/cc/store/occurrences.h"

namespace tfctr {
namespace {

namespace tf = ::tensorflow;

class DistinctKeysOp final : public tf::OpKernel {
 public:
  explicit DistinctKeysOp(tf::OpKernelConstruction* ctx) : OpKernel(ctx) {
    OP_REQUIRES_OK(ctx, ctx->GetAttr("num_features", &num_features_));
    OP_REQUIRES_OK(ctx, ctx->GetAttr("has_counts", &has_counts_));
  }

  void Compute(tf::OpKernelContext* ctx) override {
    OP_REQUIRES_OK(ctx, Run(ctx));
  }

 private:
  absl::Status Run(tf::OpKernelContext* ctx) {
    KeyBatch batch;
    TF_RETURN_IF_ERROR(KeysFromInputs(ctx, 0, &batch));
    TF_RETURN_IF_ERROR(CountsFromInput(ctx, 2, &batch));
    DeviceExecutor executor(ctx, /*max_threads=*/0);
    DistinctKeys distinct;
    TF_RETURN_IF_ERROR(ToTensorFlow(
        distinct.Find(batch, num_features_, has_counts_, &executor)));

    const int64_t n = distinct.size();
    tf::Tensor *ids, *features, *words, *counts, *places;
    TF_RETURN_IF_ERROR(ctx->allocate_output(0, {n}, &ids));
    TF_RETURN_IF_ERROR(ctx->allocate_output(1, {n}, &features));
    TF_RETURN_IF_ERROR(ctx->allocate_output(2, {n}, &words));
    TF_RETURN_IF_ERROR(
        ctx->allocate_output(3, {has_counts_ ? n : int64_t{0}}, &counts));
    TF_RETURN_IF_ERROR(ctx->allocate_output(4, {batch.n}, &places));
    distinct.Write(
        &executor, ids->flat<int64_t>().data(),
        features->flat<int32_t>().data(), words->flat<int64_t>().data(),
        counts->flat<int32_t>().data(), places->flat<int32_t>().data());
    return absl::OkStatus();
  }

  int64_t num_features_;
  bool has_counts_;
};

class GatherWeightsOp final : public tf::OpKernel {
 public:
  explicit GatherWeightsOp(tf::OpKernelConstruction* ctx) : OpKernel(ctx) {
    OP_REQUIRES_OK(ctx, ctx->GetAttr("dim", &dim_));
  }

  void Compute(tf::OpKernelContext* ctx) override {
    OP_REQUIRES_OK(ctx, Run(ctx));
  }

 private:
  absl::Status Run(tf::OpKernelContext* ctx) {
    const tf::Tensor& rows = ctx->input(0);
    const tf::Tensor& places = ctx->input(1);
    if (rows.dims() != 2 || rows.dim_size(1) < dim_ || places.dims() != 1) {
      return absl::InvalidArgumentError(
          absl::StrCat("`rows` must have rank 2 and at least ", dim_,
                       " columns, and `places` rank 1. Received: rows.shape=",
                       rows.shape().DebugString(),
                       ", places.shape=", places.shape().DebugString(), "."));
    }
    const Occurrences occurrences = {places.flat<int32_t>().data(),
                                     places.NumElements(), rows.dim_size(0)};
    tf::Tensor* gathered;
    TF_RETURN_IF_ERROR(
        ctx->allocate_output(0, {occurrences.n, dim_}, &gathered));
    DeviceExecutor executor(ctx, /*max_threads=*/0);
    return ToTensorFlow(GatherWeights(occurrences, rows.flat<float>().data(),
                                      rows.dim_size(1), dim_, &executor,
                                      gathered->flat<float>().data()));
  }

  int64_t dim_;
};

class SumGradientsOp final : public tf::OpKernel {
 public:
  explicit SumGradientsOp(tf::OpKernelConstruction* ctx) : OpKernel(ctx) {}

  void Compute(tf::OpKernelContext* ctx) override {
    OP_REQUIRES_OK(ctx, Run(ctx));
  }

 private:
  absl::Status Run(tf::OpKernelContext* ctx) {
    const tf::Tensor& gradients = ctx->input(0);
    const tf::Tensor& places = ctx->input(1);
    int32_t num_rows;
    TF_RETURN_IF_ERROR(ScalarFromInput(ctx, 2, "num_rows", &num_rows));
    if (gradients.dims() != 2 || places.dims() != 1 ||
        gradients.dim_size(0) != places.dim_size(0) || num_rows < 0) {
      return absl::InvalidArgumentError(absl::StrCat(
          "`gradients` must have rank 2, with one row for each of `places`, "
          "and `num_rows` must not be negative. Received: gradients.shape=",
          gradients.shape().DebugString(), ", places.shape=",
          places.shape().DebugString(), ", num_rows=", num_rows, "."));
    }
    const int64_t dim = gradients.dim_size(1);
    tf::Tensor* sums;
    TF_RETURN_IF_ERROR(ctx->allocate_output(0, {num_rows, dim}, &sums));
    DeviceExecutor executor(ctx, /*max_threads=*/0);
    SumGradients(
        {places.flat<int32_t>().data(), places.NumElements(), num_rows},
        gradients.flat<float>().data(), dim, &executor,
        sums->flat<float>().data());
    return absl::OkStatus();
  }
};

REGISTER_KERNEL_BUILDER(Name("Tfctr>DistinctKeys").Device(tf::DEVICE_CPU),
                        DistinctKeysOp);
REGISTER_KERNEL_BUILDER(Name("Tfctr>GatherWeights").Device(tf::DEVICE_CPU),
                        GatherWeightsOp);
REGISTER_KERNEL_BUILDER(Name("Tfctr>SumGradients").Device(tf::DEVICE_CPU),
                        SumGradientsOp);

}  // namespace
}  // namespace tfctr
