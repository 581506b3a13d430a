#include "tfctr_ops/cc/store/numa_node.h"

#include <errno.h>
#include <linux/mempolicy.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <string>
#include <vector>

namespace tfctr {
namespace {

constexpr size_t kWordBits = 8 * sizeof(unsigned long);
// More than any kernel is built for; the kernel refuses what it cannot have.
constexpr int64_t kMaxNodes = 1 << 12;

// 0, or the error of mbind(2), which the C library does not wrap.
//
// Preferred, not bound: a table that outgrows its node shall become slower, and
// not be killed while other nodes have memory.
int Prefer(void* start, size_t bytes, int64_t node) {
  const size_t number = static_cast<size_t>(node);
  std::vector<unsigned long> mask(number / kWordBits + 1);
  mask[number / kWordBits] = 1UL << number % kWordBits;
  // The kernel takes the size as one more than the bits that it reads.
  const size_t bits = mask.size() * kWordBits + 1;
  const long result =
      syscall(SYS_mbind, start, bytes, MPOL_PREFERRED, mask.data(), bits, 0U);
  return result == 0 ? 0 : errno;
}

bool IsListed(int64_t node) {
  const std::string nodes = "/sys/devices/system/node";
  struct stat info;
  // Kernels without NUMA list no nodes, and have the one.
  if (stat(nodes.c_str(), &info) != 0) return node == 0;
  return stat((nodes + "/node" + std::to_string(node)).c_str(), &info) == 0;
}

}  // namespace

Status CheckNumaNode(int64_t node) {
  if (node == kAnyNumaNode) return Status::Ok();
  int error = EINVAL;
  if (0 <= node && node < kMaxNodes && IsListed(node)) {
    const size_t page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
    void* const probe = mmap(nullptr, page, PROT_READ | PROT_WRITE,
                             MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (probe == MAP_FAILED) return Status::Ok();  // The arena will tell.
    error = Prefer(probe, page, node);
    munmap(probe, page);
  }
  if (error != EINVAL) return Status::Ok();
  return Status::InvalidArgument(
      "`numa_node` must be a NUMA node of this machine that has memory which "
      "this process may use. Received: numa_node=" +
      std::to_string(node) +
      ". `python -m tfctr topology` lists the nodes; without `numa_node`, "
      "memory comes from where the process is.");
}

bool PreferNumaNode(void* start, size_t bytes, int64_t node) {
  return Prefer(start, bytes, node) == 0;
}

}  // namespace tfctr
