// TemporaryDirectory: an empty directory that is gone when its owner is.

#ifndef TESTS_TFCTR_OPS_CC_TEMPORARY_DIRECTORY_H_
#define TESTS_TFCTR_OPS_CC_TEMPORARY_DIRECTORY_H_

#include <cstdlib>
#include <filesystem>
#include <string>

#include "tests/tfctr_ops/cc/check.h"

namespace tfctr {
namespace testing {

class TemporaryDirectory {
 public:
  TemporaryDirectory() {
    std::string name =
        (std::filesystem::temp_directory_path() / "tfctr-test-XXXXXX").string();
    CHECK(mkdtemp(name.data()) != nullptr);
    path_ = name;
  }
  ~TemporaryDirectory() { std::filesystem::remove_all(path_); }
  TemporaryDirectory(const TemporaryDirectory&) = delete;
  TemporaryDirectory& operator=(const TemporaryDirectory&) = delete;

  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

}  // namespace testing
}  // namespace tfctr

#endif  // TESTS_TFCTR_OPS_CC_TEMPORARY_DIRECTORY_H_
