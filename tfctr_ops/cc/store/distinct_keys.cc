#include "tfctr_ops/cc/store/distinct_keys.h"

#include <algorithm>

#include "tfctr_ops/cc/store/lock_order.h"

namespace tfctr {
namespace {

// Keys of one task.
constexpr int64_t kPiece = 2048;

template <typename Task>
void ForEach(int64_t n, Executor* executor, const Task& task) {
  const int64_t num_pieces = (n + kPiece - 1) / kPiece;
  executor->ParallelFor(num_pieces, [&](int64_t piece) {
    const int64_t end = std::min((piece + 1) * kPiece, n);
    for (int64_t i = piece * kPiece; i < end; ++i) task(i);
  });
}

}  // namespace

Status DistinctKeys::Find(const KeyBatch& batch, int64_t num_features,
                          bool has_counts, Executor* executor) {
  num_keys_ = batch.n;
  num_features_ = num_features;
  has_counts_ = has_counts;
  return routes_.Route(batch, {num_features}, 1, has_counts, executor);
}

void DistinctKeys::Write(Executor* executor, int64_t* ids, int32_t* features,
                         int64_t* words, int32_t* counts,
                         int32_t* places) const {
  const int64_t n = size();
  Buffer<int64_t> message, found_words;
  int32_t message_size, num_keys;
  routes_.Write(executor, message.Resize(routes_.message_size()), &message_size,
                &num_keys, places);
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
  ForEach(n, executor, [&](int64_t i) {
    found_words.data()[i] = WordOf(found_ids[i], found_features.data()[i]);
    order.data()[i] = LocksOf(found_words.data()[i]);
  });
  LocksToPlaces(n, order.data());
  ForEach(n, executor, [&](int64_t i) {
    const int32_t to = order.data()[i];
    ids[to] = found_ids[i];
    features[to] = found_features.data()[i];
    words[to] = found_words.data()[i];
    if (has_counts_) counts[to] = found_counts[i];
  });
  ForEach(num_keys_, executor, [&](int64_t i) {
    if (places[i] >= 0) places[i] = order.data()[places[i]];
  });
}

}  // namespace tfctr
