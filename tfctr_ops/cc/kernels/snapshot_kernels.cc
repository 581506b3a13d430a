// Kernels of snapshots: save, restore, and what a snapshot or a store on disk
// holds.

#include <algorithm>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "tfctr_ops/cc/kernels/key_inputs.h"
#include "tfctr_ops/cc/kernels/resources.h"
#include "tfctr_ops/cc/store/admission_format.h"
#include "tfctr_ops/cc/store/snapshot.h"
#include "tfctr_ops/cc/store/store_inspection.h"

namespace tfctr {
namespace {

namespace tf = ::tensorflow;

absl::Status StringFromInput(tf::OpKernelContext* ctx, int index,
                             const char* name, std::string* value) {
  tf::tstring text;
  TF_RETURN_IF_ERROR(ScalarFromInput(ctx, index, name, &text));
  *value = std::string(text);
  return absl::OkStatus();
}

absl::Status OutputStrings(tf::OpKernelContext* ctx, int index,
                           const std::vector<std::string>& values) {
  tf::Tensor* out = nullptr;
  TF_RETURN_IF_ERROR(
      ctx->allocate_output(index, {static_cast<int64_t>(values.size())}, &out));
  std::copy(values.begin(), values.end(), out->flat<tf::tstring>().data());
  return absl::OkStatus();
}

class BeginSaveOp final : public StoreKernel {
 public:
  using StoreKernel::StoreKernel;

 protected:
  absl::Status Run(tf::OpKernelContext* ctx, EmbeddingStore* store,
                   Executor* executor) override {
    std::string directory;
    TF_RETURN_IF_ERROR(StringFromInput(ctx, 1, "directory", &directory));
    std::string scratch;
    TF_RETURN_IF_ERROR(StringFromInput(ctx, 2, "scratch", &scratch));
    return ToTensorFlow(store->BeginSave(directory, scratch, executor));
  }
};

class FinishSaveOp final : public StoreKernel {
 public:
  using StoreKernel::StoreKernel;

 protected:
  absl::Status Run(tf::OpKernelContext* ctx, EmbeddingStore* store,
                   Executor*) override {
    std::string metadata;
    TF_RETURN_IF_ERROR(StringFromInput(ctx, 1, "metadata", &metadata));
    SaveReport report;
    TF_RETURN_IF_ERROR(ToTensorFlow(store->FinishSave(metadata, &report)));
    const int64_t values[] = {report.rows, report.rows_written, report.bytes,
                              report.linked_bytes};
    tf::Tensor* out = nullptr;
    TF_RETURN_IF_ERROR(ctx->allocate_output(0, {4}, &out));
    std::copy_n(values, 4, out->flat<int64_t>().data());
    return absl::OkStatus();
  }
};

class RestoreOp final : public StoreKernel {
 public:
  explicit RestoreOp(tf::OpKernelConstruction* ctx) : StoreKernel(ctx) {
    OP_REQUIRES_OK(ctx, ctx->GetAttr("owner", &owner_));
    OP_REQUIRES_OK(ctx, ctx->GetAttr("num_owners", &num_owners_));
  }

 protected:
  absl::Status Run(tf::OpKernelContext* ctx, EmbeddingStore* store,
                   Executor* executor) override {
    RestoreRequest request;
    const auto names = ctx->input(1).flat<tf::tstring>();
    request.directories.assign(names.data(), names.data() + names.size());
    const auto numbers = ctx->input(2).flat<int32_t>();
    request.features.assign(numbers.data(), numbers.data() + numbers.size());
    const auto words = ctx->input(3).flat<int64_t>();
    request.seeds.assign(words.data(), words.data() + words.size());
    request.owner = owner_;
    request.num_owners = num_owners_;
    return ToTensorFlow(store->Restore(request, executor));
  }

 private:
  int32_t owner_;
  int32_t num_owners_;
};

class SnapshotInfoOp final : public tf::OpKernel {
 public:
  explicit SnapshotInfoOp(tf::OpKernelConstruction* ctx) : OpKernel(ctx) {}

  void Compute(tf::OpKernelContext* ctx) override {
    std::string directory;
    OP_REQUIRES_OK(ctx, StringFromInput(ctx, 0, "directory", &directory));
    FileSystem* const files = FileSystem::Posix();
    Snapshot snapshot;
    OP_REQUIRES_OK(ctx,
                   ToTensorFlow(ReadManifest(files, directory, &snapshot)));
    const bool has_counts = snapshot.admission_bytes > 0;
    const auto num_segments = static_cast<int64_t>(snapshot.segments.size());
    const int64_t n = num_segments + has_counts;
    tf::Tensor *metadata, *facts, *names, *segments;
    OP_REQUIRES_OK(ctx, ctx->allocate_output(0, {}, &metadata));
    OP_REQUIRES_OK(ctx, ctx->allocate_output(1, {4}, &facts));
    OP_REQUIRES_OK(ctx, ctx->allocate_output(2, {n}, &names));
    OP_REQUIRES_OK(ctx, ctx->allocate_output(3, {n, 3}, &segments));
    metadata->scalar<tf::tstring>()() = snapshot.metadata;
    const int64_t values[] = {snapshot.step, snapshot.dim,
                              snapshot.num_slot_floats, snapshot.num_rows()};
    std::copy_n(values, 4, facts->flat<int64_t>().data());
    if (has_counts) {
      names->vec<tf::tstring>()(num_segments) = kAdmissionName;
      segments->matrix<int64_t>()(num_segments, 0) = 0;
      segments->matrix<int64_t>()(num_segments, 1) = 0;
      segments->matrix<int64_t>()(num_segments, 2) = snapshot.admission_bytes;
    }
    for (int64_t i = 0; i < num_segments; ++i) {
      const SnapshotSegment& segment =
          snapshot.segments[static_cast<size_t>(i)];
      const int64_t pages = (segment.num_rows + snapshot.rows_per_page - 1) /
                            std::max<int64_t>(1, snapshot.rows_per_page);
      names->vec<tf::tstring>()(i) = segment.name;
      segments->matrix<int64_t>()(i, 0) = segment.num_rows;
      segments->matrix<int64_t>()(i, 1) = segment.num_live;
      segments->matrix<int64_t>()(i, 2) = (1 + pages) * snapshot.page_bytes;
    }
  }
};

// Reads everything, and tells what is wrong with each segment.
class SnapshotDamageOp final : public tf::OpKernel {
 public:
  explicit SnapshotDamageOp(tf::OpKernelConstruction* ctx) : OpKernel(ctx) {}

  void Compute(tf::OpKernelContext* ctx) override {
    std::string directory;
    OP_REQUIRES_OK(ctx, StringFromInput(ctx, 0, "directory", &directory));
    FileSystem* const files = FileSystem::Posix();
    Snapshot snapshot;
    std::vector<std::string> damage;
    Status status = ReadManifest(files, directory, &snapshot);
    if (!status.ok()) damage.push_back(status.message());
    for (const SnapshotSegment& segment : snapshot.segments) {
      status = ReadSegment(files, directory, snapshot, segment,
                           [](std::byte*, int64_t) { return Status::Ok(); });
      if (!status.ok()) damage.push_back(status.message());
    }
    if (snapshot.admission_bytes > 0) {
      std::vector<char> counts;
      status = ReadAdmission(files, directory, snapshot, &counts);
      if (!status.ok()) damage.push_back(status.message());
    }
    OP_REQUIRES_OK(ctx, OutputStrings(ctx, 0, damage));
  }
};

// Reads all that a store has on disk.
class InspectStoreOp final : public tf::OpKernel {
 public:
  explicit InspectStoreOp(tf::OpKernelConstruction* ctx) : OpKernel(ctx) {}

  void Compute(tf::OpKernelContext* ctx) override {
    std::string directory;
    OP_REQUIRES_OK(ctx, StringFromInput(ctx, 0, "directory", &directory));
    StoreInspection found;
    OP_REQUIRES_OK(ctx, ToTensorFlow(InspectStore(FileSystem::Posix(),
                                                  directory, &found)));
    const int64_t values[] = {found.is_in_use,       found.dim,
                              found.num_slot_floats, found.row_bytes,
                              found.num_segments,    found.num_rows,
                              found.num_keys,        found.bytes};
    tf::Tensor* facts = nullptr;
    OP_REQUIRES_OK(ctx, ctx->allocate_output(0, {8}, &facts));
    std::copy_n(values, 8, facts->flat<int64_t>().data());
    OP_REQUIRES_OK(ctx, OutputStrings(ctx, 1, found.damage));
  }
};

#define TFCTR_REGISTER(name, kernel) \
  REGISTER_KERNEL_BUILDER(Name(name).Device(tf::DEVICE_CPU), kernel)
TFCTR_REGISTER("Tfctr>EmbeddingStoreBeginSave", BeginSaveOp);
TFCTR_REGISTER("Tfctr>EmbeddingStoreFinishSave", FinishSaveOp);
TFCTR_REGISTER("Tfctr>EmbeddingStoreRestore", RestoreOp);
TFCTR_REGISTER("Tfctr>SnapshotInfo", SnapshotInfoOp);
TFCTR_REGISTER("Tfctr>SnapshotDamage", SnapshotDamageOp);
TFCTR_REGISTER("Tfctr>InspectStore", InspectStoreOp);
#undef TFCTR_REGISTER

}  // namespace
}  // namespace tfctr
