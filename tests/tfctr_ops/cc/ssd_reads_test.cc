// Reads of an SSD tier's files: from the page cache, and of what is damaged.

#include <fcntl.h>
#include <sys/uio.h>
#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "tests/tfctr_ops/cc/check.h"
#include "tests/tfctr_ops/cc/checked_shard.h"
#include "tests/tfctr_ops/cc/faulty_file_system.h"
#include "tests/tfctr_ops/cc/temporary_directory.h"
#include "tfctr_ops/cc/store/ssd_tier.h"

namespace tfctr {
namespace {

namespace fs = std::filesystem;
using testing::Bytes;
using testing::CheckedShard;
using testing::FaultyFileSystem;
using testing::FilesOf;
using testing::FourRows;
using testing::HasDirectReads;
using testing::In;
using testing::kPageDim;
using testing::Open;
using testing::TemporaryDirectory;
using Call = FaultyFileSystem::Call;
using Fault = FaultyFileSystem::Fault;

// The only segment of a tier with 40 rows, as a file.
struct WrittenTier {
  WrittenTier(const TemporaryDirectory& directory, bool direct_reads)
      : options(In(directory, int64_t{1} << 20)) {
    options.ram_bytes = 0;
    options.direct_reads = direct_reads;
    tier = Open(options, 100);
    shard = std::make_unique<CheckedShard>(tier.get(), 0);
    for (int64_t key = 0; key < 40; ++key) shard->Put(key);
    tier->FinishWrites();
    path = tier->directory() + "/" + FilesOf(*tier).at(0);
  }

  SsdOptions options;
  std::unique_ptr<SsdTier> tier;
  std::unique_ptr<CheckedShard> shard;
  std::string path;
};

TEST(ADamagedRowIsNamedByFileAndOffset) {
  for (const bool direct_reads : {false, true}) {
    const TemporaryDirectory directory;
    if (direct_reads && !HasDirectReads(directory)) return;
    WrittenTier written(directory, direct_reads);
    const SegmentLayout& layout = written.tier->layout();
    for (const int64_t key : {0, 8, 9, 17}) {
      const int64_t offset = layout.RowOffset(written.shard->location(key));
      for (int64_t byte = offset; byte < offset + layout.row_bytes;
           byte += 13) {
        std::fstream file(written.path,
                          std::ios::in | std::ios::out | std::ios::binary);
        file.seekg(byte);
        const auto good = static_cast<char>(file.get());
        file.seekp(byte);
        file.put(static_cast<char>(good ^ 4)).flush();
        for (const std::set<int64_t>& keys :
             {std::set<int64_t>{key}, std::set<int64_t>{0, 8, 9, 10, 17, 39}}) {
          const Status status = written.shard->TryRead(keys);
          CHECK_EQ(status.code(), StatusCode::kDataLoss);
          CHECK_CONTAINS(status.message(), "'" + written.path +
                                               "' is damaged at offset " +
                                               std::to_string(offset) + ":");
        }
        CHECK_OK(written.shard->TryRead({1, 7, 11, 18}));
        file.seekp(byte);
        file.put(good).flush();
      }
    }
    written.shard->CheckAll();
  }
}

TEST(ADamagedPageIsNamedWhenItIsCopied) {
  const TemporaryDirectory directory;
  WrittenTier written(directory, false);
  const int64_t byte = 2 * 4096 + 4095;  // No row is there.
  std::fstream file(written.path,
                    std::ios::in | std::ios::out | std::ios::binary);
  file.seekp(byte);
  file.put('x').flush();
  const AlignedBytes pages(4 * 4096);
  Segment* segment = written.tier->segments(0)[0].get();
  const std::string expected =
      "'" + written.path + "' is damaged at offset 8192:";
  for (const Status& status :
       {written.tier->ReadPages(segment, 0, 3, pages.data()),
        written.tier->CopyPages(segment, 0, 3, pages.data())}) {
    CHECK_EQ(status.code(), StatusCode::kDataLoss);
    CHECK_CONTAINS(status.message(), expected);
  }
  CHECK_OK(written.tier->ReadPages(segment, 2, 1, pages.data()));
}

// Makes the system forget what it has of the file. Returns whether it did.
bool DropCached(const std::string& path) {
  const int descriptor = open(path.c_str(), O_RDONLY);
  fdatasync(descriptor);
  posix_fadvise(descriptor, 0, 0, POSIX_FADV_DONTNEED);
  // Else the look at its first page would bring up more of them.
  posix_fadvise(descriptor, 0, 0, POSIX_FADV_RANDOM);
  char byte;
  iovec piece = {&byte, 1};
  const ssize_t got = preadv2(descriptor, &piece, 1, 0, RWF_NOWAIT);
  close(descriptor);
  return got < 0;
}

// A thread that waits for a page of a map keeps the others' reads waiting, so
// maps are used only as long as the page cache has nearly everything.
TEST(FilesAreReadAsMemoryWhileTheyAreCached) {
  const TemporaryDirectory directory;
  SsdOptions options = In(directory);
  options.ram_bytes = 0;
  const std::unique_ptr<SsdTier> tier = Open(options, kPageDim);
  CheckedShard shard(tier.get(), 0);
  constexpr int64_t kKeys = 100;  // Each in a page of its own.
  for (int64_t key = 0; key < kKeys; ++key) shard.Put(key);
  tier->FinishWrites();
  Bytes row(static_cast<size_t>(tier->layout().row_bytes));
  const auto read_cached = [&](int64_t key) {
    std::vector<SsdTier::Read> reads;
    reads.push_back(tier->Prepare(0, shard.location(key), row.data()));
    CHECK(reads[0].segment != nullptr);
    CHECK_OK(tier->ReadCached(&reads));
    return reads.empty();
  };
  CHECK(tier->is_warm());
  for (const auto& segment : tier->segments(0)) {
    if (!DropCached(segment->path())) return;  // A file system in memory.
  }
  for (int64_t key = 0; key < kKeys; ++key) read_cached(key);
  CHECK(!tier->is_warm());
  shard.CheckAll();
  // Now they are cached, which takes many reads to be believed.
  int64_t num_reads = 0;
  while (!tier->is_warm()) read_cached(num_reads++ % kKeys);
  CHECK_LT(1000, num_reads);
  shard.CheckAll();
}

TEST(AFileThatLostItsEndIsNamed) {
  const TemporaryDirectory directory;
  WrittenTier written(directory, false);
  fs::resize_file(written.path, 5000);
  const Status status = written.shard->TryRead({30});
  CHECK_EQ(status.code(), StatusCode::kDataLoss);
  CHECK_CONTAINS(status.message(), written.path);
  CHECK_OK(written.shard->TryRead({0}));
}

TEST(AReadThatFailsOnceIsAnErrorOnce) {
  for (const bool direct_reads : {false, true}) {
    for (const Call call : {Call::kRead, Call::kOpen}) {
      const TemporaryDirectory directory;
      if (direct_reads && !HasDirectReads(directory)) return;
      if (call == Call::kOpen && !direct_reads) continue;
      FaultyFileSystem files;
      SsdOptions options = In(directory, FourRows(directory).limit_bytes);
      options.files = &files;
      options.direct_reads = direct_reads;
      const std::unique_ptr<SsdTier> tier = Open(options, kPageDim);
      CheckedShard shard(tier.get(), 0);
      for (int64_t key = 0; key < 8; ++key) shard.Put(key);
      tier->FinishWrites();
      files.Fail(call, Fault::kIoError, 0);
      const Status status = shard.TryRead({0, 3, 5});
      CHECK_EQ(status.code(), StatusCode::kUnavailable);
      CHECK_CONTAINS(status.message(), tier->directory() + "/segment-");
      CHECK_OK(tier->error());
      shard.CheckAll();
    }
  }
}

}  // namespace
}  // namespace tfctr
