#include "tfctr_ops/cc/store/store_inspection.h"

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <set>
#include <string>
#include <thread>
#include <tuple>
#include <vector>

#include "tests/tfctr_ops/cc/check.h"
#include "tests/tfctr_ops/cc/faulty_file_system.h"
#include "tests/tfctr_ops/cc/random.h"
#include "tests/tfctr_ops/cc/temporary_directory.h"
#include "tfctr_ops/cc/store/row_layout.h"
#include "tfctr_ops/cc/store/ssd_tier.h"

namespace tfctr {
namespace {

using testing::FaultyFileSystem;
using testing::Random;
using testing::TemporaryDirectory;
using Call = FaultyFileSystem::Call;
using Fault = FaultyFileSystem::Fault;
using Names = std::vector<std::string>;

constexpr int64_t kNumShards = 4;

std::unique_ptr<SsdTier> Open(const TemporaryDirectory& directory,
                              int64_t dim) {
  SsdOptions options;
  options.directory = directory.path();
  options.ram_bytes = 0;  // Chunks of one page.
  std::unique_ptr<SsdTier> tier;
  CHECK_OK(SsdTier::Open(options, RowLayout(dim, 1), kNumShards, &tier));
  return tier;
}

// Appends a row of the key, and returns where.
Location Append(SsdTier* tier, int64_t shard, uint32_t feature, int64_t id) {
  std::vector<std::byte> row(static_cast<size_t>(tier->layout().row_bytes));
  RowHeader* const header = RowLayout::Header(row.data());
  header->id = id;
  header->feature = feature;
  header->known = 1;
  header->live = 1;
  Location location = kNowhere;
  CHECK(
      tier->Append(shard, row.data(), SsdTier::Purpose::kEviction, &location));
  return location;
}

void Write(SsdTier* tier) {
  for (int64_t shard = 0; shard < kNumShards; ++shard) tier->Seal(shard);
  tier->FinishWrites();
}

StoreInspection Inspect(const SsdTier& tier,
                        FileSystem* files = FileSystem::Posix()) {
  StoreInspection found;
  CHECK_OK(InspectStore(files, tier.directory(), &found));
  return found;
}

// Rows of pages of one and of two sectors.
TEST(RowsAndKeysAreCounted) {
  for (const int64_t dim : {2, 1500}) {
    const TemporaryDirectory directory;
    const std::unique_ptr<SsdTier> tier = Open(directory, dim);
    Random random(1);
    std::set<std::tuple<int64_t, uint32_t, int64_t>> keys;
    for (int i = 0; i < 1000; ++i) {
      const int64_t id = random.Below(200) - 100;
      const auto feature = static_cast<uint32_t>(random.Below(2));
      const int64_t shard = (id & 3) ^ feature;
      keys.emplace(shard, feature, id);
      Append(tier.get(), shard, feature, id);
    }
    Write(tier.get());
    const StoreInspection found = Inspect(*tier);
    CHECK(found.is_in_use);
    CHECK_EQ(found.dim, dim);
    CHECK_EQ(found.num_slot_floats, 1);
    CHECK_EQ(found.row_bytes, tier->layout().row_bytes);
    CHECK_EQ(found.num_rows, 1000);
    CHECK_EQ(found.num_keys, static_cast<int64_t>(keys.size()));
    CHECK_EQ(found.bytes, tier->used_bytes());
    CHECK_EQ(found.damage, Names());
  }
}

TEST(AStoreInUseIsNeverTakenForDamaged) {
  const TemporaryDirectory directory;
  const std::unique_ptr<SsdTier> tier = Open(directory, 200);
  std::atomic<bool> done{false};
  // Segments fill, become stale and go.
  std::thread owner([&] {
    std::vector<Location> all;
    while (!done) {
      for (int i = 0; i < 500; ++i) all.push_back(Append(tier.get(), 0, 0, i));
      for (const Location location : all) {
        tier->Drop(0, location, SsdTier::Purpose::kEviction);
      }
      all.clear();
    }
  });
  for (int i = 0; i < 50; ++i) {
    const StoreInspection found = Inspect(*tier);
    CHECK_EQ(found.damage, Names());
    CHECK_LE(found.num_keys, 500);
  }
  done = true;
  owner.join();
}

TEST(AFileThatVanishesIsPassedOver) {
  const TemporaryDirectory directory;
  const std::unique_ptr<SsdTier> tier = Open(directory, 2);
  for (int64_t shard = 0; shard < kNumShards; ++shard) {
    Append(tier.get(), shard, 0, shard);
  }
  Write(tier.get());
  // At the first look into a file, and at the second.
  for (const int64_t skip : {0, 5}) {
    FaultyFileSystem files;
    files.set_watcher(
        [&, opened = int64_t{0}](Call call, const std::string& path) mutable {
          if (call == Call::kOpen && opened++ == skip) {
            std::filesystem::remove(path);
          }
        });
    const StoreInspection found = Inspect(*tier, &files);
    CHECK_EQ(found.damage, Names());
    CHECK_EQ(found.num_rows, skip == 0 ? 3 : 2);
  }
}

TEST(AFileThatCannotBeReadIsDamage) {
  const TemporaryDirectory directory;
  const std::unique_ptr<SsdTier> tier = Open(directory, 2);
  Append(tier.get(), 0, 0, 1);
  Write(tier.get());
  for (const Call call : {Call::kOpen, Call::kRead}) {
    for (const int64_t skip : {0, 1}) {
      FaultyFileSystem files;
      files.Fail(call, Fault::kIoError, skip);
      const StoreInspection found = Inspect(*tier, &files);
      CHECK_EQ(found.damage.size(), size_t{1});
      CHECK(found.damage[0].find(tier->directory() + "/segment-") !=
            std::string::npos);
    }
  }
}

TEST(ADirectoryThatIsNotThereIsAnError) {
  const TemporaryDirectory directory;
  StoreInspection found;
  const Status status =
      InspectStore(FileSystem::Posix(), directory.path() + "/nowhere", &found);
  CHECK(status.code() == StatusCode::kUnavailable);
  CHECK(status.message().find("nowhere") != std::string::npos);
  // Nor is a lock made where there is none.
  CHECK_OK(InspectStore(FileSystem::Posix(), directory.path(), &found));
  CHECK(!found.is_in_use);
  CHECK(std::filesystem::is_empty(directory.path()));
}

}  // namespace
}  // namespace tfctr
