#include "tfctr_ops/cc/store/admission.h"

#include <algorithm>
#include <cstring>
#include <numeric>

#include "tfctr_ops/cc/store/admission_format.h"
#include "tfctr_ops/cc/store/hash.h"

namespace tfctr {
namespace {

using Kind = AdmissionOptions::Kind;

// Fixed: a filter outlives its store, in snapshots.
constexpr uint64_t kFilterSalt = 0x6a09e667f3bcc908ULL;
constexpr uint64_t kDrawSalt = 0xbb67ae8584caa73bULL;

// A number in [0, 1).
double Draw(uint64_t seed, int64_t id, int64_t step) {
  const uint64_t key = Mix64(seed ^ Mix64(static_cast<uint64_t>(id)));
  const uint64_t word = Mix64((key ^ kDrawSalt) + static_cast<uint64_t>(step));
  return static_cast<double>(word >> 11) * 0x1p-53;
}

// By multiplication alone, whose results are the same everywhere.
double Power(double base, int64_t exponent) {
  double power = 1.0;
  for (; exponent > 0; exponent >>= 1, base *= base) {
    if (exponent & 1) power *= base;
  }
  return power;
}

template <typename T>
void Append(const T* from, int64_t n, std::vector<char>* bytes) {
  const auto* begin = reinterpret_cast<const char*>(from);
  bytes->insert(bytes->end(), begin,
                begin + n * static_cast<int64_t>(sizeof(T)));
}

}  // namespace

Admission::Admission(const StoreOptions& options)
    : options_(options),
      tables_(size_t{1} << options.shard_bits, CountTable(options.salt)),
      filter_features_(options.feature_seeds.size()) {
  std::iota(filter_features_.begin(), filter_features_.end(), 0);
  const AdmissionOptions& own = options.admission;
  if (own.kind == Kind::kBloom) {
    filter_ = std::make_unique<CountingBloomFilter>(
        own.expected_keys, own.false_positive_rate, own.min_count);
  }
}

Status Admission::TooLarge(const StoreOptions& options) {
  const AdmissionOptions& own = options.admission;
  const int64_t bytes = CountingBloomFilter::BytesFor(
      own.expected_keys, own.false_positive_rate, own.min_count);
  return Status::ResourceExhausted(
      "The system has no memory for table '" + options.name +
      "': the filter of its admission takes " + std::to_string(bytes) +
      " bytes. Received: expected_keys=" + std::to_string(own.expected_keys) +
      ". Lower `expected_keys`, or raise `false_positive_rate`.");
}

uint64_t Admission::FilterHash(uint32_t feature, int64_t id) const {
  return HashKey(kFilterSalt, filter_features_[feature], id);
}

Admission::Answer Admission::Ask(int64_t shard, uint32_t feature, int64_t id,
                                 int64_t occurrences, int64_t step) const {
  const AdmissionOptions& own = options_.admission;
  uint32_t before = table(shard).Find(feature, id);
  if (before == kAdmitted) return {true, before};
  if (own.kind == Kind::kProbability) {
    return {Draw(options_.feature_seeds[feature], id, step) >=
                Power(1.0 - own.probability, occurrences),
            0};
  }
  if (filter_ != nullptr) before = filter_->Count(FilterHash(feature, id));
  const int64_t count = before + occurrences;
  // Beyond the threshold it is not needed, and might not fit.
  return {count >= own.min_count,
          static_cast<uint32_t>(std::min(count, own.min_count))};
}

void Admission::Count(int64_t shard, uint32_t feature, int64_t id,
                      uint32_t count) {
  if (count == 0) return;  // As a lookup may say; a table has no such entries.
  if (filter_ != nullptr) {
    filter_->Raise(FilterHash(feature, id), count);
  } else if (options_.admission.kind == Kind::kCount) {
    table(shard).Set(feature, id, count);
  }
}

void Admission::Clear() {
  for (CountTable& counts : tables_) counts.Clear();
  if (filter_ != nullptr) filter_->Clear();
  std::iota(filter_features_.begin(), filter_features_.end(), 0);
}

std::vector<char> Admission::Save(
    const std::vector<CountTable::Entry>& admitted) const {
  AdmissionHeader header = {};
  std::memcpy(header.magic, AdmissionHeader::kMagic, sizeof(header.magic));
  header.version = AdmissionHeader::kVersion;
  header.num_entries = admitted.size();
  for (const CountTable& counts : tables_) {
    header.num_entries += static_cast<uint64_t>(counts.size());
  }
  if (filter_ != nullptr) {
    header.num_features = filter_features_.size();
    header.num_hashes = static_cast<uint64_t>(filter_->num_hashes());
    header.num_counters = static_cast<uint64_t>(filter_->num_counters());
    header.counter_bytes = static_cast<uint64_t>(filter_->counter_bytes());
  }
  std::vector<char> bytes;
  bytes.reserve(sizeof(header) +
                header.num_entries * sizeof(CountTable::Entry) +
                header.num_features * sizeof(uint32_t) +
                static_cast<size_t>(filter_bytes()) + sizeof(uint32_t));
  Append(&header, 1, &bytes);
  Append(admitted.data(), static_cast<int64_t>(admitted.size()), &bytes);
  std::vector<CountTable::Entry> entries;  // Of one shard at a time.
  for (const CountTable& counts : tables_) {
    entries.clear();
    counts.AppendTo(&entries);
    Append(entries.data(), static_cast<int64_t>(entries.size()), &bytes);
  }
  if (filter_ != nullptr) {
    Append(filter_features_.data(),
           static_cast<int64_t>(filter_features_.size()), &bytes);
    Append(filter_->data(), filter_->bytes(), &bytes);
  }
  bytes.resize(bytes.size() + sizeof(uint32_t));
  return bytes;
}

void Admission::NumberFeatures(const uint32_t* saved, int64_t num_saved,
                               const std::vector<int32_t>& features) {
  uint32_t next = 0;
  for (int64_t f = 0; f < num_saved; ++f) next = std::max(next, saved[f] + 1);
  // Those that were not saved get numbers that nobody had.
  std::iota(filter_features_.begin(), filter_features_.end(), next);
  for (size_t f = 0; f < features.size(); ++f) {
    if (static_cast<int64_t>(f) >= num_saved) break;
    filter_features_[static_cast<size_t>(features[f])] = saved[f];
  }
}

Status Admission::Load(
    const std::string& path, const std::vector<char>& bytes,
    const std::vector<int32_t>& features,
    const std::function<bool(uint32_t feature, int64_t id)>& takes) {
  AdmissionParts parts;
  Status status = OpenAdmission(path, bytes, &parts);
  if (!status.ok()) return status;
  const AdmissionHeader& header = parts.header;
  for (uint64_t i = 0; i < header.num_entries; ++i) {
    const uint32_t feature = parts.entries[i].feature;
    if (feature >= features.size()) {
      return Status::InvalidArgument(
          "'" + path + "' has counts of feature " + std::to_string(feature) +
          ". Received: `features` for " + std::to_string(features.size()) +
          " features.");
    }
  }
  const bool same_filter =
      filter_ != nullptr &&
      header.num_counters == static_cast<uint64_t>(filter_->num_counters()) &&
      header.num_hashes == static_cast<uint64_t>(filter_->num_hashes());
  if (same_filter) {
    NumberFeatures(parts.filter_features,
                   static_cast<int64_t>(header.num_features), features);
    filter_->Merge(parts.counters, static_cast<int64_t>(header.counter_bytes));
  }
  const Kind kind = options_.admission.kind;
  for (uint64_t i = 0; i < header.num_entries; ++i) {
    const CountTable::Entry& entry = parts.entries[i];
    if (entry.count == 0) continue;
    const auto feature =
        static_cast<uint32_t>(features[static_cast<size_t>(entry.feature)]);
    if (!takes(feature, entry.id)) continue;
    if (entry.count == kAdmitted || kind == Kind::kCount) {
      const uint64_t hash = HashKey(options_.salt, feature, entry.id);
      table(ShardOf(hash, options_.shard_bits))
          .Set(feature, entry.id, entry.count);
    } else if (filter_ != nullptr) {
      const auto most = static_cast<uint32_t>(options_.admission.min_count);
      filter_->Raise(FilterHash(feature, entry.id),
                     std::min(entry.count, most));
    }
  }
  return Status::Ok();
}

}  // namespace tfctr
