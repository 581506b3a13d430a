// Lines on several threads, at every size of text; the numbers themselves are
// checked from Python, in delimited_text_test.py.

#include "tfctr_ops/cc/store/delimited_text.h"

#include <cstdint>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "tests/tfctr_ops/cc/check.h"
#include "tests/tfctr_ops/cc/random.h"
#include "tests/tfctr_ops/cc/thread_executor.h"

namespace tfctr {
namespace {

using testing::Random;
using testing::ThreadExecutor;

struct Parsed {
  std::vector<float> labels, numbers;
  std::vector<int64_t> ids;
  std::vector<BadLine> bad_lines;
};

Parsed Parse(const std::string& text, const std::string& kinds) {
  ThreadExecutor executor(3);
  std::vector<FieldKind> fields;
  for (const char kind : kinds) fields.push_back(static_cast<FieldKind>(kind));
  // Of exactly its size, so that a byte read behind it is noticed.
  const std::unique_ptr<char[]> bytes(new char[text.size()]);
  std::memcpy(bytes.get(), text.data(), text.size());
  const DelimitedText lines(bytes.get(), static_cast<int64_t>(text.size()), ',',
                            fields, &executor);
  Parsed parsed;
  const auto n = static_cast<size_t>(lines.num_lines());
  parsed.labels.resize(n);
  parsed.numbers.resize(n * static_cast<size_t>(lines.num_numbers()));
  parsed.ids.resize(n * static_cast<size_t>(lines.num_ids()));
  parsed.bad_lines = lines.Parse(
      {parsed.labels.data(), parsed.numbers.data(), parsed.ids.data()});
  return parsed;
}

TEST(FindsEveryLineInItsOrder) {
  std::string text;
  const int64_t n = 200000;
  for (int64_t i = 0; i < n; ++i) {
    text += i % 1000 == 7 ? "bad\r\n" : "1," + std::to_string(i) + ",ff\n";
  }
  const Parsed parsed = Parse(text, "ldh");
  CHECK_EQ(parsed.labels.size(), static_cast<size_t>(n));
  for (int64_t i = 0; i < n; ++i) {
    if (i % 1000 == 7) continue;
    CHECK_EQ(parsed.ids[static_cast<size_t>(2 * i)], i);
    CHECK_EQ(parsed.ids[static_cast<size_t>(2 * i + 1)], 255);
  }
  CHECK_EQ(parsed.bad_lines.size(), static_cast<size_t>(n / 1000));
  for (size_t i = 0; i < parsed.bad_lines.size(); ++i) {
    const BadLine& bad = parsed.bad_lines[i];
    CHECK_EQ(bad.line, static_cast<int64_t>(1000 * i + 7));
    CHECK_EQ(bad.end - bad.begin, 3);
    CHECK_EQ(text.compare(static_cast<size_t>(bad.begin), 3, "bad"), 0);
    CHECK_EQ(bad.column, -1);
    CHECK_EQ(bad.num_fields, 1);
  }
}

TEST(PutsLinesWhereTheyBelong) {
  const int64_t n = 30000;
  std::string text;
  std::vector<int64_t> places(n, -1);
  for (int64_t i = 0; i < n; ++i) {
    text += i % 3 == 1 ? "passed over\n" : "1," + std::to_string(i) + "\n";
    // Those that are not passed over, in reverse.
    if (i % 3 != 1) places[static_cast<size_t>(i)] = (n - 1 - i) * 2 / 3;
  }
  ThreadExecutor executor(3);
  const DelimitedText lines(text.data(), static_cast<int64_t>(text.size()), ',',
                            {FieldKind::kLabel, FieldKind::kDecimalId},
                            &executor);
  std::vector<float> labels(2 * n / 3);
  std::vector<int64_t> ids(2 * n / 3);
  const std::vector<BadLine> bad_lines =
      lines.Parse({labels.data(), nullptr, ids.data(), places.data()});
  CHECK(bad_lines.empty());
  for (int64_t i = 0; i < n; ++i) {
    const int64_t place = places[static_cast<size_t>(i)];
    if (place >= 0) CHECK_EQ(ids[static_cast<size_t>(place)], i);
  }
}

TEST(ReadsNothingBehindAnyText) {
  Random random(1);
  const std::string bytes =
      "01,-\r\n\nf9\xff"
      "0123456789abcdef";
  for (size_t size = 0; size < 300; ++size) {
    std::string text;
    for (size_t i = 0; i < size; ++i) text += bytes[random.Below(bytes.size())];
    const Parsed parsed = Parse(text, "lndh-");
    CHECK(parsed.bad_lines.size() <= parsed.labels.size());
  }
}

}  // namespace
}  // namespace tfctr
