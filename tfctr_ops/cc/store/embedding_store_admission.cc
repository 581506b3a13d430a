// Which keys of a lookup get a row, and what of that a snapshot keeps.

#include <utility>

#include "tfctr_ops/cc/store/admission_format.h"
#include "tfctr_ops/cc/store/embedding_store.h"

namespace tfctr {

void EmbeddingStore::AskAdmission(int64_t step,
                                  const std::vector<ShardFetch>& fetches,
                                  Executor* executor,
                                  std::vector<Newcomers>* newcomers,
                                  std::vector<int64_t>* absent) {
  executor->ParallelFor(num_shards(), [&](int64_t s) {
    const auto i = static_cast<size_t>(s);
    Newcomers& own = (*newcomers)[i];
    static const std::vector<Shard::DiskCopy> kNone;
    const auto& copies = fetches.empty() ? kNone : fetches[i].copies;
    size_t copy = 0;  // In the order of the keys.
    size_t num_left = 0;
    for (size_t k = 0; k < own.keys.size(); ++k) {
      const PlacedKey& key = *own.keys[k];
      bool has_row = false;
      for (; copy < copies.size() && copies[copy].key == &key; ++copy) {
        has_row |= Shard::IsCopyOf(copies[copy]);
      }
      if (has_row) continue;
      own.keys[num_left] = &key;
      own.occurrences[num_left] = own.occurrences[k];
      own.answers.push_back(
          admission_->Ask(s, key.feature, key.id, own.occurrences[k], step));
      (*absent)[i] -= !own.answers.back().admits;
      ++num_left;
    }
    own.keys.resize(num_left);
  });
}

void EmbeddingStore::Admit(int64_t s, const Newcomers& newcomers) {
  int64_t refused = 0;
  for (size_t k = 0; k < newcomers.keys.size(); ++k) {
    const PlacedKey& key = *newcomers.keys[k];
    const Admission::Answer& answer = newcomers.answers[k];
    if (answer.admits) {
      shard(s).Insert(key);
    } else {
      admission_->Count(s, key.feature, key.id, answer.count);
      refused += newcomers.occurrences[k];
    }
  }
  refused_keys_ += refused;
}

std::vector<char> EmbeddingStore::CopyAdmission() const {
  if (admission_ == nullptr) return {};
  // Nearly always none, and then no shard is searched.
  std::vector<CountTable::Entry> admitted;
  for (const auto& shard : shards_) {
    const RamTier& rows = shard->rows();
    if (shard->unknown() == 0) continue;
    for (int64_t slot = 0; slot < rows.num_slots(); ++slot) {
      const RowHeader& header = *rows.Header(static_cast<uint32_t>(slot));
      if (!header.live || header.known) continue;
      admitted.push_back({header.id, header.feature, Admission::kAdmitted});
    }
  }
  return admission_->Save(admitted);
}

Status EmbeddingStore::ExportAdmission(Executor* executor,
                                       std::vector<char>* bytes) {
  std::lock_guard<std::mutex> step_lock(step_mutex_);
  Status status = FlushLocked(executor);
  if (!status.ok()) return status;
  const std::vector<std::unique_lock<std::mutex>> locks = LockShards();
  *bytes = CopyAdmission();
  if (!bytes->empty()) SealAdmission(bytes);
  return Status::Ok();
}

Status EmbeddingStore::ImportAdmission(const std::vector<char>& bytes,
                                       const std::vector<int32_t>& features,
                                       Executor* executor) {
  const auto limit = static_cast<int32_t>(options_.feature_seeds.size());
  for (const int32_t feature : features) {
    if (feature >= 0 && feature < limit) continue;
    return Status::InvalidArgument(
        "`features` must lie in [0, " + std::to_string(limit) +
        "). Received: " + std::to_string(feature) + ".");
  }
  Status status = Flush(executor);
  if (!status.ok() || bytes.empty() || admission_ == nullptr) return status;
  const std::vector<std::unique_lock<std::mutex>> locks = LockShards();
  return admission_->Load("admission of table " + options_.name, bytes,
                          features, [](uint32_t, int64_t) { return true; });
}

}  // namespace tfctr
