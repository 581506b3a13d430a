// DelimitedText: lines of fields between delimiters, as columns of numbers.
// Thread safety: nothing changes after construction. Several threads may call
// Parse, each with rows of its own, if the executor serves them all.

#ifndef TFCTR_OPS_CC_STORE_DELIMITED_TEXT_H_
#define TFCTR_OPS_CC_STORE_DELIMITED_TEXT_H_

#include <cstdint>
#include <string>
#include <vector>

#include "tfctr_ops/cc/store/executor.h"

namespace tfctr {

// What a field of a line holds.
enum class FieldKind : char {
  kSkip = '-',       // Anything.
  kLabel = 'l',      // 0 or 1.
  kNumber = 'n',     // A decimal integer, or nothing: NaN.
  kDecimalId = 'd',  // A decimal integer of up to 18 digits, or nothing: -1.
  kHexId = 'h',      // Up to 16 hexadecimal digits, or nothing: -1.
};

struct BadLine {
  int64_t line;   // From 0.
  int64_t begin;  // Its bytes in the text, without the end of the line.
  int64_t end;
  int64_t column;      // The first field that is wrong, or -1:
  int64_t num_fields;  // the line has another number of fields.
};

// Where rows go; row i belongs to line i, whether the line is good or not,
// unless `places` says another one.
struct ParsedRows {
  float* labels;   // (rows)
  float* numbers;  // (rows, fields of kNumber)
  int64_t* ids;    // (rows, fields of kDecimalId and kHexId)
  // (lines), or null. The row of each line; negative: the line is passed over.
  const int64_t* places = nullptr;
};

class DelimitedText {
 public:
  // Finds the lines. The last one may lack its '\n'; a '\r' before it is no
  // part of the line. `text` stays the caller's, and must outlive this.
  // REQUIRES: `kinds` is not empty and has at most one kLabel.
  DelimitedText(const char* text, int64_t size, char delimiter,
                std::vector<FieldKind> kinds, Executor* executor);

  int64_t num_lines() const { return first_lines_.back(); }
  int64_t num_numbers() const { return num_numbers_; }
  int64_t num_ids() const { return num_ids_; }

  // Parses every line, and returns those that are not as `kinds` says, in
  // order; what their rows hold is unspecified.
  std::vector<BadLine> Parse(const ParsedRows& rows) const;

 private:
  void ParsePart(int64_t part, const ParsedRows& rows,
                 std::vector<BadLine>* bad_lines) const;

  const char* const text_;
  const char delimiter_;
  const std::vector<FieldKind> kinds_;
  Executor* const executor_;
  int64_t num_numbers_ = 0;
  int64_t num_ids_ = 0;
  // Part i, whole lines, begins at starts_[i] with line first_lines_[i].
  std::vector<int64_t> starts_;
  std::vector<int64_t> first_lines_;
};

}  // namespace tfctr

#endif  // TFCTR_OPS_CC_STORE_DELIMITED_TEXT_H_
