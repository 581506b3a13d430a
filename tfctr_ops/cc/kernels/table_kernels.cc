// Kernels that treat a store as a table: write, remove, expire, rows out and
// in, stats.

#include <algorithm>
#include <functional>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "tfctr_ops/cc/kernels/key_inputs.h"
#include "tfctr_ops/cc/kernels/resources.h"

namespace tfctr {
namespace {

namespace tf = ::tensorflow;

absl::Status CheckShape(const char* name, const tf::Tensor& tensor,
                        const tf::TensorShape& expected) {
  if (tensor.shape() == expected) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      "`", name, "` must have shape ", expected.DebugString(),
      ". Received: ", name, ".shape=", tensor.shape().DebugString(), "."));
}

class WriteOp final : public StoreKernel {
 public:
  using StoreKernel::StoreKernel;

 protected:
  absl::Status Run(tf::OpKernelContext* ctx, EmbeddingStore* store,
                   Executor* executor) override {
    KeyBatch keys;
    TF_RETURN_IF_ERROR(KeysFromInputs(ctx, 1, &keys));
    const tf::Tensor& weights = ctx->input(3);
    TF_RETURN_IF_ERROR(
        CheckShape("weights", weights, {keys.n, store->layout().dim()}));
    return ToTensorFlow(
        store->Write(keys, weights.flat<float>().data(), executor));
  }
};

class RemoveOp final : public StoreKernel {
 public:
  using StoreKernel::StoreKernel;

 protected:
  absl::Status Run(tf::OpKernelContext* ctx, EmbeddingStore* store,
                   Executor* executor) override {
    KeyBatch keys;
    TF_RETURN_IF_ERROR(KeysFromInputs(ctx, 1, &keys));
    tf::Tensor* removed = nullptr;
    TF_RETURN_IF_ERROR(ctx->allocate_output(0, tf::TensorShape({}), &removed));
    return ToTensorFlow(
        store->Remove(keys, executor, &removed->scalar<int64_t>()()));
  }
};

class ExportOp final : public StoreKernel {
 public:
  using StoreKernel::StoreKernel;

 protected:
  absl::Status Run(tf::OpKernelContext* ctx, EmbeddingStore* store,
                   Executor* executor) override {
    absl::Status allocated;
    const Status status =
        store->Export(executor, [&](int64_t n, RowArrays* rows) {
          allocated = Allocate(ctx, n, store->layout().num_floats(), rows);
          return allocated.ok()
                     ? Status::Ok()
                     : Status::ResourceExhausted("No memory for rows.");
        });
    TF_RETURN_IF_ERROR(allocated);
    return ToTensorFlow(status);
  }

 private:
  static absl::Status Allocate(tf::OpKernelContext* ctx, int64_t n,
                               int64_t num_floats, RowArrays* rows) {
    tf::Tensor* out[5];
    for (int i = 0; i < 5; ++i) {
      tf::TensorShape shape({n});
      if (i == 2) shape.AddDim(num_floats);
      TF_RETURN_IF_ERROR(ctx->allocate_output(i, shape, &out[i]));
    }
    *rows = {out[0]->flat<int64_t>().data(), out[1]->flat<int32_t>().data(),
             out[2]->flat<float>().data(), out[3]->flat<int64_t>().data(),
             out[4]->flat<int64_t>().data()};
    return absl::OkStatus();
  }
};

// Takes whole rows, and a step, into the store: `kTake` is what it does with
// them.
template <Status (EmbeddingStore::*kTake)(int64_t, const RowArrays&, int64_t,
                                          Executor*)>
class TakeRowsOp final : public StoreKernel {
 public:
  using StoreKernel::StoreKernel;

 protected:
  absl::Status Run(tf::OpKernelContext* ctx, EmbeddingStore* store,
                   Executor* executor) override {
    const int64_t n = ctx->input(1).NumElements();
    TF_RETURN_IF_ERROR(CheckShape("ids", ctx->input(1), {n}));
    TF_RETURN_IF_ERROR(CheckShape("features", ctx->input(2), {n}));
    TF_RETURN_IF_ERROR(
        CheckShape("rows", ctx->input(3), {n, store->layout().num_floats()}));
    TF_RETURN_IF_ERROR(CheckShape("last_steps", ctx->input(4), {n}));
    TF_RETURN_IF_ERROR(CheckShape("counts", ctx->input(5), {n}));
    int64_t step;
    TF_RETURN_IF_ERROR(ScalarFromInput(ctx, 6, "step", &step));
    // The store only reads what it is given.
    const auto ints = [&](int i) {
      return const_cast<int64_t*>(ctx->input(i).flat<int64_t>().data());
    };
    const RowArrays rows = {
        ints(1), const_cast<int32_t*>(ctx->input(2).flat<int32_t>().data()),
        const_cast<float*>(ctx->input(3).flat<float>().data()), ints(4),
        ints(5)};
    return ToTensorFlow((store->*kTake)(n, rows, step, executor));
  }
};

class ReadRowsOp final : public StoreKernel {
 public:
  using StoreKernel::StoreKernel;

 protected:
  absl::Status Run(tf::OpKernelContext* ctx, EmbeddingStore* store,
                   Executor* executor) override {
    KeyBatch keys;
    TF_RETURN_IF_ERROR(KeysFromInputs(ctx, 1, &keys));
    tf::Tensor *floats, *last_steps, *counts, *known;
    TF_RETURN_IF_ERROR(ctx->allocate_output(
        0, {keys.n, store->layout().num_floats()}, &floats));
    TF_RETURN_IF_ERROR(ctx->allocate_output(1, {keys.n}, &last_steps));
    TF_RETURN_IF_ERROR(ctx->allocate_output(2, {keys.n}, &counts));
    TF_RETURN_IF_ERROR(ctx->allocate_output(3, {keys.n}, &known));
    RowArrays rows = {nullptr, nullptr, floats->flat<float>().data(),
                      last_steps->flat<int64_t>().data(),
                      counts->flat<int64_t>().data()};
    return ToTensorFlow(
        store->ReadRows(keys, executor, &rows, known->flat<bool>().data()));
  }
};

class ExpireOp final : public StoreKernel {
 public:
  using StoreKernel::StoreKernel;

 protected:
  absl::Status Run(tf::OpKernelContext* ctx, EmbeddingStore* store,
                   Executor* executor) override {
    tf::Tensor* removed = nullptr;
    TF_RETURN_IF_ERROR(ctx->allocate_output(0, tf::TensorShape({}), &removed));
    return ToTensorFlow(store->Expire(executor, &removed->scalar<int64_t>()()));
  }
};

class ExportAdmissionOp final : public StoreKernel {
 public:
  using StoreKernel::StoreKernel;

 protected:
  absl::Status Run(tf::OpKernelContext* ctx, EmbeddingStore* store,
                   Executor* executor) override {
    std::vector<char> bytes;
    TF_RETURN_IF_ERROR(ToTensorFlow(store->ExportAdmission(executor, &bytes)));
    tf::Tensor* out = nullptr;
    const auto n = static_cast<int64_t>(bytes.size());
    TF_RETURN_IF_ERROR(ctx->allocate_output(0, {n}, &out));
    std::copy_n(bytes.data(), n, out->flat<uint8_t>().data());
    return absl::OkStatus();
  }
};

class ImportAdmissionOp final : public StoreKernel {
 public:
  using StoreKernel::StoreKernel;

 protected:
  absl::Status Run(tf::OpKernelContext* ctx, EmbeddingStore* store,
                   Executor* executor) override {
    const auto counts = ctx->input(1).flat<uint8_t>();
    const std::vector<char> bytes(counts.data(), counts.data() + counts.size());
    const auto numbers = ctx->input(2).flat<int32_t>();
    const std::vector<int32_t> features(numbers.data(),
                                        numbers.data() + numbers.size());
    return ToTensorFlow(store->ImportAdmission(bytes, features, executor));
  }
};

class StatsOp final : public StoreKernel {
 public:
  using StoreKernel::StoreKernel;

 protected:
  absl::Status Run(tf::OpKernelContext* ctx, EmbeddingStore* store,
                   Executor* executor) override {
    const StoreStats stats = store->Stats(executor);
    // In the order that the op documents.
    const int64_t values[] = {stats.rows,
                              stats.known_rows,
                              stats.row_bytes,
                              stats.memory_bytes,
                              stats.evicted_rows,
                              stats.skipped_updates,
                              stats.step,
                              stats.rows_on_disk_only,
                              stats.disk_bytes,
                              stats.rows_read,
                              stats.rows_written,
                              stats.expired_rows,
                              stats.refused_keys,
                              stats.tracked_keys,
                              stats.admission_bytes,
                              stats.updated_rows,
                              stats.clipped_rows,
                              stats.found_rows,
                              stats.inserted_rows,
                              stats.promoted_rows,
                              stats.stalled_lookups,
                              stats.stalled_nanoseconds};
    constexpr int64_t kNumValues = sizeof(values) / sizeof(values[0]);
    tf::Tensor* out = nullptr;
    TF_RETURN_IF_ERROR(ctx->allocate_output(0, {kNumValues}, &out));
    std::copy_n(values, kNumValues, out->flat<int64_t>().data());
    return absl::OkStatus();
  }
};

#define TFCTR_REGISTER(name, kernel) \
  REGISTER_KERNEL_BUILDER(Name(name).Device(tf::DEVICE_CPU), kernel)
TFCTR_REGISTER("Tfctr>EmbeddingStoreWrite", WriteOp);
TFCTR_REGISTER("Tfctr>EmbeddingStoreRemove", RemoveOp);
TFCTR_REGISTER("Tfctr>EmbeddingStoreExport", ExportOp);
TFCTR_REGISTER("Tfctr>EmbeddingStoreImport",
               TakeRowsOp<&EmbeddingStore::Import>);
TFCTR_REGISTER("Tfctr>EmbeddingStoreReadRows", ReadRowsOp);
TFCTR_REGISTER("Tfctr>EmbeddingStorePutRows",
               TakeRowsOp<&EmbeddingStore::PutRows>);
TFCTR_REGISTER("Tfctr>EmbeddingStoreExpire", ExpireOp);
TFCTR_REGISTER("Tfctr>EmbeddingStoreExportAdmission", ExportAdmissionOp);
TFCTR_REGISTER("Tfctr>EmbeddingStoreImportAdmission", ImportAdmissionOp);
TFCTR_REGISTER("Tfctr>EmbeddingStoreStats", StatsOp);
#undef TFCTR_REGISTER

}  // namespace
}  // namespace tfctr
