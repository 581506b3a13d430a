// Rows of an EmbeddingStore back from snapshots.

#include <algorithm>
#include <string>
#include <utility>

#include "tfctr_ops/cc/store/admission_format.h"
#include "tfctr_ops/cc/store/embedding_store.h"

namespace tfctr {
namespace {

// Rows that are imported at once.
constexpr int64_t kRestoreRows = 1 << 16;

// Rows, column by column, as an import takes them.
class RowColumns {
 public:
  explicit RowColumns(int64_t num_floats) : num_floats_(num_floats) {}

  int64_t size() const { return static_cast<int64_t>(ids_.size()); }
  RowArrays arrays() {
    return {ids_.data(), features_.data(), floats_.data(), last_steps_.data(),
            counts_.data()};
  }
  void Add(std::byte* row, int32_t feature) {
    const RowHeader& header = *RowLayout::Header(row);
    ids_.push_back(header.id);
    features_.push_back(feature);
    last_steps_.push_back(header.last_step);
    counts_.push_back(header.count);
    const float* values = RowLayout::Weights(row);
    floats_.insert(floats_.end(), values, values + num_floats_);
  }
  void Clear() {
    ids_.clear();
    features_.clear();
    floats_.clear();
    last_steps_.clear();
    counts_.clear();
  }

 private:
  const int64_t num_floats_;
  std::vector<int64_t> ids_, last_steps_, counts_;
  std::vector<int32_t> features_;
  std::vector<float> floats_;
};

}  // namespace

Status EmbeddingStore::CheckRequest(const RestoreRequest& request) const {
  const auto limit = static_cast<int32_t>(options_.feature_seeds.size());
  for (const int32_t feature : request.features) {
    if (feature >= 0 && feature < limit) continue;
    return Status::InvalidArgument(
        "`features` must lie in [0, " + std::to_string(limit) +
        "). Received: " + std::to_string(feature) + ".");
  }
  const size_t num_seeds = request.seeds.size();
  if (num_seeds > 0 && num_seeds != options_.feature_seeds.size()) {
    return Status::InvalidArgument(
        "`seeds` must be one per feature: " + std::to_string(limit) +
        ". Received: " + std::to_string(num_seeds) + ".");
  }
  if (request.directories.empty() || request.owner < 0 ||
      request.owner >= request.num_owners) {
    return Status::InvalidArgument(
        "A restore takes one directory or more, and an owner below "
        "`num_owners`. Received: " +
        std::to_string(request.directories.size()) +
        " directories, owner=" + std::to_string(request.owner) +
        ", num_owners=" + std::to_string(request.num_owners) + ".");
  }
  return Status::Ok();
}

Status EmbeddingStore::CheckSnapshot(const std::string& directory,
                                     const Snapshot& snapshot) const {
  const auto kind = static_cast<int64_t>(options_.optimizer.kind);
  if (snapshot.dim == layout_.dim() && snapshot.optimizer == kind &&
      snapshot.num_slot_floats == layout_.num_slot_floats()) {
    return Status::Ok();
  }
  return Status::InvalidArgument(
      "Table '" + options_.name +
      "' has rows of dim=" + std::to_string(layout_.dim()) + " with " +
      std::to_string(layout_.num_slot_floats()) +
      " optimizer values, of optimizer kind " + std::to_string(kind) +
      ". Received: the snapshot '" + directory +
      "' with dim=" + std::to_string(snapshot.dim) + ", " +
      std::to_string(snapshot.num_slot_floats) + " values, kind " +
      std::to_string(snapshot.optimizer) +
      ". Build the table as it was when the snapshot was made.");
}

Status EmbeddingStore::OpenParts(const RestoreRequest& request,
                                 std::vector<SavedPart>* parts) const {
  FileSystem* const files = options_.ssd.files;
  for (const std::string& directory : request.directories) {
    SavedPart part;
    part.directory = directory;
    Status status = ReadManifest(files, directory, &part.snapshot);
    if (status.ok()) status = CheckSnapshot(directory, part.snapshot);
    if (status.ok() && admission_ != nullptr &&
        part.snapshot.admission_bytes > 0) {
      status = ReadAdmission(files, directory, part.snapshot, &part.admission);
    }
    if (!status.ok()) return status;
    parts->push_back(std::move(part));
    const SavedPart& first = parts->front();
    const int64_t step = parts->back().snapshot.step;
    if (step == first.snapshot.step) continue;
    return Status::InvalidArgument(
        "The parts of a table must be of one step. Received: '" +
        first.directory + "' of step " + std::to_string(first.snapshot.step) +
        ", '" + directory + "' of step " + std::to_string(step) +
        ". Restore another checkpoint.");
  }
  return Status::Ok();
}

Status EmbeddingStore::RestoreRows(const RestoreRequest& request,
                                   const SavedPart& part, Executor* executor) {
  RowColumns columns(layout_.num_floats());
  const auto import = [&] {
    Status status = ImportSome(0, columns.size(), columns.arrays(), executor);
    columns.Clear();
    return status;
  };
  const auto take = [&](std::byte* rows, int64_t n) {
    for (int64_t i = 0; i < n; ++i) {
      std::byte* row = rows + i * layout_.row_bytes();
      const RowHeader& header = *RowLayout::Header(row);
      if (header.feature >= request.features.size()) {
        return Status::InvalidArgument(
            "The snapshot '" + part.directory + "' has a row of feature " +
            std::to_string(header.feature) + ". Received: `features` for " +
            std::to_string(request.features.size()) + " features.");
      }
      const int32_t feature = request.features[header.feature];
      if (request.Takes(static_cast<uint32_t>(feature), header.id)) {
        columns.Add(row, feature);
      }
    }
    return columns.size() < kRestoreRows ? Status::Ok() : import();
  };
  Status status;
  for (const SnapshotSegment& segment : part.snapshot.segments) {
    if (!status.ok()) return status;
    status = ReadSegment(options_.ssd.files, part.directory, part.snapshot,
                         segment, take);
  }
  return status.ok() ? import() : status;
}

Status EmbeddingStore::Restore(const RestoreRequest& request,
                               Executor* executor) {
  std::vector<SavedPart> parts;
  Status status = CheckRequest(request);
  if (status.ok()) status = OpenParts(request, &parts);
  if (!status.ok()) return status;
  std::lock_guard<std::mutex> save_lock(save_mutex_);
  AbandonSave();
  std::lock_guard<std::mutex> step_lock(step_mutex_);
  int64_t num_rows = 0;
  for (const SavedPart& part : parts) num_rows += part.snapshot.num_rows();
  // Owners have about as many each.
  status = CheckFits(num_rows / request.num_owners);
  if (status.ok() && ssd_ != nullptr) status = ssd_->error();
  if (!status.ok()) return status;
  Clear(parts.front().snapshot.step, executor);
  {
    const std::vector<std::unique_lock<std::mutex>> locks = LockShards();
    std::copy(request.seeds.begin(), request.seeds.end(),
              options_.feature_seeds.begin());
  }
  for (const SavedPart& part : parts) {
    if (status.ok()) status = RestoreRows(request, part, executor);
  }
  for (const SavedPart& part : parts) {
    if (!status.ok() || part.admission.empty()) continue;
    const std::vector<std::unique_lock<std::mutex>> locks = LockShards();
    status =
        admission_->Load(part.directory + "/" + kAdmissionName, part.admission,
                         request.features, [&](uint32_t feature, int64_t id) {
                           return request.Takes(feature, id);
                         });
  }
  if (!status.ok()) Clear(0, executor);
  return status;
}

}  // namespace tfctr
