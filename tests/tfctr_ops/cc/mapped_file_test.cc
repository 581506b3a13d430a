#include "tfctr_ops/cc/store/mapped_file.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstddef>
#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "tests/tfctr_ops/cc/check.h"
#include "tests/tfctr_ops/cc/temporary_directory.h"

namespace tfctr {
namespace {

using testing::TemporaryDirectory;

constexpr int64_t kPage = 4096;

// A file of pages 'a', 'b', ..., mapped with room for one page more.
class Letters {
 public:
  explicit Letters(int64_t num_pages) : path_(directory_.path() + "/letters") {
    for (int64_t page = 0; page < num_pages; ++page) Append(page);
    const int descriptor = open(path_.c_str(), O_RDONLY);
    map_ = MappedFile::Map(descriptor, (num_pages + 1) * kPage);
    close(descriptor);
    CHECK(map_ != nullptr);
  }
  void Append(int64_t page) {
    std::ofstream(path_, std::ios::app)
        << std::string(kPage, static_cast<char>('a' + page));
  }
  void Cut(int64_t num_pages) {
    std::filesystem::resize_file(path_, num_pages * kPage);
  }
  const std::byte* data() const { return map_->data(); }

  // The letter of a page; a dot if it cannot be read.
  char At(int64_t page) const {
    struct Peek {
      const std::byte* from;
      std::byte letter;
    } peek = {data() + page * kPage + kPage / 2, {}};
    const bool is_read = RunGuarded(
        [](void* argument) {
          Peek* const peek = static_cast<Peek*>(argument);
          peek->letter = *static_cast<const volatile std::byte*>(peek->from);
        },
        &peek);
    return is_read ? static_cast<char>(peek.letter) : '.';
  }

 private:
  TemporaryDirectory directory_;
  const std::string path_;
  std::unique_ptr<MappedFile> map_;
};

TEST(AFileIsMemory) {
  const Letters letters(3);
  for (int64_t page = 0; page < 3; ++page) {
    CHECK_EQ(letters.At(page), static_cast<char>('a' + page));
  }
}

TEST(WhatIsWrittenLaterIsThere) {
  Letters letters(2);
  CHECK_EQ(letters.At(2), '.');
  letters.Append(2);
  CHECK_EQ(letters.At(2), 'c');
}

TEST(APageThatCannotBeReadIsAnAnswerAndNoSignal) {
  Letters letters(3);
  letters.Cut(1);
  for (int i = 0; i < 3; ++i) {  // Every time.
    CHECK_EQ(letters.At(0), 'a');
    CHECK_EQ(letters.At(1), '.');
  }
}

TEST(EveryThreadHasItsOwnGuard) {
  Letters letters(3);
  letters.Cut(1);
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      for (int i = 0; i < 200; ++i) CHECK_EQ(letters.At(t % 2), "a."[t % 2]);
    });
  }
  for (std::thread& thread : threads) thread.join();
}

// Whether a child that runs `body` comes to its end.
bool Survives(void (*body)(const Letters&), const Letters& letters) {
  const pid_t child = fork();
  if (child == 0) {
    body(letters);
    _exit(0);
  }
  int status = 0;
  CHECK_EQ(waitpid(child, &status, 0), child);
  return status == 0;
}

TEST(ABusErrorOutsideTheGuardIsAsFatalAsEver) {
  Letters letters(3);
  letters.Cut(1);
  const auto touch = [](const Letters& letters) {
    static_cast<void>(
        *static_cast<const volatile std::byte*>(letters.data() + kPage));
  };
  CHECK(!Survives(touch, letters));
  // Also after one that was caught.
  CHECK_EQ(letters.At(1), '.');
  CHECK(!Survives(touch, letters));
  CHECK(Survives([](const Letters& letters) { letters.At(1); }, letters));
}

TEST(ASignalThatSomebodySendsIsAsFatalAsEver) {
  const Letters letters(1);
  const auto send = [](const Letters&) { raise(SIGBUS); };
  CHECK(!Survives(send, letters));
}

// Its owner's handler would get what is ours.
TEST(UnderAnotherHandlerNothingIsReadFromMaps) {
  const Letters letters(1);
  struct sigaction other = {}, ours = {};
  other.sa_handler = SIG_DFL;
  CHECK_EQ(sigaction(SIGBUS, &other, &ours), 0);
  CHECK_EQ(letters.At(0), '.');
  CHECK_EQ(sigaction(SIGBUS, &ours, nullptr), 0);
  CHECK_EQ(letters.At(0), 'a');
}

TEST(WhatCannotBeMappedIsNull) {
  CHECK(MappedFile::Map(/*descriptor=*/-1, kPage) == nullptr);
}

TEST(MapsAreLimitedAndGivenBack) {
  const TemporaryDirectory directory;
  const std::string path = directory.path() + "/file";
  std::ofstream(path) << std::string(kPage, 'x');
  const int descriptor = open(path.c_str(), O_RDONLY);
  std::vector<std::unique_ptr<MappedFile>> maps;
  while (maps.size() < (size_t{1} << 17)) {
    std::unique_ptr<MappedFile> map = MappedFile::Map(descriptor, kPage);
    if (map == nullptr) break;
    maps.push_back(std::move(map));
  }
  CHECK_EQ(maps.size(), size_t{16 << 10});
  maps.pop_back();
  CHECK(MappedFile::Map(descriptor, kPage) != nullptr);
  close(descriptor);
}

}  // namespace
}  // namespace tfctr
