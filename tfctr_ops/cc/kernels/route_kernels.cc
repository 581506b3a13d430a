// Kernels that send the distinct keys of a batch to their owners.

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
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
    tf::Tensor *messages, *sizes, *places;
    TF_RETURN_IF_ERROR(
        ctx->allocate_output(0, {routes.message_size()}, &messages));
    TF_RETURN_IF_ERROR(ctx->allocate_output(1, {num_owners_}, &sizes));
    TF_RETURN_IF_ERROR(ctx->allocate_output(2, {keys.n}, &places));
    routes.Write(&executor, messages->flat<int64_t>().data(),
                 sizes->flat<int32_t>().data(), places->flat<int32_t>().data());
    return absl::OkStatus();
  }

  int64_t num_features_;
  int64_t num_owners_;
};

class ReadKeyMessagesOp final : public tf::OpKernel {
 public:
  explicit ReadKeyMessagesOp(tf::OpKernelConstruction* ctx) : OpKernel(ctx) {
    OP_REQUIRES_OK(ctx, ctx->GetAttr("num_features", &num_features_));
  }

  void Compute(tf::OpKernelContext* ctx) override {
    OP_REQUIRES_OK(ctx, Run(ctx));
  }

 private:
  absl::Status Run(tf::OpKernelContext* ctx) {
    const tf::Tensor& messages = ctx->input(0);
    const tf::Tensor& sizes = ctx->input(1);
    if (messages.dims() != 1 || sizes.dims() != 1) {
      return absl::InvalidArgumentError(absl::StrCat(
          "`messages` and `sizes` must have rank 1. Received: messages.shape=",
          messages.shape().DebugString(),
          ", sizes.shape=", sizes.shape().DebugString(), "."));
    }
    const KeyMessages all = {
        messages.flat<int64_t>().data(), messages.NumElements(),
        sizes.flat<int32_t>().data(), sizes.NumElements(), num_features_};
    int64_t n;
    TF_RETURN_IF_ERROR(ToTensorFlow(all.CountKeys(&n)));
    tf::Tensor *ids, *features, *num_keys;
    TF_RETURN_IF_ERROR(ctx->allocate_output(0, {n}, &ids));
    TF_RETURN_IF_ERROR(ctx->allocate_output(1, {n}, &features));
    TF_RETURN_IF_ERROR(ctx->allocate_output(2, {all.num_senders}, &num_keys));
    all.Read(ids->flat<int64_t>().data(), features->flat<int32_t>().data(),
             num_keys->flat<int32_t>().data());
    return absl::OkStatus();
  }

  int64_t num_features_;
};

REGISTER_KERNEL_BUILDER(Name("Tfctr>RouteKeys").Device(tf::DEVICE_CPU),
                        RouteKeysOp);
REGISTER_KERNEL_BUILDER(Name("Tfctr>ReadKeyMessages").Device(tf::DEVICE_CPU),
                        ReadKeyMessagesOp);

}  // namespace
}  // namespace tfctr
