// Kernels of a training step: lookup, read, update.

#include <memory>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "tfctr_ops/cc/kernels/key_inputs.h"
#include "tfctr_ops/cc/kernels/resources.h"
#include "tfctr_ops/cc/kernels/step_clocks.h"

namespace tfctr {
namespace {

namespace tf = ::tensorflow;

// Beyond any that trains; squares of it still fit a float.
constexpr float kMaxLearningRate = 1e6f;

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
      "(Or another thread trains the layer: read between its steps.) "
      "Go back to a moment with `model.save_weights` and `load_weights`, which "
      "carry both."));
}

// What Lookup and Read share: their keys, and an output for the rows.
absl::Status PrepareRows(tf::OpKernelContext* ctx, EmbeddingStore* store,
                         KeyBatch* keys, float** rows) {
  TF_RETURN_IF_ERROR(KeysFromInputs(ctx, 1, keys));
  TF_RETURN_IF_ERROR(CheckStep(ctx, 3, store));
  tf::Tensor* output = nullptr;
  TF_RETURN_IF_ERROR(
      ctx->allocate_output(0, {keys->n, store->layout().dim()}, &output));
  *rows = output->flat<float>().data();
  return absl::OkStatus();
}

class LookupOp final : public StoreKernel {
 public:
  using StoreKernel::StoreKernel;

 protected:
  absl::Status Run(tf::OpKernelContext* ctx, EmbeddingStore* store,
                   Executor* executor) override {
    const BusyClock::Work work(&StepClocks::Get()->lookups);
    KeyBatch keys;
    float* rows;
    TF_RETURN_IF_ERROR(PrepareRows(ctx, store, &keys, &rows));
    TF_RETURN_IF_ERROR(CountsFromInput(ctx, 4, &keys));
    tf::Tensor* ticket = nullptr;
    TF_RETURN_IF_ERROR(ctx->allocate_output(1, tf::TensorShape({}), &ticket));
    TicketVariant variant;
    TF_RETURN_IF_ERROR(
        ToTensorFlow(store->Lookup(keys, executor, rows, &variant.ticket)));
    ticket->scalar<tf::Variant>()() = std::move(variant);
    return absl::OkStatus();
  }
};

class PrefetchOp final : public StoreKernel {
 public:
  explicit PrefetchOp(tf::OpKernelConstruction* ctx) : StoreKernel(ctx) {
    OP_REQUIRES_OK(ctx, ctx->GetAttr("unless_cached", &unless_cached_));
  }

 protected:
  absl::Status Run(tf::OpKernelContext* ctx, EmbeddingStore* store,
                   Executor* executor) override {
    KeyBatch keys;
    TF_RETURN_IF_ERROR(KeysFromInputs(ctx, 1, &keys));
    return ToTensorFlow(store->Prefetch(keys, executor, unless_cached_));
  }

 private:
  bool unless_cached_;
};

class ReadOp final : public StoreKernel {
 public:
  using StoreKernel::StoreKernel;

 protected:
  absl::Status Run(tf::OpKernelContext* ctx, EmbeddingStore* store,
                   Executor* executor) override {
    KeyBatch keys;
    float* rows;
    TF_RETURN_IF_ERROR(PrepareRows(ctx, store, &keys, &rows));
    return ToTensorFlow(store->Read(keys, executor, rows));
  }
};

class UpdateOp final : public StoreKernel {
 public:
  using StoreKernel::StoreKernel;

 protected:
  absl::Status Run(tf::OpKernelContext* ctx, EmbeddingStore* store,
                   Executor* executor) override {
    const BusyClock::Work work(&StepClocks::Get()->updates);
    std::shared_ptr<Ticket> ticket;
    TF_RETURN_IF_ERROR(TicketFromInput(ctx, store, &ticket));
    // Owned by the store until it has been applied.
    auto gradients = std::make_shared<tf::Tensor>(ctx->input(2));
    const tf::TensorShape expected({ticket->num_keys(), store->layout().dim()});
    if (gradients->shape() != expected) {
      return absl::InvalidArgumentError(absl::StrCat(
          "`gradients` must have one row per looked up key: shape ",
          expected.DebugString(), ". Received: gradients.shape=",
          gradients->shape().DebugString(), "."));
    }
    float learning_rate;
    TF_RETURN_IF_ERROR(
        ScalarFromInput(ctx, 3, "learning_rate", &learning_rate));
    // It would reach every row of the batch.
    if (!(learning_rate >= 0 && learning_rate <= kMaxLearningRate)) {
      return absl::InvalidArgumentError(absl::StrCat(
          "The learning rate of table '", store->options().name,
          "' must lie in [0, ", kMaxLearningRate, "]. Received: learning_rate=",
          learning_rate, ". Check the schedule."));
    }
    bool is_good;
    TF_RETURN_IF_ERROR(ScalarFromInput(ctx, 4, "is_good", &is_good));
    tf::Tensor* step = nullptr;
    TF_RETURN_IF_ERROR(ctx->allocate_output(0, tf::TensorShape({}), &step));
    return ToTensorFlow(store->Update(
        ticket, {gradients->flat<float>().data(), gradients, is_good},
        learning_rate, executor, &step->scalar<int64_t>()()));
  }

 private:
  static absl::Status TicketFromInput(tf::OpKernelContext* ctx,
                                      EmbeddingStore* store,
                                      std::shared_ptr<Ticket>* ticket) {
    tf::Variant input;
    TF_RETURN_IF_ERROR(ScalarFromInput(ctx, 1, "ticket", &input));
    const auto* variant = input.get<TicketVariant>();
    if (variant == nullptr || variant->ticket == nullptr) {
      return absl::InvalidArgumentError(absl::StrCat(
          "`ticket` must come from EmbeddingStoreLookup. Received: a variant "
          "of type ",
          input.TypeName(), "."));
    }
    const EmbeddingStore& asked = variant->ticket->store();
    if (&asked != store) {
      return absl::InvalidArgumentError(absl::StrCat(
          "`ticket` must come from a lookup in the same store, table '",
          store->options().name, "'. Received: a ticket of table '",
          asked.options().name, "'."));
    }
    *ticket = variant->ticket;
    return absl::OkStatus();
  }
};

REGISTER_KERNEL_BUILDER(
    Name("Tfctr>EmbeddingStoreLookup").Device(tf::DEVICE_CPU), LookupOp);
REGISTER_KERNEL_BUILDER(
    Name("Tfctr>EmbeddingStorePrefetch").Device(tf::DEVICE_CPU), PrefetchOp);
REGISTER_KERNEL_BUILDER(Name("Tfctr>EmbeddingStoreRead").Device(tf::DEVICE_CPU),
                        ReadOp);
REGISTER_KERNEL_BUILDER(
    Name("Tfctr>EmbeddingStoreUpdate").Device(tf::DEVICE_CPU), UpdateOp);

}  // namespace
}  // namespace tfctr
