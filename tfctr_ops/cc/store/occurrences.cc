#include "tfctr_ops/cc/store/occurrences.h"

#include <algorithm>
#include <atomic>
#include <string>
#include <vector>

#include "tfctr_ops/cc/store/row_kernels.h"

namespace tfctr {
namespace {

// Occurrences of one task.
constexpr int64_t kPiece = 2048;

int64_t NumPieces(int64_t n) { return (n + kPiece - 1) / kPiece; }

}  // namespace

Status GatherWeights(const Occurrences& occurrences, const float* rows,
                     int64_t width, int64_t dim, Executor* executor,
                     float* gathered) {
  const std::vector<float> zeros(static_cast<size_t>(dim), 0.0f);
  // One that is no place, if there is any.
  std::atomic<int32_t> wrong{-1};
  executor->ParallelFor(NumPieces(occurrences.n), [&](int64_t piece) {
    const float* sources[kPiece];
    int32_t positions[kPiece];
    const int64_t start = piece * kPiece;
    const int64_t size = std::min(kPiece, occurrences.n - start);
    for (int64_t i = 0; i < size; ++i) {
      const int32_t at = occurrences.places[start + i];
      const bool is_row = 0 <= at && at < occurrences.num_rows;
      if (!is_row && at != -1) wrong = at;
      sources[i] = is_row ? rows + at * width : zeros.data();
      positions[i] = static_cast<int32_t>(i);
    }
    BestRowKernels().copy(sources, positions, size, dim,
                          gathered + start * dim);
  });
  if (wrong == -1) return Status::Ok();
  return Status::InvalidArgument(
      "`places` must be -1, or places of rows. Received: " +
      std::to_string(wrong) + ", of " + std::to_string(occurrences.num_rows) +
      " rows.");
}

void SumGradients(const Occurrences& occurrences, const float* gradients,
                  int64_t dim, Executor* executor, float* sums) {
  const int64_t num_rows = occurrences.num_rows;
  const int32_t* const place = occurrences.places;
  // Each task has rows of its own, so that sums are in the order of the batch,
  // however many there are.
  const int64_t num_tasks =
      std::clamp<int64_t>(NumPieces(occurrences.n), 1, executor->parallelism());
  executor->ParallelFor(num_tasks, [&](int64_t task) {
    const int64_t first = num_rows * task / num_tasks;
    const int64_t end = num_rows * (task + 1) / num_tasks;
    float* const own_sums = sums + first * dim;
    std::fill(own_sums, sums + end * dim, 0.0f);
    int32_t positions[kPiece], own_places[kPiece];
    int64_t found = 0;
    const auto accumulate = [&] {
      BestRowKernels().accumulate(gradients, positions, own_places, found, dim,
                                  own_sums);
      found = 0;
    };
    for (int64_t i = 0; i < occurrences.n; ++i) {
      positions[found] = static_cast<int32_t>(i);
      own_places[found] = static_cast<int32_t>(place[i] - first);
      found += first <= place[i] && place[i] < end;
      if (found == kPiece) accumulate();
    }
    accumulate();
  });
}

}  // namespace tfctr
