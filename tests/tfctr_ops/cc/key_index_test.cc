#include "tfctr_ops/cc/store/key_index.h"

#include <algorithm>
#include <unordered_map>
#include <utility>
#include <vector>

#include "tests/tfctr_ops/cc/check.h"
#include "tests/tfctr_ops/cc/random.h"
#include "tfctr_ops/cc/store/arena.h"

namespace tfctr {
namespace {

using testing::Random;

using Entry = std::pair<uint32_t, uint32_t>;  // (tag, slot)

std::vector<uint32_t> SlotsOf(const KeyIndex& index, uint32_t tag) {
  std::vector<uint32_t> slots;
  for (auto c = index.Find(tag); c.found(); c = index.FindNext(c)) {
    slots.push_back(c.slot());
  }
  std::sort(slots.begin(), slots.end());
  return slots;
}

// An index beside a std::unordered_multimap that is told the same.
class CheckedIndex {
 public:
  void Insert(uint32_t tag, uint32_t slot) {
    index_.Insert(tag, slot);
    model_.emplace(tag, slot);
  }

  void Erase(uint32_t tag, uint32_t slot) {
    index_.Erase(tag, slot);
    auto [it, end] = model_.equal_range(tag);
    while (it != end && it->second != slot) ++it;
    CHECK(it != end);
    model_.erase(it);
  }

  void CheckTag(uint32_t tag) const {
    std::vector<uint32_t> expected;
    const auto [begin, end] = model_.equal_range(tag);
    for (auto it = begin; it != end; ++it) expected.push_back(it->second);
    std::sort(expected.begin(), expected.end());
    CHECK_EQ(SlotsOf(index_, tag), expected);
  }

  void CheckAll() const {
    CHECK_EQ(index_.size(), static_cast<int64_t>(model_.size()));
    for (auto it = model_.begin(); it != model_.end();) {
      CheckTag(it->first);
      it = model_.equal_range(it->first).second;
    }
  }

  int64_t size() const { return index_.size(); }

 private:
  Arena arena_;
  KeyIndex index_{&arena_};
  std::unordered_multimap<uint32_t, uint32_t> model_;
};

TEST(AnEmptyIndexFindsNothing) {
  CheckedIndex index;
  CHECK_EQ(index.size(), 0);
  for (const uint32_t tag : {0U, 1U, 63U, 0x80000000U, 0xffffffffU}) {
    index.CheckTag(tag);
  }
}

TEST(TheFirstAndLastTagAndSlotAreOrdinary) {
  CheckedIndex index;
  for (const uint32_t tag : {0U, 0xffffffffU}) {
    for (const uint32_t slot : {0U, 0xfffffffeU}) index.Insert(tag, slot);
  }
  index.CheckAll();
  index.Erase(0, 0);
  index.Erase(0xffffffffU, 0xfffffffeU);
  index.CheckAll();
}

TEST(EveryEntryIsFoundAfterManySplits) {
  CheckedIndex index;
  Random random(1);
  for (uint32_t slot = 0; slot < 300000; ++slot) {
    index.Insert(static_cast<uint32_t>(random.Bits()), slot);
  }
  index.CheckAll();
  for (int i = 0; i < 10000; ++i) {
    index.CheckTag(static_cast<uint32_t>(random.Bits()));
  }
}

TEST(RandomInsertsAndErasesEqualAMultimap) {
  // From nearly all tags different to nearly all equal.
  for (const int64_t num_tags :
       {int64_t{1} << 32, int64_t{3000}, int64_t{50}}) {
    CheckedIndex index;
    Random random(2);
    std::vector<Entry> entries;
    uint32_t next_slot = 0;
    for (int i = 0; i < 60000; ++i) {
      // The index swells and shrinks in turns.
      const bool swells = i / 10000 % 2 == 0;
      if (entries.empty() || random.Below(10) < (swells ? 7 : 3)) {
        // Spread out, so that also the high bits differ.
        const auto tag =
            static_cast<uint32_t>(random.Below(num_tags)) * 0x9e3779b1U;
        index.Insert(tag, next_slot);
        entries.emplace_back(tag, next_slot++);
        // Few tags have long runs, which take time to walk.
        if (num_tags > 50 || i % 100 == 0) index.CheckTag(tag);
      } else {
        std::swap(entries[static_cast<size_t>(
                      random.Below(static_cast<int64_t>(entries.size())))],
                  entries.back());
        const auto [tag, slot] = entries.back();
        entries.pop_back();
        index.Erase(tag, slot);
        if (num_tags > 50 || i % 100 == 0) index.CheckTag(tag);
      }
      if (i % 10000 == 9999) index.CheckAll();
    }
  }
}

// Inserts all, erases in random order, and looks everything up on the way.
void InsertAndEraseAll(std::vector<Entry> entries) {
  CheckedIndex index;
  for (const auto& [tag, slot] : entries) index.Insert(tag, slot);
  index.CheckAll();
  Random random(3);
  random.Shuffle(&entries);
  const size_t third = entries.size() / 3;
  for (size_t i = 0; i < entries.size(); ++i) {
    index.Erase(entries[i].first, entries[i].second);
    if (i % third == third - 1) index.CheckAll();
  }
  CHECK_EQ(index.size(), 0);
}

TEST(GrowthEndsWhenAllTagsAreEqual) {
  for (const uint32_t tag : {0U, 0x12345678U, 0xffffffffU}) {
    std::vector<Entry> entries;
    for (uint32_t slot = 0; slot < 4000; ++slot)
      entries.emplace_back(tag, slot);
    InsertAndEraseAll(entries);
  }
}

TEST(GrowthEndsWhenTagsDifferInLowBitsOnly) {
  std::vector<Entry> entries;
  for (uint32_t slot = 0; slot < 9000; ++slot) {
    entries.emplace_back(0xabcde000U | slot % 2048, slot);
  }
  InsertAndEraseAll(entries);
}

TEST(GrowthEndsWhenTagsDifferInHighBitsOnly) {
  std::vector<Entry> entries;
  for (uint32_t slot = 0; slot < 6000; ++slot) {
    entries.emplace_back(slot << 20 | 7, slot);
  }
  InsertAndEraseAll(entries);
}

TEST(EntriesBesideACrowdedTagAreFound) {
  std::vector<Entry> entries;
  Random random(4);
  for (uint32_t slot = 0; slot < 6000; ++slot) {
    const auto other = static_cast<uint32_t>(random.Bits());
    entries.emplace_back(slot % 2 == 0 ? 0x77777777U : other, slot);
  }
  InsertAndEraseAll(entries);
}

TEST(ErasingClosesHolesInRunsThatWrapAround) {
  // A young index has few places, so that runs which begin at its last places
  // go on at its first, and neighbours get in each other's way.
  Random random(5);
  for (int round = 0; round < 200; ++round) {
    CheckedIndex index;
    std::vector<Entry> entries;
    uint32_t next_slot = 0;
    const auto new_entry = [&] {
      const auto tag = static_cast<uint32_t>(58 + random.Below(10)) % 64 +
                       64 * static_cast<uint32_t>(random.Below(3));
      entries.emplace_back(tag, next_slot++);
      index.Insert(tag, entries.back().second);
    };
    const int64_t num_entries = 1 + random.Below(40);
    while (index.size() < num_entries) new_entry();
    for (int i = 0; i < 30; ++i) {
      std::swap(entries[static_cast<size_t>(random.Below(num_entries))],
                entries.back());
      const auto [tag, slot] = entries.back();
      entries.pop_back();
      index.Erase(tag, slot);
      index.CheckAll();
      new_entry();
      index.CheckAll();
    }
  }
}

TEST(AnInsertAllocatesNothingOnceRoomIsMade) {
  Arena arena;
  KeyIndex index(&arena);
  Random random(6);
  for (uint32_t slot = 0; slot < 50000; ++slot) {
    // Some of them crowded into one tag.
    const auto tag = slot % 2 == 0 && slot < 8000
                         ? 0x12345678U
                         : static_cast<uint32_t>(random.Bits());
    index.MakeRoom(tag);
    const int64_t allocated = arena.allocated_bytes();
    index.Insert(tag, slot);
    CHECK_EQ(arena.allocated_bytes(), allocated);
  }
  CHECK_EQ(index.size(), 50000);
}

TEST(AViewFindsWhatTheIndexFinds) {
  Arena arena;
  KeyIndex index(&arena);
  for (uint32_t slot = 0; slot < 10000; ++slot) {
    const uint32_t tag = slot * 0x9e3779b1U;
    index.view().Prefetch(tag);
    CHECK(!index.view().Find(tag).found());
    index.Insert(tag, slot);
    CHECK_EQ(index.view().Find(tag).slot(), slot);
  }
  const KeyIndex::View view = index.view();
  for (uint32_t slot = 0; slot < 10000; ++slot) {
    const uint32_t tag = slot * 0x9e3779b1U;
    view.Prefetch(tag);
    CHECK_EQ(view.Find(tag).slot(), slot);
    CHECK_EQ(SlotsOf(index, tag), std::vector<uint32_t>{slot});
  }
}

}  // namespace
}  // namespace tfctr
