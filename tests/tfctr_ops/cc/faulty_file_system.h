// FaultyFileSystem: the file system of the machine, some of whose calls fail.

#ifndef TESTS_TFCTR_OPS_CC_FAULTY_FILE_SYSTEM_H_
#define TESTS_TFCTR_OPS_CC_FAULTY_FILE_SYSTEM_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <limits>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "tfctr_ops/cc/store/file_system.h"
#include "tfctr_ops/cc/store/hash.h"

namespace tfctr {
namespace testing {

// Thread safety: every method may be called concurrently.
class FaultyFileSystem final : public FileSystem {
 public:
  enum class Call {
    kOpen,
    kRead,  // Past and from the cache.
    kWrite,
    kSync,
    kOther,  // Of directories, names and locks.
  };
  enum class Fault {
    kIoError,     // Unavailable.
    kNoSpace,     // ResourceExhausted.
    kShortWrite,  // The first half is written; then Unavailable.
    // Silent, as a bad disk does it, in what is read or written:
    kFlippedBit,  // Somewhere.
    kTornBlock,   // The last 512 bytes are zeros.
    kLost,        // Nothing is written.
  };
  static constexpr int64_t kForever = std::numeric_limits<int64_t>::max();

  // Lets `times` calls of one kind fail, after `skip` that succeed.
  void Fail(Call call, Fault fault, int64_t skip, int64_t times = 1) {
    std::lock_guard<std::mutex> lock(mutex_);
    failing_ = call;
    fault_ = fault;
    skip_ = skip;
    times_ = times;
  }

  // Calls of one kind so far.
  int64_t num_calls(Call call) const {
    std::lock_guard<std::mutex> lock(mutex_);
    return num_calls_[static_cast<size_t>(call)];
  }
  int64_t num_faults() const {
    std::lock_guard<std::mutex> lock(mutex_);
    return num_faults_;
  }

  // Is called at the start of every call, on its thread.
  void set_watcher(std::function<void(Call, const std::string&)> watcher) {
    watcher_ = std::move(watcher);
  }

  Status Open(const std::string& path, Mode mode,
              std::unique_ptr<File>* file) override {
    Status status = Try(Call::kOpen, "open", path);
    std::unique_ptr<File> real;
    if (status.ok()) status = posix_->Open(path, mode, &real);
    if (status.ok()) *file = std::make_unique<Faulty>(this, std::move(real));
    return status;
  }

  Status Remove(const std::string& path) override {
    const Status status = Try(Call::kOther, "remove", path);
    return status.ok() ? posix_->Remove(path) : status;
  }
  Status Rename(const std::string& from, const std::string& to) override {
    const Status status = Try(Call::kOther, "rename", from);
    return status.ok() ? posix_->Rename(from, to) : status;
  }
  Status Link(const std::string& from, const std::string& to,
              bool* across) override {
    const Status status = Try(Call::kOther, "link", from);
    return status.ok() ? posix_->Link(from, to, across) : status;
  }
  Status MakeDirectory(const std::string& path) override {
    const Status status = Try(Call::kOther, "make", path);
    return status.ok() ? posix_->MakeDirectory(path) : status;
  }
  Status List(const std::string& path,
              std::vector<std::string>* names) override {
    const Status status = Try(Call::kOther, "list", path);
    return status.ok() ? posix_->List(path, names) : status;
  }
  Status SyncDirectory(const std::string& path) override {
    const Status status = Try(Call::kSync, "sync", path);
    return status.ok() ? posix_->SyncDirectory(path) : status;
  }
  Status RemoveTree(const std::string& path) override {
    const Status status = Try(Call::kOther, "remove", path);
    return status.ok() ? posix_->RemoveTree(path) : status;
  }
  Status Lock(const std::string& path, bool wait,
              std::unique_ptr<FileLock>* lock) override {
    const Status status = Try(Call::kOther, "lock", path);
    return status.ok() ? posix_->Lock(path, wait, lock) : status;
  }

 private:
  class Faulty final : public File {
   public:
    Faulty(FaultyFileSystem* files, std::unique_ptr<File> real)
        : File(real->path()), files_(files), real_(std::move(real)) {}

    Status Read(int64_t offset, int64_t size, std::byte* to) override {
      Fault fault;
      const int64_t number = files_->Count(Call::kRead, path(), &fault);
      if (number >= 0 && !IsSilent(fault)) {
        return Error(fault, "read", offset, path());
      }
      Status status = real_->Read(offset, size, to);
      if (number >= 0) Damage(fault, number, size, to);
      return status;
    }

    // Nothing is in the cache while reads are to fail: Read tells.
    Status ReadCached(int64_t offset, int64_t size, std::byte* to,
                      bool* done) override {
      *done = false;
      if (files_->ReadsMayFail()) return Status::Ok();
      Status status = real_->ReadCached(offset, size, to, done);
      if (!*done) return status;
      Fault fault;
      const int64_t number = files_->Count(Call::kRead, path(), &fault);
      if (number >= 0) Damage(fault, number, size, to);
      return status;
    }

    Status Write(int64_t offset, int64_t size, const std::byte* from) override {
      Fault fault;
      const int64_t number = files_->Count(Call::kWrite, path(), &fault);
      if (number < 0) return real_->Write(offset, size, from);
      if (fault == Fault::kLost) return Status::Ok();
      if (IsSilent(fault)) {
        std::vector<std::byte> damaged(from, from + size);
        Damage(fault, number, size, damaged.data());
        return real_->Write(offset, size, damaged.data());
      }
      if (fault != Fault::kShortWrite) {
        return Error(fault, "write", offset, path());
      }
      const Status status = real_->Write(offset, size / 2, from);
      return status.ok() ? Error(fault, "write", offset + size / 2, path())
                         : status;
    }

    Status Sync() override {
      const Status status = files_->Try(Call::kSync, "sync", path());
      return status.ok() ? real_->Sync() : status;
    }
    Status Size(int64_t* size) override { return real_->Size(size); }
    // So that every row is read by a call, which can fail.
    std::unique_ptr<MappedFile> Map(int64_t) override { return nullptr; }

   private:
    FaultyFileSystem* const files_;
    const std::unique_ptr<File> real_;
  };

  static bool IsSilent(Fault fault) {
    return fault == Fault::kFlippedBit || fault == Fault::kTornBlock ||
           fault == Fault::kLost;
  }

  static Status Error(Fault fault, const char* verb, int64_t offset,
                      const std::string& path) {
    const std::string what = std::string("Injected: cannot ") + verb +
                             " at offset " + std::to_string(offset) + " of '" +
                             path + "'.";
    return fault == Fault::kNoSpace ? Status::ResourceExhausted(what)
                                    : Status::Unavailable(what);
  }

  static void Damage(Fault fault, int64_t number, int64_t size,
                     std::byte* bytes) {
    if (fault == Fault::kFlippedBit) {
      const uint64_t bit = Mix64(static_cast<uint64_t>(number) + 1) %
                           static_cast<uint64_t>(8 * size);
      bytes[bit / 8] ^= std::byte{1} << (bit % 8);
    } else {
      const int64_t torn = std::min<int64_t>(512, size);
      std::fill(bytes + size - torn, bytes + size, std::byte{0});
    }
  }

  // Counts a call. Returns its number if it has a fault, else -1.
  int64_t Count(Call call, const std::string& path, Fault* fault) {
    if (watcher_ != nullptr) watcher_(call, path);
    std::lock_guard<std::mutex> lock(mutex_);
    const int64_t number = num_calls_[static_cast<size_t>(call)]++;
    if (call != failing_ || times_ == 0 || skip_-- > 0) return -1;
    skip_ = 0;
    --times_;
    ++num_faults_;
    *fault = fault_;
    return number;
  }
  bool ReadsMayFail() const {
    std::lock_guard<std::mutex> lock(mutex_);
    return failing_ == Call::kRead && times_ > 0 && !IsSilent(fault_);
  }
  Status Try(Call call, const char* verb, const std::string& path) {
    Fault fault;
    return Count(call, path, &fault) < 0 ? Status::Ok()
                                         : Error(fault, verb, 0, path);
  }

  FileSystem* const posix_ = FileSystem::Posix();
  std::function<void(Call, const std::string&)> watcher_;
  mutable std::mutex mutex_;
  // Guarded by mutex_:
  Call failing_ = Call::kOther;
  Fault fault_ = Fault::kIoError;
  int64_t skip_ = 0;
  int64_t times_ = 0;
  int64_t num_calls_[5] = {};
  int64_t num_faults_ = 0;
};

}  // namespace testing
}  // namespace tfctr

#endif  // TESTS_TFCTR_OPS_CC_FAULTY_FILE_SYSTEM_H_
