// Kernels on a batch whose rows lie in tables of others: its distinct keys, and
// the ways from rows to occurrences and back.

#include <algorithm>
#include <atomic>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "tfctr_ops/cc/kernels/key_inputs.h"
#include "tfctr_ops/cc/kernels/resources.h"
#include "tfctr_ops/cc/store/key_routes.h"
#include "tfctr_ops/cc/store/lock_order.h"
#include "tfctr_ops/cc/store/row_kernels.h"

namespace tfctr {
namespace {

namespace tf = ::tensorflow;

// Keys of one task.
constexpr int64_t kPiece = 2048;

int64_t NumPieces(int64_t n) { return (n + kPiece - 1) / kPiece; }

template <typename Task>
void ForEach(int64_t n, Executor* executor, const Task& task) {
  executor->ParallelFor(NumPieces(n), [&](int64_t piece) {
    const int64_t end = std::min((piece + 1) * kPiece, n);
    for (int64_t i = piece * kPiece; i < end; ++i) task(i);
  });
}

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
    KeyRoutes routes;
    TF_RETURN_IF_ERROR(ToTensorFlow(
        routes.Route(batch, {num_features_}, 1, has_counts_, &executor)));

    const int64_t n = routes.num_distinct();
    tf::Tensor *ids, *features, *words, *counts, *places;
    TF_RETURN_IF_ERROR(ctx->allocate_output(0, {n}, &ids));
    TF_RETURN_IF_ERROR(ctx->allocate_output(1, {n}, &features));
    TF_RETURN_IF_ERROR(ctx->allocate_output(2, {n}, &words));
    TF_RETURN_IF_ERROR(
        ctx->allocate_output(3, {has_counts_ ? n : int64_t{0}}, &counts));
    TF_RETURN_IF_ERROR(ctx->allocate_output(4, {batch.n}, &places));

    Buffer<int64_t> message, found_words;
    int32_t size, num_keys;
    int32_t* const place = places->flat<int32_t>().data();
    routes.Write(&executor, message.Resize(routes.message_size()), &size,
                 &num_keys, place);
    // The message tells how many keys each feature has, then their ids, then
    // their counts.
    const int64_t* const found_ids = message.data() + num_features_;
    const auto* const found_counts =
        reinterpret_cast<const int32_t*>(found_ids + n);
    Buffer<int32_t> found_features, order;
    int32_t* end = found_features.Resize(n);
    for (int64_t f = 0; f < num_features_; ++f) {
      end = std::fill_n(end, message.data()[f], static_cast<int32_t>(f));
    }
    found_words.Resize(n);
    order.Resize(n);
    ForEach(n, &executor, [&](int64_t i) {
      found_words.data()[i] = WordOf(found_ids[i], found_features.data()[i]);
      order.data()[i] = LocksOf(found_words.data()[i]);
    });
    LocksToPlaces(n, order.data());
    int64_t* const to_ids = ids->flat<int64_t>().data();
    int32_t* const to_features = features->flat<int32_t>().data();
    int64_t* const to_words = words->flat<int64_t>().data();
    int32_t* const to_counts = counts->flat<int32_t>().data();
    ForEach(n, &executor, [&](int64_t i) {
      const int32_t to = order.data()[i];
      to_ids[to] = found_ids[i];
      to_features[to] = found_features.data()[i];
      to_words[to] = found_words.data()[i];
      if (has_counts_) to_counts[to] = found_counts[i];
    });
    ForEach(batch.n, &executor, [&](int64_t i) {
      if (place[i] >= 0) place[i] = order.data()[place[i]];
    });
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
    const int64_t n = places.NumElements();
    const int64_t width = rows.dim_size(1);
    const int64_t num_rows = rows.dim_size(0);
    const float* const from = rows.flat<float>().data();
    const int32_t* const place = places.flat<int32_t>().data();
    tf::Tensor* gathered;
    TF_RETURN_IF_ERROR(ctx->allocate_output(0, {n, dim_}, &gathered));
    float* const to = gathered->flat<float>().data();
    const std::vector<float> zeros(static_cast<size_t>(dim_), 0.0f);
    std::atomic<bool> all_there{true};
    DeviceExecutor executor(ctx, /*max_threads=*/0);
    executor.ParallelFor(NumPieces(n), [&](int64_t piece) {
      const float* sources[kPiece];
      int32_t positions[kPiece];
      const int64_t start = piece * kPiece;
      const int64_t size = std::min(kPiece, n - start);
      for (int64_t i = 0; i < size; ++i) {
        const int32_t at = place[start + i];
        const bool is_row = 0 <= at && at < num_rows;
        if (!is_row && at != -1) all_there = false;
        sources[i] = is_row ? from + at * width : zeros.data();
        positions[i] = static_cast<int32_t>(i);
      }
      BestRowKernels().copy(sources, positions, size, dim_, to + start * dim_);
    });
    return all_there ? absl::OkStatus() : OutOfRange(num_rows);
  }

  static absl::Status OutOfRange(int64_t num_rows) {
    return absl::InvalidArgumentError(absl::StrCat(
        "`places` must be -1, or places of rows. Received: others, of ",
        num_rows, " rows."));
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
          "and "
          "`num_rows` must not be negative. Received: gradients.shape=",
          gradients.shape().DebugString(), ", places.shape=",
          places.shape().DebugString(), ", num_rows=", num_rows, "."));
    }
    const int64_t n = places.NumElements();
    const int64_t dim = gradients.dim_size(1);
    const float* const from = gradients.flat<float>().data();
    const int32_t* const place = places.flat<int32_t>().data();
    tf::Tensor* output;
    TF_RETURN_IF_ERROR(ctx->allocate_output(0, {num_rows, dim}, &output));
    float* const sums = output->flat<float>().data();
    DeviceExecutor executor(ctx, /*max_threads=*/0);
    // Each task has rows of its own, so that sums are in the order of the
    // batch, however many there are.
    const int64_t num_tasks =
        std::clamp<int64_t>(NumPieces(n), 1, executor.parallelism());
    executor.ParallelFor(num_tasks, [&](int64_t task) {
      const int64_t first = num_rows * task / num_tasks;
      const int64_t end = num_rows * (task + 1) / num_tasks;
      float* const own_sums = sums + first * dim;
      std::fill(own_sums, sums + end * dim, 0.0f);
      int32_t positions[kPiece], own_places[kPiece];
      int64_t found = 0;
      const auto accumulate = [&] {
        BestRowKernels().accumulate(from, positions, own_places, found, dim,
                                    own_sums);
        found = 0;
      };
      for (int64_t i = 0; i < n; ++i) {
        positions[found] = static_cast<int32_t>(i);
        own_places[found] = static_cast<int32_t>(place[i] - first);
        found += first <= place[i] && place[i] < end;
        if (found == kPiece) accumulate();
      }
      accumulate();
    });
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
