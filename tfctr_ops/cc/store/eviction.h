// Eviction: which rows of a shard leave memory when there is no room.
//
// kClock: a hand goes round the slots, looks at several times as many rows as
// must leave, and takes those that were updated least often, where updates long
// ago count less. It needs no memory, and nothing to be done when a row is used
// but to note that in its header. Rows that are used once, as in a scan, are
// the first to leave.
//
// kLru: the row whose last training lookup or write is the longest ago. Reads,
// updates and exports are no uses; to be brought up for a later batch is one.
//
// kLfu: the row that had the fewest updates in all its life when it was last
// used, those before it was on disk included, which its header counts; of those
// that are equal, the least recently used. Counts above 16 may be equal when
// they differ by less than an eighth. Nothing grows old: what was popular once
// stays. Rows that were brought up for a later batch leave last, until it has
// come.
//
// kLru and kLfu keep lists of slots, 8 bytes a row.
//
// Thread safety: none; the shard's lock guards it.

#ifndef TFCTR_OPS_CC_STORE_EVICTION_H_
#define TFCTR_OPS_CC_STORE_EVICTION_H_

#include <cstdint>
#include <vector>

#include "tfctr_ops/cc/store/arena.h"
#include "tfctr_ops/cc/store/ram_tier.h"
#include "tfctr_ops/cc/store/store_options.h"

namespace tfctr {

// The highest RowHeader::score.
constexpr uint32_t kMaxScore = 3;

class Eviction {
 public:
  // `rows` and `arena` must outlive it.
  Eviction(EvictionPolicy policy, const RamTier* rows, Arena* arena);
  Eviction(const Eviction&) = delete;
  Eviction& operator=(const Eviction&) = delete;

  // Whether a training lookup raises the scores of the rows it finds.
  bool keeps_scores() const { return policy_ == EvictionPolicy::kClock; }

  // A row came: `used` is whether a batch uses it now, not later. REQUIRES: its
  // header is written.
  void Add(uint32_t slot, bool used);
  // A training lookup found these rows.
  void Use(const uint32_t* slots, int64_t n) {
    if (!nodes_.empty()) MoveToFront(slots, n);
  }
  // A row leaves. REQUIRES: it was added.
  void Remove(uint32_t slot) {
    if (!nodes_.empty()) Unlink(NodeOf(slot));
  }

  // All rows have left.
  void Clear();

  // Appends to `victims` the slots of up to `wanted` rows that should leave
  // next: fewer only if all others are among the `num_held` rows of a batch,
  // whose marks are their places in `held`.
  void Choose(int64_t wanted, const uint32_t* held, int64_t num_held,
              std::vector<uint32_t>* victims);

 private:
  struct Node {
    uint32_t next;
    uint32_t previous;
  };
  struct Batch {
    const uint32_t* slots;
    int64_t size;

    bool Holds(uint32_t slot, const RowHeader& header) const {
      return header.mark < size && slots[header.mark] == slot;
    }
  };

  void ChooseByClock(int64_t wanted, const Batch& held,
                     std::vector<uint32_t>* victims);
  void ChooseFromLists(int64_t wanted, const Batch& held,
                       std::vector<uint32_t>* victims);

  // The lists are rings. Each has a node of its own, its number, between the
  // one used last, which follows it, and the one used longest ago.
  static constexpr uint32_t kNodesShift = 9;
  static constexpr uint32_t kNodesAtOnce = 1U << kNodesShift;
  static uint32_t NodeOf(uint32_t slot) { return slot + kNodesAtOnce; }
  Node& node(uint32_t i) const {
    return nodes_[i >> kNodesShift][i & (kNodesAtOnce - 1)];
  }
  void AddNodes();
  uint32_t ListOf(const RowHeader& header) const;
  void Link(uint32_t i, uint32_t list);
  void Unlink(uint32_t i);
  void MoveToFront(const uint32_t* slots, int64_t n);

  const EvictionPolicy policy_;
  const RamTier* const rows_;
  Arena* const arena_;
  // Of kLru and kLfu: nodes of lists, then of slots.
  std::vector<Node*> nodes_;
  // Of kClock:
  int64_t hand_ = 0;   // The slot it looks at next.
  uint32_t step_ = 0;  // The last update of any row the hand saw.
  uint32_t measured_step_ = 0;
  int64_t num_chosen_ = 0;      // Since then.
  double chosen_a_step_ = 0.0;  // A mean over the last steps.
};

}  // namespace tfctr

#endif  // TFCTR_OPS_CC_STORE_EVICTION_H_
