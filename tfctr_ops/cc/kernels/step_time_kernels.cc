// The kernel that tells what lookups and updates have taken.

#include "tensorflow/core/framework/op_kernel.h"
#include "tfctr_ops/cc/kernels/step_clocks.h"

namespace tfctr {
namespace {

namespace tf = ::tensorflow;

class StepTimesOp final : public tf::OpKernel {
 public:
  using OpKernel::OpKernel;

  void Compute(tf::OpKernelContext* ctx) override {
    tf::Tensor* times = nullptr;
    OP_REQUIRES_OK(ctx, ctx->allocate_output(0, {2}, &times));
    auto values = times->flat<int64_t>();
    values(0) = StepClocks::Get()->lookups.nanoseconds();
    values(1) = StepClocks::Get()->updates.nanoseconds();
  }
};

REGISTER_KERNEL_BUILDER(Name("Tfctr>StepTimes").Device(tf::DEVICE_CPU),
                        StepTimesOp);

}  // namespace
}  // namespace tfctr
