// The kernel that finds the distinct keys of a batch, and their owners.

#include "absl/status/status.h"
#include "tfctr_ops/cc/kernels/key_inputs.h"
#include "tfctr_ops/cc/kernels/resources.h"
#include "tfctr_ops/cc/store/key_routes.h"

namespace tfctr {
namespace {

namespace tf = ::tensorflow;

class RouteKeysOp final : public tf::OpKernel {
 public:
  explicit RouteKeysOp(tf::OpKernelConstruction* ctx) : OpKernel(ctx) {
    OP_REQUIRES_OK(ctx, ctx->GetAttr("num_features", &num_features_));
    OP_REQUIRES_OK(ctx, ctx->GetAttr("num_owners", &num_owners_));
  }

  void Compute(tf::OpKernelContext* ctx) override {
    OP_REQUIRES_OK(ctx, Run(ctx));
  }

 private:
  absl::Status Run(tf::OpKernelContext* ctx) {
    KeyBatch keys;
    TF_RETURN_IF_ERROR(KeysFromInputs(ctx, 0, &keys));
    DeviceExecutor executor(ctx, /*max_threads=*/0);
    KeyRoutes routes;
    TF_RETURN_IF_ERROR(ToTensorFlow(
        routes.Route(keys, num_features_, num_owners_, &executor)));
    tf::Tensor *ids, *counts, *places;
    TF_RETURN_IF_ERROR(ctx->allocate_output(0, {routes.num_distinct()}, &ids));
    TF_RETURN_IF_ERROR(
        ctx->allocate_output(1, {num_owners_, num_features_}, &counts));
    TF_RETURN_IF_ERROR(ctx->allocate_output(2, {keys.n}, &places));
    routes.Write(&executor, ids->flat<int64_t>().data(),
                 counts->flat<int32_t>().data(),
                 places->flat<int32_t>().data());
    return absl::OkStatus();
  }

  int64_t num_features_;
  int64_t num_owners_;
};

REGISTER_KERNEL_BUILDER(Name("Tfctr>RouteKeys").Device(tf::DEVICE_CPU),
                        RouteKeysOp);

}  // namespace
}  // namespace tfctr
