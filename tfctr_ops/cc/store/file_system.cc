#include "tfctr_ops/cc/store/file_system.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <system_error>
#include <utility>

namespace tfctr {
namespace {

namespace fs = std::filesystem;

Status Error(int code, const std::string& what) {
  std::string message =
      what + ": " + std::generic_category().message(code) + ".";
  if (code == ENOSPC || code == EDQUOT || code == EFBIG) {
    return Status::ResourceExhausted(
        std::move(message) +
        " Free some space there, or name another directory.");
  }
  return Status::Unavailable(std::move(message));
}

Status FileError(int code, const char* verb, int64_t size, int64_t offset,
                 const std::string& path) {
  return Error(code, std::string("Cannot ") + verb + " " +
                         std::to_string(size) + " bytes at offset " +
                         std::to_string(offset) + " of '" + path + "'");
}

// Many systems let a process open 1,024 files unless it asks for more. Returns
// whether it got more.
bool RaiseFileLimit() {
  rlimit limit = {};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return false;
  if (limit.rlim_cur >= limit.rlim_max) return false;
  limit.rlim_cur = limit.rlim_max;
  return setrlimit(RLIMIT_NOFILE, &limit) == 0;
}

class PosixFile final : public File {
 public:
  PosixFile(std::string path, int descriptor)
      : File(std::move(path)), descriptor_(descriptor) {}
  ~PosixFile() override { close(descriptor_); }

  Status Read(int64_t offset, int64_t size, std::byte* to) override {
    for (int64_t done = 0; done < size;) {
      const ssize_t got =
          pread(descriptor_, to + done, static_cast<size_t>(size - done),
                offset + done);
      if (got < 0 && errno == EINTR) continue;
      if (got < 0) {
        return FileError(errno, "read", size - done, offset + done, path());
      }
      if (got == 0) {
        return Status::DataLoss(
            "'" + path() + "' ends at offset " + std::to_string(offset + done) +
            "; " + std::to_string(size - done) + " bytes more were expected.");
      }
      done += got;
    }
    return Status::Ok();
  }

  Status ReadCached(int64_t offset, int64_t size, std::byte* to,
                    bool* done) override {
    *done = false;
    if (!supports_nowait.load(std::memory_order_relaxed)) return Status::Ok();
    iovec piece = {to, static_cast<size_t>(size)};
    const ssize_t got = preadv2(descriptor_, &piece, 1, offset, RWF_NOWAIT);
    if (got < 0 && (errno == EOPNOTSUPP || errno == ENOSYS)) {
      supports_nowait.store(false, std::memory_order_relaxed);
    }
    // Any other failure, and a part that was cached: Read will tell.
    *done = got == size;
    return Status::Ok();
  }

  Status Write(int64_t offset, int64_t size, const std::byte* from) override {
    for (int64_t done = 0; done < size;) {
      const ssize_t put =
          pwrite(descriptor_, from + done, static_cast<size_t>(size - done),
                 offset + done);
      if (put < 0 && errno == EINTR) continue;
      if (put <= 0) {
        return FileError(put < 0 ? errno : ENOSPC, "write", size - done,
                         offset + done, path());
      }
      done += put;
    }
    return Status::Ok();
  }

  Status Sync() override {
    if (fdatasync(descriptor_) == 0) return Status::Ok();
    return Error(errno, "Cannot bring '" + path() + "' to the disk");
  }

  Status Size(int64_t* size) override {
    struct stat facts;
    if (fstat(descriptor_, &facts) != 0) {
      return Error(errno, "Cannot ask for the size of '" + path() + "'");
    }
    *size = facts.st_size;
    return Status::Ok();
  }

  std::unique_ptr<MappedFile> Map(int64_t size) override {
    return MappedFile::Map(descriptor_, size);
  }

 private:
  // Some file systems (FUSE, old overlayfs) cannot tell what is cached.
  static std::atomic<bool> supports_nowait;

  const int descriptor_;
};

std::atomic<bool> PosixFile::supports_nowait{true};

class PosixLock final : public FileLock {
 public:
  explicit PosixLock(int descriptor) : descriptor_(descriptor) {}
  ~PosixLock() override { close(descriptor_); }

 private:
  const int descriptor_;
};

class PosixFileSystem final : public FileSystem {
 public:
  Status Open(const std::string& path, Mode mode,
              std::unique_ptr<File>* file) override {
    int flags = O_CLOEXEC;
    if (mode == Mode::kCreate) flags |= O_RDWR | O_CREAT | O_EXCL;
    if (mode == Mode::kRead) flags |= O_RDONLY;
    if (mode == Mode::kReadDirect) flags |= O_RDONLY | O_DIRECT;
    int descriptor = open(path.c_str(), flags, 0644);
    if (descriptor < 0 && errno == EMFILE && RaiseFileLimit()) {
      descriptor = open(path.c_str(), flags, 0644);
    }
    if (descriptor < 0) {
      const int code = errno;
      const std::string hint =
          code == EMFILE ? " (raise the limit with `ulimit -n`)" : "";
      return Error(code, std::string("Cannot ") +
                             (mode == Mode::kCreate ? "make" : "open") + " '" +
                             path + "'" + hint);
    }
    // Rows are read one by one: reading ahead would read what nobody asked for.
    if (mode == Mode::kRead || mode == Mode::kCreate) {
      posix_fadvise(descriptor, 0, 0, POSIX_FADV_RANDOM);
    }
    *file = std::make_unique<PosixFile>(path, descriptor);
    return Status::Ok();
  }

  Status Remove(const std::string& path) override {
    if (unlink(path.c_str()) == 0) return Status::Ok();
    return Error(errno, "Cannot remove '" + path + "'");
  }

  Status Rename(const std::string& from, const std::string& to) override {
    if (rename(from.c_str(), to.c_str()) == 0) return Status::Ok();
    return Error(errno, "Cannot rename '" + from + "' to '" + to + "'");
  }

  Status Link(const std::string& from, const std::string& to,
              bool* across) override {
    *across = false;
    if (link(from.c_str(), to.c_str()) == 0) return Status::Ok();
    if (errno == EXDEV || errno == EPERM || errno == EOPNOTSUPP) {
      *across = true;
      return Status::Ok();
    }
    return Error(errno, "Cannot link '" + from + "' as '" + to + "'");
  }

  Status MakeDirectory(const std::string& path) override {
    std::error_code error;
    fs::create_directories(path, error);
    if (!error) return Status::Ok();
    return Error(error.value(), "Cannot make the directory '" + path + "'");
  }

  Status List(const std::string& path,
              std::vector<std::string>* names) override {
    names->clear();
    std::error_code error;
    for (fs::directory_iterator at(path, error), end; !error && at != end;
         at.increment(error)) {
      names->push_back(at->path().filename().string());
    }
    if (error) {
      return Error(error.value(), "Cannot list the directory '" + path + "'");
    }
    std::sort(names->begin(), names->end());
    return Status::Ok();
  }

  Status SyncDirectory(const std::string& path) override {
    const int descriptor =
        open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    const bool synced = descriptor >= 0 && fsync(descriptor) == 0;
    const int code = errno;
    if (descriptor >= 0) close(descriptor);
    if (synced) return Status::Ok();
    return Error(code, "Cannot bring the directory '" + path + "' to the disk");
  }

  Status RemoveTree(const std::string& path) override {
    std::error_code error;
    fs::remove_all(path, error);
    if (!error) return Status::Ok();
    return Error(error.value(), "Cannot remove the directory '" + path + "'");
  }

  Status Lock(const std::string& path, bool wait,
              std::unique_ptr<FileLock>* lock) override {
    lock->reset();
    const int descriptor =
        open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0644);
    if (descriptor < 0)
      return Error(errno, "Cannot open the lock '" + path + "'");
    int result;
    do {
      result = flock(descriptor, wait ? LOCK_EX : LOCK_EX | LOCK_NB);
    } while (result != 0 && errno == EINTR);
    const int code = errno;
    if (result == 0) {
      *lock = std::make_unique<PosixLock>(descriptor);
      return Status::Ok();
    }
    close(descriptor);
    if (code == EWOULDBLOCK) return Status::Ok();
    return Error(code, "Cannot lock '" + path + "'");
  }
};

}  // namespace

FileSystem* FileSystem::Posix() {
  static PosixFileSystem* const file_system = new PosixFileSystem();
  return file_system;
}

}  // namespace tfctr
