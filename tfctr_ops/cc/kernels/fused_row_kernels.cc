// The kernel of the fused update of rows in tables of others.

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "tfctr_ops/cc/kernels/key_inputs.h"
#include "tfctr_ops/cc/kernels/optimizer_attributes.h"
#include "tfctr_ops/cc/kernels/resources.h"
#include "tfctr_ops/cc/store/fused_rows.h"

namespace tfctr {
namespace {

namespace tf = ::tensorflow;

class UpdateFusedRowsOp final : public tf::OpKernel {
 public:
  explicit UpdateFusedRowsOp(tf::OpKernelConstruction* ctx) : OpKernel(ctx) {
    OP_REQUIRES_OK(ctx, OptimizerFromAttributes(ctx, &optimizer_));
  }

  void Compute(tf::OpKernelContext* ctx) override {
    OP_REQUIRES_OK(ctx, Run(ctx));
  }

 private:
  absl::Status Run(tf::OpKernelContext* ctx) {
    const tf::Tensor& rows = ctx->input(0);
    const tf::Tensor& gradients = ctx->input(1);
    TF_RETURN_IF_ERROR(CheckShapes(ctx));
    const int64_t n = rows.dim_size(0);
    UpdateStep step;
    TF_RETURN_IF_ERROR(
        ScalarFromInput(ctx, 5, "learning_rate", &step.learning_rate));
    TF_RETURN_IF_ERROR(ScalarFromInput(ctx, 6, "step", &step.number));
    tf::Tensor *updated, *num_clipped;
    // In place if nobody else needs the rows: new memory takes longer to come
    // by than the update.
    TF_RETURN_IF_ERROR(
        ctx->forward_input_or_allocate_output({0}, 0, rows.shape(), &updated));
    TF_RETURN_IF_ERROR(ctx->allocate_output(1, {}, &num_clipped));
    const FusedRows fused = {
        rows.flat<float>().data(), n, ctx->input(2).flat<int32_t>().data(),
        ctx->input(3).flat<int32_t>().data(),
        optimizer_.clips() ? ctx->input(4).flat<int32_t>().data() : nullptr};
    DeviceExecutor executor(ctx, /*max_threads=*/0);
    num_clipped->scalar<int64_t>()() =
        UpdateFusedRows(optimizer_, step, gradients.dim_size(1), fused,
                        gradients.flat<float>().data(), &executor,
                        updated->flat<float>().data());
    return absl::OkStatus();
  }

  absl::Status CheckShapes(tf::OpKernelContext* ctx) const {
    const tf::TensorShape& rows = ctx->input(0).shape();
    const tf::TensorShape& gradients = ctx->input(1).shape();
    const auto fits = [&](int input) {
      const tf::TensorShape& shape = ctx->input(input).shape();
      return shape.dims() == 1 && shape.dim_size(0) == rows.dim_size(0);
    };
    if (rows.dims() == 2 && gradients.dims() == 2 &&
        gradients.dim_size(0) == rows.dim_size(0) &&
        gradients.dim_size(1) >= 1 &&
        rows.dim_size(1) ==
            gradients.dim_size(1) +
                optimizer_.NumSlotFloats(gradients.dim_size(1)) +
                kFusedCounters &&
        fits(2) && fits(3) && (fits(4) || !optimizer_.clips())) {
      return absl::OkStatus();
    }
    return absl::InvalidArgumentError(absl::StrCat(
        "`rows` must be (m, dim + slots + ", kFusedCounters,
        "), `gradients` (m, dim), `features` and `updates` (m,), and `samples` "
        "too if the update clips. Received: rows.shape=",
        rows.DebugString(), ", gradients.shape=", gradients.DebugString(),
        ", features.shape=", ctx->input(2).shape().DebugString(),
        ", updates.shape=", ctx->input(3).shape().DebugString(),
        ", samples.shape=", ctx->input(4).shape().DebugString(), "."));
  }

  SparseOptimizer optimizer_;
};

REGISTER_KERNEL_BUILDER(Name("Tfctr>UpdateFusedRows").Device(tf::DEVICE_CPU),
                        UpdateFusedRowsOp);

}  // namespace
}  // namespace tfctr
