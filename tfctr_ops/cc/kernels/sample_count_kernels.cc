// The kernel that counts samples.

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "tfctr_ops/cc/kernels/key_inputs.h"
#include "tfctr_ops/cc/kernels/resources.h"
#include "tfctr_ops/cc/store/sample_counts.h"

namespace tfctr {
namespace {

namespace tf = ::tensorflow;

class SampleCountsOp final : public tf::OpKernel {
 public:
  using OpKernel::OpKernel;

  void Compute(tf::OpKernelContext* ctx) override {
    OP_REQUIRES_OK(ctx, Run(ctx));
  }

 private:
  static absl::Status Run(tf::OpKernelContext* ctx) {
    KeyBatch keys;
    TF_RETURN_IF_ERROR(KeysFromInputs(ctx, 0, &keys));
    const tf::Tensor& samples = ctx->input(2);
    if (samples.dims() != 1 || samples.NumElements() != keys.n) {
      return absl::InvalidArgumentError(absl::StrCat(
          "`samples` must have one number for each of the ", keys.n,
          " ids. Received: samples.shape=", samples.shape().DebugString(),
          "."));
    }
    tf::Tensor* counts;
    TF_RETURN_IF_ERROR(ctx->allocate_output(0, {keys.n}, &counts));
    DeviceExecutor executor(ctx, /*max_threads=*/0);
    return ToTensorFlow(CountSamples(keys, samples.flat<int32_t>().data(),
                                     &executor,
                                     counts->flat<int32_t>().data()));
  }
};

REGISTER_KERNEL_BUILDER(Name("Tfctr>SampleCounts").Device(tf::DEVICE_CPU),
                        SampleCountsOp);

}  // namespace
}  // namespace tfctr
