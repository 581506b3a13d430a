// Kernels that send the distinct keys of a batch to their owners.

#include <vector>

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
    OP_REQUIRES_OK(ctx, ctx->GetAttr("sends_counts", &sends_counts_));
  }

  void Compute(tf::OpKernelContext* ctx) override {
    OP_REQUIRES_OK(ctx, Run(ctx));
  }

 private:
  absl::Status Run(tf::OpKernelContext* ctx) {
    KeyBatch keys;
    TF_RETURN_IF_ERROR(KeysFromInputs(ctx, 0, &keys));
    TF_RETURN_IF_ERROR(CountsFromInput(ctx, 2, &keys));
    DeviceExecutor executor(ctx, /*max_threads=*/0);
    KeyRoutes routes;
    TF_RETURN_IF_ERROR(ToTensorFlow(routes.Route(
        keys, num_features_, num_owners_, sends_counts_, &executor)));
    tf::Tensor *messages, *sizes, *num_keys, *places;
    TF_RETURN_IF_ERROR(
        ctx->allocate_output(0, {routes.message_size()}, &messages));
    TF_RETURN_IF_ERROR(ctx->allocate_output(1, {num_owners_}, &sizes));
    TF_RETURN_IF_ERROR(ctx->allocate_output(2, {num_owners_}, &num_keys));
    TF_RETURN_IF_ERROR(ctx->allocate_output(3, {keys.n}, &places));
    routes.Write(&executor, messages->flat<int64_t>().data(),
                 sizes->flat<int32_t>().data(),
                 num_keys->flat<int32_t>().data(),
                 places->flat<int32_t>().data());
    return absl::OkStatus();
  }

  std::vector<int64_t> num_features_;
  int64_t num_owners_;
  bool sends_counts_;
};

class ReadKeyMessagesOp final : public tf::OpKernel {
 public:
  explicit ReadKeyMessagesOp(tf::OpKernelConstruction* ctx) : OpKernel(ctx) {
    OP_REQUIRES_OK(ctx, ctx->GetAttr("num_features", &num_features_));
    OP_REQUIRES_OK(ctx, ctx->GetAttr("has_counts", &has_counts_));
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
    const KeyMessages all = {messages.flat<int64_t>().data(),
                             messages.NumElements(),
                             sizes.flat<int32_t>().data(),
                             sizes.NumElements(),
                             num_features_,
                             has_counts_};
    int64_t n;
    TF_RETURN_IF_ERROR(ToTensorFlow(all.CountKeys(&n)));
    tf::Tensor *ids, *features, *num_keys, *counts;
    TF_RETURN_IF_ERROR(ctx->allocate_output(0, {n}, &ids));
    TF_RETURN_IF_ERROR(ctx->allocate_output(1, {n}, &features));
    TF_RETURN_IF_ERROR(ctx->allocate_output(2, {all.num_senders}, &num_keys));
    TF_RETURN_IF_ERROR(
        ctx->allocate_output(3, {has_counts_ ? n : int64_t{0}}, &counts));
    all.Read(ids->flat<int64_t>().data(), features->flat<int32_t>().data(),
             num_keys->flat<int32_t>().data(), counts->flat<int32_t>().data());
    return absl::OkStatus();
  }

  int64_t num_features_;
  bool has_counts_;
};

REGISTER_KERNEL_BUILDER(Name("Tfctr>RouteKeys").Device(tf::DEVICE_CPU),
                        RouteKeysOp);
REGISTER_KERNEL_BUILDER(Name("Tfctr>ReadKeyMessages").Device(tf::DEVICE_CPU),
                        ReadKeyMessagesOp);

}  // namespace
}  // namespace tfctr
