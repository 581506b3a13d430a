// MappedFile: a file as memory.
//
// What the system has of a file in its page cache is read from here without a
// system call, which would cost more than the copy of a row.

#ifndef TFCTR_OPS_CC_STORE_MAPPED_FILE_H_
#define TFCTR_OPS_CC_STORE_MAPPED_FILE_H_

#include <cstddef>
#include <cstdint>
#include <memory>

namespace tfctr {

// The first map installs a handler of SIGBUS for the process, which leaves to
// the handler before what is not RunGuarded's. Thread safety: all is const.
class MappedFile {
 public:
  // Maps `size` bytes, of which some may be written later. Returns null if the
  // system refuses, or this process has very many maps already: their number is
  // limited, and others need some.
  static std::unique_ptr<MappedFile> Map(int descriptor, int64_t size);
  ~MappedFile();
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;

  const std::byte* data() const { return data_; }

 private:
  MappedFile(const std::byte* data, int64_t size) : data_(data), size_(size) {}

  const std::byte* const data_;
  const int64_t size_;
};

// Calls use(argument), which may read mapped memory. Returns false if it was
// broken off in the middle because the disk failed or the file ends before: the
// system has no other way to tell than a signal. Returns false at once if the
// handler of that signal is not ours any more. `use` must own nothing, since
// nothing is destroyed then, and the caller can rely on nothing it has written.
// It must not call RunGuarded.
bool RunGuarded(void (*use)(void*), void* argument);

// How many pages this thread has waited for the disk to bring, so far.
int64_t MajorFaults();

}  // namespace tfctr

#endif  // TFCTR_OPS_CC_STORE_MAPPED_FILE_H_
