// Kernels of row files: the weights of a store as two flat files, one of keys
// and one of values, as other systems write and read them.

#include <algorithm>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "tensorflow/core/lib/io/random_inputstream.h"
#include "tensorflow/core/platform/env.h"
#include "tensorflow/core/platform/path.h"
#include "tfctr_ops/cc/kernels/key_inputs.h"
#include "tfctr_ops/cc/kernels/resources.h"

namespace tfctr {
namespace {

namespace tf = ::tensorflow;

// Rows that are read or written at once.
constexpr int64_t kRowsAtOnce = 1 << 14;
constexpr int64_t kKeyBytes = sizeof(int64_t);

// A number in a file of 32-bit words: a float, or an int32 that the store keeps
// as two floats, its lower and its upper 16 bits, which are always finite.
class ValueFormat {
 public:
  ValueFormat(bool is_int32, int64_t dim) : is_int32_(is_int32), dim_(dim) {}

  // Bytes of a row in the file.
  int64_t row_bytes() const { return (is_int32_ ? dim_ / 2 : dim_) * 4; }

  void ToFile(const float* weights, char* to) const {
    if (!is_int32_) {
      std::memcpy(to, weights, static_cast<size_t>(row_bytes()));
      return;
    }
    for (int64_t c = 0; c < dim_; ++c) {
      const auto half = static_cast<uint16_t>(weights[c]);
      std::memcpy(to + c * 2, &half, 2);
    }
  }
  void FromFile(const char* from, float* weights) const {
    if (!is_int32_) {
      std::memcpy(weights, from, static_cast<size_t>(row_bytes()));
      return;
    }
    for (int64_t c = 0; c < dim_; ++c) {
      uint16_t half;
      std::memcpy(&half, from + c * 2, 2);
      weights[c] = half;
    }
  }

 private:
  const bool is_int32_;
  const int64_t dim_;  // Of the store.
};

// What both kernels are told.
class RowFileKernel : public StoreKernel {
 public:
  explicit RowFileKernel(tf::OpKernelConstruction* ctx) : StoreKernel(ctx) {
    std::string values;
    OP_REQUIRES_OK(ctx, ctx->GetAttr("values", &values));
    is_int32_ = values == "int32";
  }

 protected:
  ValueFormat FormatOf(EmbeddingStore* store) const {
    return ValueFormat(is_int32_, store->layout().dim());
  }

 private:
  bool is_int32_;
};

class WriteRowFilesOp final : public RowFileKernel {
 public:
  explicit WriteRowFilesOp(tf::OpKernelConstruction* ctx) : RowFileKernel(ctx) {
    OP_REQUIRES_OK(ctx, ctx->GetAttr("append", &append_));
  }

 protected:
  absl::Status Run(tf::OpKernelContext* ctx, EmbeddingStore* store,
                   Executor* executor) override {
    tf::tstring prefix;
    TF_RETURN_IF_ERROR(ScalarFromInput(ctx, 1, "prefix", &prefix));
    tf::Env* const env = ctx->env();
    TF_RETURN_IF_ERROR(env->RecursivelyCreateDir(
        std::string(tf::io::Dirname(std::string(prefix)))));
    const std::string names[] = {absl::StrCat(std::string(prefix), "-keys"),
                                 absl::StrCat(std::string(prefix), "-values")};
    // New files take the place of old ones when they are whole.
    const std::string suffix = append_ ? "" : ".draft";
    std::unique_ptr<tf::WritableFile> files[2];
    for (int i = 0; i < 2; ++i) {
      const std::string path = names[i] + suffix;
      TF_RETURN_IF_ERROR(append_ ? env->NewAppendableFile(path, &files[i])
                                 : env->NewWritableFile(path, &files[i]));
    }
    TF_RETURN_IF_ERROR(WriteRows(store, executor, files));
    for (int i = 0; i < 2; ++i) {
      TF_RETURN_IF_ERROR(files[i]->Close());
      if (append_) continue;
      TF_RETURN_IF_ERROR(env->RenameFile(names[i] + suffix, names[i]));
    }
    return absl::OkStatus();
  }

 private:
  absl::Status WriteRows(EmbeddingStore* store, Executor* executor,
                         const std::unique_ptr<tf::WritableFile>* files) {
    const ValueFormat format = FormatOf(store);
    const int64_t row_bytes = format.row_bytes();
    std::vector<char> keys(static_cast<size_t>(kRowsAtOnce * kKeyBytes));
    std::vector<char> values(static_cast<size_t>(kRowsAtOnce * row_bytes));
    int64_t n = 0;
    absl::Status written;
    const auto flush = [&] {
      const auto size = static_cast<size_t>(n);
      written.Update(
          files[0]->Append(absl::string_view(keys.data(), size * kKeyBytes)));
      written.Update(files[1]->Append(absl::string_view(
          values.data(), size * static_cast<size_t>(row_bytes))));
      n = 0;
    };
    const Status status =
        store->Visit(executor, [&](int64_t id, const float* weights) {
          std::memcpy(keys.data() + n * kKeyBytes, &id, kKeyBytes);
          format.ToFile(weights, values.data() + n * row_bytes);
          if (++n == kRowsAtOnce) flush();
        });
    flush();
    TF_RETURN_IF_ERROR(ToTensorFlow(status));
    return written;
  }

  bool append_;
};

class ReadRowFilesOp final : public RowFileKernel {
 public:
  using RowFileKernel::RowFileKernel;

 protected:
  absl::Status Run(tf::OpKernelContext* ctx, EmbeddingStore* store,
                   Executor* executor) override {
    const auto prefixes = ctx->input(1).flat<tf::tstring>();
    // Every pair is looked at before a row is changed.
    std::vector<int64_t> sizes;
    for (int64_t i = 0; i < prefixes.size(); ++i) {
      int64_t num_rows;
      TF_RETURN_IF_ERROR(NumRows(ctx->env(), prefixes(i), store, &num_rows));
      sizes.push_back(num_rows);
    }
    TF_RETURN_IF_ERROR(ToTensorFlow(store->Import(0, {}, 0, executor)));
    for (int64_t i = 0; i < prefixes.size(); ++i) {
      TF_RETURN_IF_ERROR(ReadRows(ctx->env(), prefixes(i),
                                  sizes[static_cast<size_t>(i)], store,
                                  executor));
    }
    return absl::OkStatus();
  }

 private:
  absl::Status NumRows(tf::Env* env, const std::string& prefix,
                       EmbeddingStore* store, int64_t* num_rows) const {
    tf::FileStatistics keys, values;
    TF_RETURN_IF_ERROR(env->Stat(prefix + "-keys", &keys));
    TF_RETURN_IF_ERROR(env->Stat(prefix + "-values", &values));
    *num_rows = keys.length / kKeyBytes;
    const int64_t row_bytes = FormatOf(store).row_bytes();
    if (keys.length == *num_rows * kKeyBytes &&
        values.length == *num_rows * row_bytes) {
      return absl::OkStatus();
    }
    return absl::DataLossError(absl::StrCat(
        "Table '", store->options().name,
        "' expects files of whole rows: ", kKeyBytes, " bytes of key, ",
        row_bytes, " bytes of values. Received: '", prefix, "-keys' of ",
        keys.length, " bytes and '", prefix, "-values' of ", values.length,
        ". The table is as it was."));
  }

  absl::Status ReadRows(tf::Env* env, const std::string& prefix,
                        int64_t num_rows, EmbeddingStore* store,
                        Executor* executor) const {
    std::unique_ptr<tf::RandomAccessFile> files[2];
    TF_RETURN_IF_ERROR(env->NewRandomAccessFile(prefix + "-keys", &files[0]));
    TF_RETURN_IF_ERROR(env->NewRandomAccessFile(prefix + "-values", &files[1]));
    tf::io::RandomAccessInputStream keys(files[0].get());
    tf::io::RandomAccessInputStream values(files[1].get());
    const ValueFormat format = FormatOf(store);
    const int64_t row_bytes = format.row_bytes(), dim = store->layout().dim();
    std::vector<int64_t> ids(static_cast<size_t>(kRowsAtOnce));
    std::vector<float> weights(static_cast<size_t>(kRowsAtOnce * dim));
    const int32_t feature = 0;
    tf::tstring bytes;
    for (int64_t start = 0; start < num_rows; start += kRowsAtOnce) {
      const int64_t n = std::min(kRowsAtOnce, num_rows - start);
      TF_RETURN_IF_ERROR(keys.ReadNBytes(n * kKeyBytes, &bytes));
      std::memcpy(ids.data(), bytes.data(), bytes.size());
      TF_RETURN_IF_ERROR(values.ReadNBytes(n * row_bytes, &bytes));
      for (int64_t i = 0; i < n; ++i) {
        format.FromFile(bytes.data() + i * row_bytes, weights.data() + i * dim);
      }
      TF_RETURN_IF_ERROR(ToTensorFlow(store->Write({ids.data(), n, &feature, 1},
                                                   weights.data(), executor)));
    }
    return absl::OkStatus();
  }
};

#define TFCTR_REGISTER(name, kernel) \
  REGISTER_KERNEL_BUILDER(Name(name).Device(tf::DEVICE_CPU), kernel)
TFCTR_REGISTER("Tfctr>EmbeddingStoreWriteRowFiles", WriteRowFilesOp);
TFCTR_REGISTER("Tfctr>EmbeddingStoreReadRowFiles", ReadRowFilesOp);
#undef TFCTR_REGISTER

}  // namespace
}  // namespace tfctr
