#include "tfctr_ops/cc/store/file_system.h"

#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "tests/tfctr_ops/cc/check.h"
#include "tests/tfctr_ops/cc/random.h"
#include "tests/tfctr_ops/cc/temporary_directory.h"
#include "tfctr_ops/cc/store/segment.h"

namespace tfctr {
namespace {

using testing::Random;
using testing::TemporaryDirectory;
using Mode = FileSystem::Mode;
using Bytes = std::vector<std::byte>;
using Names = std::vector<std::string>;

FileSystem& Files() { return *FileSystem::Posix(); }

Bytes RandomBytes(int64_t size, uint64_t seed) {
  Random random(seed);
  Bytes bytes(static_cast<size_t>(size));
  for (std::byte& byte : bytes)
    byte = static_cast<std::byte>(random.Below(256));
  return bytes;
}

// As the standard library reads it.
Bytes Contents(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  const std::string text((std::istreambuf_iterator<char>(file)),
                         std::istreambuf_iterator<char>());
  Bytes bytes(text.size());
  for (size_t i = 0; i < text.size(); ++i) {
    bytes[i] = static_cast<std::byte>(text[i]);
  }
  return bytes;
}

std::unique_ptr<File> Open(const std::string& path, Mode mode) {
  std::unique_ptr<File> file;
  CHECK_OK(Files().Open(path, mode, &file));
  CHECK_EQ(file->path(), path);
  return file;
}

// The file with these bytes, still open.
std::unique_ptr<File> Make(const std::string& path, const Bytes& bytes) {
  std::unique_ptr<File> file = Open(path, Mode::kCreate);
  CHECK_OK(file->Write(0, static_cast<int64_t>(bytes.size()), bytes.data()));
  return file;
}

Bytes Read(File* file, int64_t offset, int64_t size) {
  Bytes bytes(static_cast<size_t>(size), std::byte{0xee});
  CHECK_OK(file->Read(offset, size, bytes.data()));
  return bytes;
}

std::unique_ptr<FileLock> Lock(const std::string& path, bool wait) {
  std::unique_ptr<FileLock> lock;
  CHECK_OK(Files().Lock(path, wait, &lock));
  return lock;
}

void CheckError(const Status& status, StatusCode code, const Names& parts) {
  CHECK_EQ(status.code(), code);
  for (const std::string& part : parts) CHECK_CONTAINS(status.message(), part);
}

// ------ Files.

TEST(BytesComeBackFromWhereTheyWereWritten) {
  const TemporaryDirectory directory;
  const std::string path = directory.path() + "/file";
  Bytes expected = RandomBytes(10000, 1);
  const std::unique_ptr<File> file = Make(path, expected);
  const Bytes patch = RandomBytes(3000, 2);
  CHECK_OK(file->Write(4095, 3000, patch.data()));
  std::copy(patch.begin(), patch.end(), expected.begin() + 4095);
  CHECK(Read(file.get(), 0, 10000) == expected);
  CHECK(Read(file.get(), 4000, 200) ==
        Bytes(expected.begin() + 4000, expected.begin() + 4200));
  CHECK(Contents(path) == expected);
  CHECK(Read(Open(path, Mode::kRead).get(), 1, 9999) ==
        Bytes(expected.begin() + 1, expected.end()));
  Bytes none;
  CHECK_OK(file->Read(10000, 0, none.data()));
}

TEST(WritesBehindTheEndLeaveZerosBetween) {
  const TemporaryDirectory directory;
  const std::string path = directory.path() + "/file";
  const std::unique_ptr<File> file = Open(path, Mode::kCreate);
  int64_t size = -1;
  CHECK_OK(file->Size(&size));
  CHECK_EQ(size, 0);
  const Bytes bytes = RandomBytes(10, 3);
  CHECK_OK(file->Write(8192, 10, bytes.data()));
  CHECK_OK(file->Size(&size));
  CHECK_EQ(size, 8202);
  Bytes expected(8192, std::byte{0});
  expected.insert(expected.end(), bytes.begin(), bytes.end());
  CHECK(Read(file.get(), 0, 8202) == expected);
}

TEST(DirectReadsSeeWhatWasJustWritten) {
  const TemporaryDirectory directory;
  const std::string path = directory.path() + "/file";
  const Bytes expected = RandomBytes(5 * 4096, 4);
  const std::unique_ptr<File> writer = Make(path, expected);
  std::unique_ptr<File> file;
  const Status status = Files().Open(path, Mode::kReadDirect, &file);
  if (!status.ok()) {  // Not every file system can.
    CheckError(status, StatusCode::kUnavailable, {"'" + path + "'"});
    return;
  }
  const AlignedBytes memory(3 * 4096);
  CHECK_OK(file->Read(4096, 3 * 4096, memory.data()));
  CHECK(std::equal(memory.data(), memory.data() + 3 * 4096,
                   expected.begin() + 4096));
}

TEST(CachedReadsReadAllOrSayThatTheyDidNot) {
  const TemporaryDirectory directory;
  const std::string path = directory.path() + "/file";
  const Bytes expected = RandomBytes(300000, 5);
  const std::unique_ptr<File> file = Make(path, expected);
  Random random(6);
  for (int i = 0; i < 200; ++i) {
    const int64_t offset = random.Below(300000);
    const int64_t size = random.Below(300000 - offset + 1);
    Bytes bytes(static_cast<size_t>(size));
    bool done = false;
    CHECK_OK(file->ReadCached(offset, size, bytes.data(), &done));
    if (!done) continue;
    CHECK(std::equal(bytes.begin(), bytes.end(), expected.begin() + offset));
  }
  // What lies behind the end is in no cache; Read says what is wrong with it.
  Bytes bytes(100);
  bool done = true;
  CHECK_OK(file->ReadCached(299950, 100, bytes.data(), &done));
  CHECK(!done);
  done = true;
  CHECK_OK(file->ReadCached(400000, 100, bytes.data(), &done));
  CHECK(!done);
}

TEST(AFileThatEndsTooEarlyIsDataLoss) {
  const TemporaryDirectory directory;
  const std::string path = directory.path() + "/file";
  const std::unique_ptr<File> file = Make(path, RandomBytes(5000, 7));
  Bytes bytes(200);
  CheckError(file->Read(4900, 200, bytes.data()), StatusCode::kDataLoss,
             {"'" + path + "'", "offset 5000", "100 bytes more"});
}

TEST(ReadsThatFailNameTheFileTheOffsetAndTheReason) {
  const TemporaryDirectory directory;
  // A directory can be opened, but not read.
  const std::unique_ptr<File> file = Open(directory.path(), Mode::kRead);
  Bytes bytes(64);
  CheckError(file->Read(8192, 64, bytes.data()), StatusCode::kUnavailable,
             {"read 64 bytes", "offset 8192", "'" + directory.path() + "'",
              "directory"});
  bool done = true;
  CHECK_OK(file->ReadCached(0, 64, bytes.data(), &done));
  CHECK(!done);
}

TEST(WritesThatFailNameTheFileTheOffsetAndTheReason) {
  const TemporaryDirectory directory;
  const std::string path = directory.path() + "/file";
  Make(path, RandomBytes(100, 8));
  const std::unique_ptr<File> file = Open(path, Mode::kRead);
  const Bytes bytes(64);
  CheckError(file->Write(4096, 64, bytes.data()), StatusCode::kUnavailable,
             {"write 64 bytes", "offset 4096", "'" + path + "'",
              "Bad file descriptor"});
}

// A limit of the system that ends a write in the middle stands for a full disk.
TEST(ADiskThatFillsUpInTheMiddleOfAWriteIsResourceExhausted) {
  const TemporaryDirectory directory;
  const std::string path = directory.path() + "/file";
  const std::unique_ptr<File> file = Open(path, Mode::kCreate);
  const Bytes bytes = RandomBytes(10000, 9);
  struct rlimit before;
  CHECK_EQ(getrlimit(RLIMIT_FSIZE, &before), 0);
  struct rlimit small = before;
  small.rlim_cur = 4096;
  const auto handler = signal(SIGXFSZ, SIG_IGN);
  CHECK_EQ(setrlimit(RLIMIT_FSIZE, &small), 0);
  const Status status = file->Write(0, 10000, bytes.data());
  CHECK_EQ(setrlimit(RLIMIT_FSIZE, &before), 0);
  signal(SIGXFSZ, handler);
  CheckError(status, StatusCode::kResourceExhausted,
             {"write 5904 bytes", "offset 4096", "'" + path + "'",
              "Free some space there, or name another directory."});
  CHECK(Contents(path) == Bytes(bytes.begin(), bytes.begin() + 4096));
}

TEST(FilesThatCannotBeOpenedAreNamed) {
  const TemporaryDirectory directory;
  const std::string path = directory.path() + "/file";
  std::unique_ptr<File> file;
  for (const Mode mode : {Mode::kRead, Mode::kReadDirect}) {
    CheckError(Files().Open(path, mode, &file), StatusCode::kUnavailable,
               {"open '" + path + "'", "No such file or directory"});
  }
  Make(path, {});
  CheckError(Files().Open(path, Mode::kCreate, &file), StatusCode::kUnavailable,
             {"make '" + path + "'", "File exists"});
  CheckError(Files().Open(path + "/below", Mode::kCreate, &file),
             StatusCode::kUnavailable,
             {"make '" + path + "/below'", "Not a directory"});
  CHECK(file == nullptr);
}

// In a child, since a hard limit may not be raised again: what opening a file
// gives under limits of open files. Returns the message.
std::string OpenUnder(rlim_t soft, rlim_t hard, const std::string& path) {
  int ends[2];
  CHECK_EQ(pipe(ends), 0);
  const pid_t child = fork();
  if (child == 0) {
    close(ends[0]);
    const rlimit limit = {soft, hard};
    std::unique_ptr<File> file;
    std::string message = "no limit";
    if (setrlimit(RLIMIT_NOFILE, &limit) == 0) {
      message = Files().Open(path, Mode::kCreate, &file).message();
    }
    const ssize_t put = write(ends[1], message.data(), message.size());
    _exit(put < 0 ? 1 : 0);
  }
  close(ends[1]);
  std::string message;
  char buffer[1024];
  for (ssize_t got; (got = read(ends[0], buffer, sizeof(buffer))) > 0;) {
    message.append(buffer, static_cast<size_t>(got));
  }
  close(ends[0]);
  int status = 1;
  CHECK_EQ(waitpid(child, &status, 0), child);
  CHECK_EQ(status, 0);
  return message;
}

TEST(TooManyOpenFilesAreAnErrorWithARemedy) {
  const TemporaryDirectory directory;
  const std::string path = directory.path() + "/file";
  // Standard input, output and error.
  const std::string message = OpenUnder(3, 3, path);
  CHECK_CONTAINS(message, "'" + path + "'");
  CHECK_CONTAINS(message, "`ulimit -n`");
}

TEST(AsManyFilesAreOpenedAsTheSystemAllows) {
  const TemporaryDirectory directory;
  const std::string path = directory.path() + "/file";
  CHECK_EQ(OpenUnder(3, 64, path), "");
  CHECK(std::filesystem::exists(path));
}

TEST(SyncBringsFilesAndDirectoriesToTheDisk) {
  const TemporaryDirectory directory;
  CHECK_OK(Make(directory.path() + "/file", RandomBytes(9, 10))->Sync());
  CHECK_OK(Files().SyncDirectory(directory.path()));
  CheckError(Files().SyncDirectory(directory.path() + "/none"),
             StatusCode::kUnavailable,
             {"'" + directory.path() + "/none'", "No such file"});
}

TEST(OneFileIsReadByManyThreads) {
  const TemporaryDirectory directory;
  const Bytes expected = RandomBytes(200000, 11);
  const std::unique_ptr<File> file = Make(directory.path() + "/file", expected);
  std::vector<std::thread> threads;
  for (uint64_t t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      Random random(t);
      for (int i = 0; i < 300; ++i) {
        const int64_t offset = random.Below(190000);
        CHECK(
            Read(file.get(), offset, 1000) ==
            Bytes(expected.begin() + offset, expected.begin() + offset + 1000));
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
}

// ------ Names and directories.

TEST(RemovedFilesAreGoneAndMayStillBeRead) {
  const TemporaryDirectory directory;
  const std::string path = directory.path() + "/file";
  const Bytes expected = RandomBytes(100, 12);
  const std::unique_ptr<File> file = Make(path, expected);
  CHECK_OK(Files().Remove(path));
  CHECK(!std::filesystem::exists(path));
  CHECK(Read(file.get(), 0, 100) == expected);
  CheckError(Files().Remove(path), StatusCode::kUnavailable,
             {"remove '" + path + "'", "No such file"});
}

TEST(RenameReplacesWhatWasThere) {
  const TemporaryDirectory directory;
  const std::string from = directory.path() + "/from";
  const std::string to = directory.path() + "/to";
  const Bytes expected = RandomBytes(100, 13);
  Make(from, expected);
  Make(to, RandomBytes(300, 14));
  CHECK_OK(Files().Rename(from, to));
  CHECK(Contents(to) == expected);
  CHECK(!std::filesystem::exists(from));
  CheckError(Files().Rename(from, to), StatusCode::kUnavailable,
             {"'" + from + "'", "'" + to + "'", "No such file"});
}

TEST(ALinkIsAnotherNameOfTheSameFile) {
  const TemporaryDirectory directory;
  const std::string from = directory.path() + "/from";
  const std::string to = directory.path() + "/to";
  const std::unique_ptr<File> file = Make(from, RandomBytes(100, 15));
  bool across = true;
  CHECK_OK(Files().Link(from, to, &across));
  CHECK(!across);
  const Bytes later = RandomBytes(100, 16);
  CHECK_OK(file->Write(0, 100, later.data()));
  CHECK(Contents(to) == later);
  CHECK_OK(Files().Remove(from));
  CHECK(Contents(to) == later);
  Make(from, {});
  CheckError(Files().Link(from, to, &across), StatusCode::kUnavailable,
             {"'" + from + "'", "'" + to + "'", "File exists"});
  CHECK(!across);
}

TEST(ALinkAcrossFileSystemsIsToldApart) {
  const TemporaryDirectory directory;
  const std::string other = "/dev/shm";
  struct stat here, there;
  CHECK_EQ(stat(directory.path().c_str(), &here), 0);
  if (stat(other.c_str(), &there) != 0 || here.st_dev == there.st_dev) return;
  const std::string from = directory.path() + "/from";
  Make(from, {});
  const std::string to = other + "/tfctr-test-" + std::to_string(getpid());
  bool across = false;
  CHECK_OK(Files().Link(from, to, &across));
  CHECK(across);
  CHECK(!std::filesystem::exists(to));
}

TEST(DirectoriesAreMadeWithTheirParentsAndMayExist) {
  const TemporaryDirectory directory;
  const std::string path = directory.path() + "/a/b/c";
  CHECK_OK(Files().MakeDirectory(path));
  CHECK(std::filesystem::is_directory(path));
  CHECK_OK(Files().MakeDirectory(path));
  Make(path + "/file", {});
  CheckError(Files().MakeDirectory(path + "/file/d"), StatusCode::kUnavailable,
             {"'" + path + "/file/d'", "Not a directory"});
}

TEST(ListsAreSorted) {
  const TemporaryDirectory directory;
  Names names = {"old"};
  CHECK_OK(Files().List(directory.path(), &names));
  CHECK_EQ(names, Names{});
  for (const char* name : {"b", "c", ".hidden", "a10", "a9"}) {
    Make(directory.path() + "/" + name, {});
  }
  CHECK_OK(Files().MakeDirectory(directory.path() + "/directory/below"));
  CHECK_OK(Files().List(directory.path(), &names));
  CHECK_EQ(names, (Names{".hidden", "a10", "a9", "b", "c", "directory"}));
  CheckError(
      Files().List(directory.path() + "/none", &names),
      StatusCode::kUnavailable,
      {"list the directory '" + directory.path() + "/none'", "No such file"});
}

TEST(ATreeIsRemovedWithAllInIt) {
  const TemporaryDirectory directory;
  const std::string path = directory.path() + "/tree";
  CHECK_OK(Files().MakeDirectory(path + "/a/b"));
  Make(path + "/file", {});
  Make(path + "/a/b/file", {});
  Make(directory.path() + "/stays", {});
  CHECK_OK(Files().RemoveTree(path));
  CHECK(!std::filesystem::exists(path));
  CHECK(std::filesystem::exists(directory.path() + "/stays"));
  CHECK_OK(Files().RemoveTree(path));
}

// ------ Locks.

TEST(ALockHasOneOwner) {
  const TemporaryDirectory directory;
  const std::string path = directory.path() + "/LOCK";
  std::unique_ptr<FileLock> first = Lock(path, false);
  CHECK(first != nullptr);
  CHECK(std::filesystem::exists(path));
  CHECK(Lock(path, false) == nullptr);
  CHECK(Lock(path + "2", false) != nullptr);
  first.reset();
  CHECK(Lock(path, false) != nullptr);
  std::unique_ptr<FileLock> lock;
  CheckError(
      Files().Lock(directory.path() + "/none/LOCK", true, &lock),
      StatusCode::kUnavailable,
      {"'" + directory.path() + "/none/LOCK'", "No such file or directory"});
  CHECK(lock == nullptr);
}

TEST(WhoWaitsForALockGetsItWhenItIsFree) {
  const TemporaryDirectory directory;
  const std::string path = directory.path() + "/LOCK";
  std::vector<std::thread> threads;
  std::atomic<int> owners{0};
  int64_t sum = 0;  // Guarded by the lock alone.
  for (int t = 0; t < 3; ++t) {
    threads.emplace_back([&] {
      for (int i = 0; i < 100; ++i) {
        const std::unique_ptr<FileLock> lock = Lock(path, true);
        CHECK(lock != nullptr);
        CHECK_EQ(owners.fetch_add(1), 0);
        sum += 1;
        owners.fetch_sub(1);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  CHECK_EQ(sum, 300);
}

TEST(TheSystemDropsTheLocksOfADeadProcess) {
  const TemporaryDirectory directory;
  const std::string path = directory.path() + "/LOCK";
  int ready[2];
  CHECK_EQ(pipe(ready), 0);
  const pid_t child = fork();
  if (child == 0) {
    alarm(60);  // Should the parent end before it kills.
    std::unique_ptr<FileLock> lock;
    const bool locked =
        Files().Lock(path, false, &lock).ok() && lock != nullptr;
    const char byte = locked ? 'y' : 'n';
    if (write(ready[1], &byte, 1) == 1) pause();
    _exit(1);
  }
  CHECK_GT(child, 0);
  close(ready[1]);
  char byte = 0;
  CHECK_EQ(read(ready[0], &byte, 1), ssize_t{1});
  CHECK_EQ(byte, 'y');
  CHECK(Lock(path, false) == nullptr);
  CHECK_EQ(kill(child, SIGKILL), 0);
  CHECK_EQ(waitpid(child, nullptr, 0), child);
  CHECK(Lock(path, false) != nullptr);
  close(ready[0]);
}

}  // namespace
}  // namespace tfctr
