// FileSystem: what the store asks of the disk, behind an interface so that
// tests can let any of it fail.
//
// Every error names the file, the offset and the reason of the system. A full
// disk is ResourceExhausted; everything else is Unavailable.
//
// Thread safety: every method may be called concurrently.

#ifndef TFCTR_OPS_CC_STORE_FILE_SYSTEM_H_
#define TFCTR_OPS_CC_STORE_FILE_SYSTEM_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "tfctr_ops/cc/store/mapped_file.h"
#include "tfctr_ops/cc/store/status.h"

namespace tfctr {

// An open file; closed by the destructor.
class File {
 public:
  explicit File(std::string path) : path_(std::move(path)) {}
  virtual ~File() = default;
  File(const File&) = delete;
  File& operator=(const File&) = delete;

  const std::string& path() const { return path_; }

  // Reads exactly `size` bytes; a file that ends before is DataLoss.
  virtual Status Read(int64_t offset, int64_t size, std::byte* to) = 0;
  // Reads if that needs no disk. Else *done is false, and `to` may be changed.
  virtual Status ReadCached(int64_t offset, int64_t size, std::byte* to,
                            bool* done) = 0;
  virtual Status Write(int64_t offset, int64_t size, const std::byte* from) = 0;
  // Returns when everything that was written would survive a power cut.
  virtual Status Sync() = 0;
  virtual Status Size(int64_t* size) = 0;
  // The first `size` bytes as memory, some of them perhaps written later; null
  // if that cannot be. It outlives the file.
  virtual std::unique_ptr<MappedFile> Map(int64_t size) = 0;

 private:
  const std::string path_;
};

// Held as long as it lives; the system drops it when the process dies.
class FileLock {
 public:
  virtual ~FileLock() = default;
};

class FileSystem {
 public:
  virtual ~FileSystem() = default;

  enum class Mode {
    kCreate,  // For reading and writing; the file must not exist.
    kRead,
    // For reading past the system's page cache: offset, size and memory must
    // be multiples of 4096.
    kReadDirect,
  };
  virtual Status Open(const std::string& path, Mode mode,
                      std::unique_ptr<File>* file) = 0;

  virtual Status Remove(const std::string& path) = 0;
  // Replaces `to`, if it is there, at once.
  virtual Status Rename(const std::string& from, const std::string& to) = 0;
  // Another name for the same file. *across is whether that is impossible,
  // since the names lie on different file systems; it is then no error.
  virtual Status Link(const std::string& from, const std::string& to,
                      bool* across) = 0;
  // The directory may exist; its parents are made as well.
  virtual Status MakeDirectory(const std::string& path) = 0;
  // Names in a directory, sorted, without "." and "..".
  virtual Status List(const std::string& path,
                      std::vector<std::string>* names) = 0;
  // Makes creations, renames and links in a directory survive a power cut.
  virtual Status SyncDirectory(const std::string& path) = 0;
  // Removes a directory and all in it; one that is not there is no error.
  virtual Status RemoveTree(const std::string& path) = 0;
  // Locks the file, which is made if need be. *lock is null if another owner
  // has it and `wait` is false.
  virtual Status Lock(const std::string& path, bool wait,
                      std::unique_ptr<FileLock>* lock) = 0;

  // The file system of the machine.
  static FileSystem* Posix();
};

}  // namespace tfctr

#endif  // TFCTR_OPS_CC_STORE_FILE_SYSTEM_H_
