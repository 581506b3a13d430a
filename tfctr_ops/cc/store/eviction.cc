#include "tfctr_ops/cc/store/eviction.h"

#include <algorithm>
#include <cstring>

namespace tfctr {
namespace {

// Levels of frequency: no update, then eight for each power of two. Counts up
// to 16 have a level each.
constexpr uint32_t kLevelsOfPower = 8;
constexpr uint32_t kNumLevels = 32 * kLevelsOfPower + 2;

uint32_t LevelOf(uint32_t count) {
  if (count == 0) return 0;
  const auto number = static_cast<float>(count);
  uint32_t bits;
  std::memcpy(&bits, &number, sizeof(bits));
  // The exponent and the first three bits behind the point.
  return (bits >> 20) - (127 * kLevelsOfPower) + 1;
}

// The lists of kLfu: one for each level, and one for what waits for its batch.
constexpr uint32_t kWaiting = kNumLevels;
constexpr uint32_t kNumLists = kWaiting + 1;

// The hand looks at this many times as many rows as must leave. More looks find
// better rows and take longer.
constexpr int64_t kChoice = 8;
// An update counts half as much after this many times as many rows have left as
// memory holds. Longer is better while the popular rows stay the same, shorter
// when they become others.
constexpr double kHalfLife = 4.0;
// Rows may sink this far below the level of no update before all count alike.
constexpr int64_t kSunkLevels = 256;
constexpr int64_t kNumRanks = kSunkLevels + kNumLevels;

struct Candidate {
  uint32_t slot;
  uint32_t rank;
};

// Appends the slots of the `wanted` candidates of the lowest ranks, in order.
void TakeLowest(const std::vector<Candidate>& candidates, int64_t wanted,
                std::vector<uint32_t>* slots) {
  int64_t num_of_rank[kNumRanks] = {};
  for (const Candidate& candidate : candidates) ++num_of_rank[candidate.rank];
  // Of the highest rank that is taken, as many as are still wanted.
  uint32_t last = 0;
  while (last < kNumRanks - 1 && num_of_rank[last] < wanted) {
    wanted -= num_of_rank[last++];
  }
  for (const Candidate& candidate : candidates) {
    if (candidate.rank < last || (candidate.rank == last && wanted-- > 0)) {
      slots->push_back(candidate.slot);
    }
  }
}

}  // namespace

Eviction::Eviction(EvictionPolicy policy, const RamTier* rows, Arena* arena)
    : policy_(policy), rows_(rows), arena_(arena) {
  static_assert(kNumLists <= kNodesAtOnce, "They are the first nodes.");
  if (policy != EvictionPolicy::kLru && policy != EvictionPolicy::kLfu) return;
  AddNodes();
  for (uint32_t list = 0; list < kNumLists; ++list) node(list) = {list, list};
}

void Eviction::AddNodes() {
  nodes_.reserve(nodes_.size() + 1);
  nodes_.push_back(reinterpret_cast<Node*>(
      arena_->Allocate(int64_t{kNodesAtOnce} * int64_t{sizeof(Node)})));
}

uint32_t Eviction::ListOf(const RowHeader& header) const {
  return policy_ == EvictionPolicy::kLfu ? LevelOf(header.count) : 0;
}

void Eviction::Link(uint32_t i, uint32_t list) {
  Node& head = node(list);
  node(i) = {head.next, list};
  node(head.next).previous = i;
  head.next = i;
}

void Eviction::Unlink(uint32_t i) {
  const Node& gone = node(i);
  node(gone.next).previous = gone.previous;
  node(gone.previous).next = gone.next;
}

void Eviction::Add(uint32_t slot, bool used) {
  if (nodes_.empty()) {
    // What is brought up for later must outlast some rounds of the hand.
    if (!used) rows_->Header(slot)->score = kMaxScore;
    return;
  }
  const uint32_t i = NodeOf(slot);
  while (i >> kNodesShift >= nodes_.size()) AddNodes();
  const bool waits = !used && policy_ == EvictionPolicy::kLfu;
  Link(i, waits ? kWaiting : ListOf(*rows_->Header(slot)));
}

void Eviction::Clear() {
  step_ = 0;
  measured_step_ = 0;
  num_chosen_ = 0;
}

void Eviction::MoveToFront(const uint32_t* slots, int64_t n) {
  constexpr int64_t kAhead = 8;
  for (int64_t at = 0; at < n; ++at) {
    if (at + 2 * kAhead < n) {
      __builtin_prefetch(&node(NodeOf(slots[at + 2 * kAhead])));
    }
    if (at + kAhead < n) {
      const Node& later = node(NodeOf(slots[at + kAhead]));
      __builtin_prefetch(&node(later.next));
      __builtin_prefetch(&node(later.previous));
    }
    const uint32_t i = NodeOf(slots[at]);
    Unlink(i);
    Link(i, ListOf(*rows_->Header(slots[at])));
  }
}

void Eviction::Choose(int64_t wanted, const uint32_t* held, int64_t num_held,
                      std::vector<uint32_t>* victims) {
  if (wanted <= 0) return;
  if (nodes_.empty()) {
    ChooseByClock(wanted, {held, num_held}, victims);
  } else {
    ChooseFromLists(wanted, {held, num_held}, victims);
  }
}

void Eviction::ChooseFromLists(int64_t wanted, const Batch& held,
                               std::vector<uint32_t>* victims) {
  for (uint32_t list = 0; list < kNumLists && wanted > 0; ++list) {
    for (uint32_t i = node(list).previous; i != list && wanted > 0;
         i = node(i).previous) {
      const uint32_t slot = i - kNodesAtOnce;
      if (held.Holds(slot, *rows_->Header(slot))) continue;
      victims->push_back(slot);
      --wanted;
    }
  }
}

void Eviction::ChooseByClock(int64_t wanted, const Batch& held,
                             std::vector<uint32_t>* victims) {
  constexpr int64_t kAhead = 12;
  static thread_local std::vector<Candidate> candidates;
  const RamTier::View rows = rows_->view();
  const int64_t num_slots = rows_->num_slots();
  if (step_ > measured_step_) {
    const auto steps = static_cast<double>(step_ - measured_step_);
    const double now = static_cast<double>(num_chosen_) / steps;
    chosen_a_step_ += (now - chosen_a_step_) / 8.0;
    measured_step_ = step_;
    num_chosen_ = 0;
  }
  const double sinks_a_step =
      kLevelsOfPower * chosen_a_step_ /
      (kHalfLife * static_cast<double>(std::max<int64_t>(rows_->size(), 1)));
  // Each round lowers the scores of all rows it passes, so in the last one only
  // rows of the batch are left out.
  for (uint32_t round = 0; round <= kMaxScore; ++round) {
    candidates.clear();
    for (int64_t look = 0; look < num_slots; ++look) {
      if (static_cast<int64_t>(candidates.size()) == kChoice * wanted) break;
      const auto slot = static_cast<uint32_t>(hand_);
      if (++hand_ == num_slots) hand_ = 0;
      if (hand_ + kAhead < num_slots) {
        __builtin_prefetch(rows.Row(static_cast<uint32_t>(hand_ + kAhead)));
      }
      RowHeader* header = RowLayout::Header(rows.Row(slot));
      if (!header->live || held.Holds(slot, *header)) continue;
      step_ = std::max(step_, header->last_step);
      if (header->score > 0) {
        --header->score;
        continue;
      }
      const double sunk = sinks_a_step * (step_ - header->last_step);
      const int64_t rank =
          kSunkLevels + LevelOf(header->count) -
          static_cast<int64_t>(std::min<double>(sunk, kNumRanks));
      candidates.push_back(
          {slot, static_cast<uint32_t>(std::max<int64_t>(rank, 0))});
    }
    if (static_cast<int64_t>(candidates.size()) >= wanted) break;
  }
  const size_t before = victims->size();
  TakeLowest(candidates, wanted, victims);
  // Of equal rows, those leave first that were not looked at for longest.
  if (victims->size() > before) {
    hand_ = (int64_t{victims->back()} + 1) % num_slots;
  }
  num_chosen_ += static_cast<int64_t>(victims->size() - before);
}

}  // namespace tfctr
