// Where the memory of a store comes from, as /proc tells it.

#include "tfctr_ops/cc/store/numa_node.h"

#include <sys/mman.h>
#include <unistd.h>

#include <cstring>
#include <fstream>
#include <memory>
#include <string>
#include <vector>

#include "tests/tfctr_ops/cc/check.h"
#include "tests/tfctr_ops/cc/test_store.h"
#include "tfctr_ops/cc/store/arena.h"

namespace tfctr {
namespace {

// The policy of the mapping that an address is in; empty where the system shows
// none. Lines are in the order of addresses, each with the first of its
// mapping.
std::string PolicyAt(const void* address) {
  std::ifstream maps("/proc/self/numa_maps");
  const auto wanted = reinterpret_cast<uintptr_t>(address);
  std::string line, policy;
  while (std::getline(maps, line)) {
    if (std::stoull(line, nullptr, 16) > wanted) break;
    const size_t start = line.find(' ') + 1;
    policy = line.substr(start, line.find(' ', start) - start);
  }
  return policy;
}

// Whether this system lets us choose: asks it, as the store does.
bool MayChoose() {
  const size_t page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
  void* const memory = mmap(nullptr, page, PROT_READ | PROT_WRITE,
                            MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  CHECK(memory != MAP_FAILED);
  const bool may = PreferNumaNode(memory, page, 0);
  munmap(memory, page);
  return may && !PolicyAt(&page).empty();
}

TEST(EveryBlockOfAnArenaComesFromItsNode) {
  Arena arena(0), other;
  std::byte* const rows = arena.Allocate(1 << 20);
  std::byte* const more = arena.Allocate(int64_t{5} << 20);
  std::memset(more, 1, 5 << 20);
  std::byte* const elsewhere = other.Allocate(1 << 20);
  for (std::byte* piece : {rows, more, more + (5 << 20) - 1}) {
    CHECK_EQ(PolicyAt(piece), MayChoose() ? "prefer:0" : PolicyAt(elsewhere));
  }
  CHECK_NE(PolicyAt(elsewhere), std::string("prefer:0"));
  CHECK_EQ(static_cast<int>(rows[100]), 0);
  CHECK_EQ(static_cast<int>(more[100]), 1);
}

TEST(AStoreOnANodeHoldsTheSameRows) {
  StoreOptions options = testing::SmallOptions(2);
  const testing::TestStore plain(options);
  options.numa_node = 0;
  const testing::TestStore placed(options);
  const testing::Keys keys = testing::Range(0, 3000);
  const std::vector<float> gradient(6000, 0.25f);
  for (const testing::TestStore* store : {&plain, &placed}) {
    store->Train(keys, gradient, 0.5f);
  }
  CHECK_EQ(placed.Read(keys), std::vector<float>(6000, 0.875f));
  CHECK_EQ(plain.Read(keys), placed.Read(keys));
}

TEST(NodesThatAreNotThereAreRefused) {
  CHECK_OK(CheckNumaNode(kAnyNumaNode));
  CHECK_OK(CheckNumaNode(0));
  for (int64_t node : {int64_t{-2}, int64_t{1000}, int64_t{1} << 40}) {
    StoreOptions options = testing::SmallOptions(1);
    options.numa_node = node;
    std::shared_ptr<EmbeddingStore> store;
    const Status status =
        EmbeddingStore::Create(options, testing::NoLimit(), &store);
    CHECK(status.code() == StatusCode::kInvalidArgument);
    CHECK_EQ(status.message(),
             "`numa_node` must be a NUMA node of this machine that has memory "
             "which this process may use. Received: numa_node=" +
                 std::to_string(node) +
                 ". `python -m tfctr topology` lists the nodes; without "
                 "`numa_node`, memory comes from where the process is.");
    CHECK(store == nullptr);
  }
}

}  // namespace
}  // namespace tfctr
