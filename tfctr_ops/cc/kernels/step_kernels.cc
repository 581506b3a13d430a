// Kernels of a training step: lookup, read, update.

#include <cmath>
#include <memory>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "tfctr_ops/cc/kernels/key_inputs.h"
#include "tfctr_ops/cc/kernels/resources.h"

namespace tfctr {
namespace {

namespace tf = ::tensorflow;

// The layer keeps the number of updates among its Keras weights. When weights
// are set without the rows, the two part, and going on would train or serve
// rows of another moment.
absl::Status CheckStep(tf::OpKernelContext* ctx, int index,
                       EmbeddingStore* store) {
  int64_t expected;
  TF_RETURN_IF_ERROR(ScalarFromInput(ctx, index, "expected_step", &expected));
  const int64_t step = store->step();
  if (expected < 0 || expected == step) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrCat(
      "The rows of table '", store->options().name, "' are those after ", step,
      " updates, but the layer's weights are those after ", expected,
      ". The weights were set without the rows, as by `set_weights` or "
      "EarlyStopping(restore_best_weights=True): neither can carry a table. "
      "Go back to a moment with `model.save_weights` and `load_weights`, which "
      "carry both."));
}

class LookupOp : public tf::OpKernel {
 public:
  explicit LookupOp(tf::OpKernelConstruction* ctx) : OpKernel(ctx) {}

  void Compute(tf::OpKernelContext* ctx) override {
    tf::core::RefCountPtr<StoreResource> resource;
    OP_REQUIRES_OK(
        ctx, tf::LookupResource(ctx, tf::HandleFromInput(ctx, 0), &resource));
    EmbeddingStore* store = resource->store.get();
    KeyBatch keys;
    OP_REQUIRES_OK(ctx, KeysFromInputs(ctx, 1, &keys));
    OP_REQUIRES_OK(ctx, CheckStep(ctx, 3, store));
    tf::Tensor* rows = nullptr;
    OP_REQUIRES_OK(
        ctx, ctx->allocate_output(0, {keys.n, store->layout().dim()}, &rows));
    tf::Tensor* ticket = nullptr;
    OP_REQUIRES_OK(ctx, ctx->allocate_output(1, tf::TensorShape({}), &ticket));
    DeviceExecutor executor(ctx, resource->num_threads);
    TicketVariant variant;
    OP_REQUIRES_OK(ctx, ToTensorFlow(store->Lookup(keys, &executor,
                                                   rows->flat<float>().data(),
                                                   &variant.ticket)));
    ticket->scalar<tf::Variant>()() = std::move(variant);
  }
};

class ReadOp : public tf::OpKernel {
 public:
  explicit ReadOp(tf::OpKernelConstruction* ctx) : OpKernel(ctx) {}

  void Compute(tf::OpKernelContext* ctx) override {
    tf::core::RefCountPtr<StoreResource> resource;
    OP_REQUIRES_OK(
        ctx, tf::LookupResource(ctx, tf::HandleFromInput(ctx, 0), &resource));
    EmbeddingStore* store = resource->store.get();
    KeyBatch keys;
    OP_REQUIRES_OK(ctx, KeysFromInputs(ctx, 1, &keys));
    OP_REQUIRES_OK(ctx, CheckStep(ctx, 3, store));
    tf::Tensor* rows = nullptr;
    OP_REQUIRES_OK(
        ctx, ctx->allocate_output(0, {keys.n, store->layout().dim()}, &rows));
    DeviceExecutor executor(ctx, resource->num_threads);
    OP_REQUIRES_OK(ctx, ToTensorFlow(store->Read(keys, &executor,
                                                 rows->flat<float>().data())));
  }
};

class UpdateOp : public tf::OpKernel {
 public:
  explicit UpdateOp(tf::OpKernelConstruction* ctx) : OpKernel(ctx) {}

  void Compute(tf::OpKernelContext* ctx) override {
    tf::core::RefCountPtr<StoreResource> resource;
    OP_REQUIRES_OK(
        ctx, tf::LookupResource(ctx, tf::HandleFromInput(ctx, 0), &resource));
    EmbeddingStore* store = resource->store.get();
    tf::Variant input;
    OP_REQUIRES_OK(ctx, ScalarFromInput(ctx, 1, "ticket", &input));
    const auto* variant = input.get<TicketVariant>();
    OP_REQUIRES(ctx, variant != nullptr && variant->ticket != nullptr,
                absl::InvalidArgumentError(absl::StrCat(
                    "`ticket` must come from EmbeddingStoreLookup. Received: a "
                    "variant of type ",
                    input.TypeName(), ".")));
    const EmbeddingStore& asked = variant->ticket->store();
    OP_REQUIRES(
        ctx, &asked == store,
        absl::InvalidArgumentError(absl::StrCat(
            "`ticket` must come from a lookup in the same store, table '",
            store->options().name, "'. Received: a ticket of table '",
            asked.options().name, "'.")));
    // Owned by the store until it has been applied.
    auto gradients = std::make_shared<tf::Tensor>(ctx->input(2));
    const tf::TensorShape expected(
        {variant->ticket->num_keys(), store->layout().dim()});
    OP_REQUIRES(ctx, gradients->shape() == expected,
                absl::InvalidArgumentError(absl::StrCat(
                    "`gradients` must have one row per looked up key: shape ",
                    expected.DebugString(), ". Received: gradients.shape=",
                    gradients->shape().DebugString(), ".")));
    float learning_rate;
    OP_REQUIRES_OK(ctx,
                   ScalarFromInput(ctx, 3, "learning_rate", &learning_rate));
    // It would reach every row of the batch.
    OP_REQUIRES(ctx, std::isfinite(learning_rate),
                absl::InvalidArgumentError(absl::StrCat(
                    "The learning rate of table '", store->options().name,
                    "' must be finite. Received: learning_rate=", learning_rate,
                    ". Check the schedule.")));
    tf::Tensor* step = nullptr;
    OP_REQUIRES_OK(ctx, ctx->allocate_output(0, tf::TensorShape({}), &step));
    DeviceExecutor executor(ctx, resource->num_threads);
    OP_REQUIRES_OK(
        ctx, ToTensorFlow(store->Update(
                 variant->ticket, {gradients->flat<float>().data(), gradients},
                 learning_rate, &executor, &step->scalar<int64_t>()())));
  }
};

REGISTER_KERNEL_BUILDER(
    Name("Tfctr>EmbeddingStoreLookup").Device(tf::DEVICE_CPU), LookupOp);
REGISTER_KERNEL_BUILDER(Name("Tfctr>EmbeddingStoreRead").Device(tf::DEVICE_CPU),
                        ReadOp);
REGISTER_KERNEL_BUILDER(
    Name("Tfctr>EmbeddingStoreUpdate").Device(tf::DEVICE_CPU), UpdateOp);

}  // namespace
}  // namespace tfctr
