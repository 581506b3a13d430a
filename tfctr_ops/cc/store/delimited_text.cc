#include "tfctr_ops/cc/store/delimited_text.h"

#include <array>
#include <cstring>
#include <limits>
#include <utility>

namespace tfctr {
namespace {

constexpr int64_t kMissingId = -1;
// Small enough that all threads end at about the same time.
constexpr int64_t kPartBytes = 256 << 10;
constexpr uint8_t kNoDigit = 255;

constexpr std::array<uint8_t, 256> HexDigits() {
  std::array<uint8_t, 256> digits{};
  for (int c = 0; c < 256; ++c) digits[c] = kNoDigit;
  for (int i = 0; i < 10; ++i) digits['0' + i] = i;
  for (int i = 0; i < 6; ++i) digits['a' + i] = digits['A' + i] = 10 + i;
  return digits;
}
constexpr std::array<uint8_t, 256> kHexDigits = HexDigits();

// Each parser reads a field, up to the delimiter, and returns where it ended,
// or null if it is not of its kind.

constexpr uint64_t EightOf(uint64_t byte) { return byte * 0x0101010101010101; }

// Whether 8 bytes are hexadecimal digits, and their value. All at once, since
// most categories have as many.
bool ParseEightHexDigits(const char* digits, uint64_t* value) {
  uint64_t bytes;
  std::memcpy(&bytes, digits, sizeof(bytes));
  constexpr uint64_t kHigh = EightOf(0x80);
  // Bytes of less than 0x80 carry into no other when so little is added, and
  // their upper bit then says whether they are as large as something.
  const auto from = [](uint64_t some, uint64_t low) {
    return some + EightOf(uint64_t{0x80} - low);
  };
  const uint64_t small = bytes | EightOf(0x20);
  const uint64_t is_digit = from(bytes, '0') & ~from(bytes, '9' + 1) & kHigh;
  const uint64_t is_letter = from(small, 'a') & ~from(small, 'f' + 1) & kHigh;
  if ((bytes & kHigh) != 0 || (is_digit | is_letter) != kHigh) return false;
  uint64_t nibbles = (bytes & EightOf(0x0f)) + (is_letter >> 7) * 9;
  nibbles = __builtin_bswap64(nibbles);  // The first digit is the highest.
  nibbles = (nibbles | nibbles >> 4) & 0x00ff00ff00ff00ff;
  nibbles = (nibbles | nibbles >> 8) & 0x0000ffff0000ffff;
  *value = (nibbles | nibbles >> 16) & 0xffffffff;
  return true;
}

const char* ParseHex(const char* at, const char* end, char delimiter,
                     int64_t* id) {
  uint64_t value = 0;
  if (end - at >= 8 && (end - at == 8 || at[8] == delimiter) &&
      ParseEightHexDigits(at, &value)) {
    *id = static_cast<int64_t>(value);
    return at + 8;
  }
  const char* begin = at;
  while (at < end && *at != delimiter) {
    const uint8_t digit = kHexDigits[static_cast<uint8_t>(*at++)];
    if (digit == kNoDigit) return nullptr;
    value = value << 4 | digit;
  }
  if (at - begin > 16) return nullptr;
  *id = at == begin ? kMissingId : static_cast<int64_t>(value);
  return at;
}

const char* ParseDecimal(const char* at, const char* end, char delimiter,
                         bool* is_missing, int64_t* value) {
  *is_missing = at == end || *at == delimiter;
  if (*is_missing) return at;
  const bool is_negative = *at == '-';
  if (is_negative) ++at;
  const char* begin = at;
  uint64_t magnitude = 0;
  while (at < end && *at != delimiter) {
    const uint8_t digit = static_cast<uint8_t>(*at++ - '0');
    if (digit > 9) return nullptr;
    magnitude = magnitude * 10 + digit;
  }
  // 18 digits fit 64 bits, whatever they are.
  if (at == begin || at - begin > 18) return nullptr;
  const int64_t number = static_cast<int64_t>(magnitude);
  *value = is_negative ? -number : number;
  return at;
}

const char* Skip(const char* at, const char* end, char delimiter) {
  const void* found = std::memchr(at, delimiter, end - at);
  return found == nullptr ? end : static_cast<const char*>(found);
}

// Where the fields of a line go.
struct RowPointers {
  float* label;
  float* number;
  int64_t* id;
};

const char* ParseField(FieldKind kind, const char* at, const char* end,
                       char delimiter, RowPointers* row) {
  switch (kind) {
    case FieldKind::kHexId:
      return ParseHex(at, end, delimiter, row->id++);
    case FieldKind::kNumber: {
      int64_t value = 0;
      bool is_missing;
      at = ParseDecimal(at, end, delimiter, &is_missing, &value);
      *row->number++ = is_missing ? std::numeric_limits<float>::quiet_NaN()
                                  : static_cast<float>(value);
      return at;
    }
    case FieldKind::kDecimalId: {
      bool is_missing;
      at = ParseDecimal(at, end, delimiter, &is_missing, row->id);
      if (is_missing) *row->id = kMissingId;
      ++row->id;
      return at;
    }
    case FieldKind::kLabel:
      if (at == end || (*at != '0' && *at != '1')) return nullptr;
      *row->label = static_cast<float>(*at++ - '0');
      return at == end || *at == delimiter ? at : nullptr;
    case FieldKind::kSkip:
      break;
  }
  return Skip(at, end, delimiter);
}

int64_t CountFields(const char* at, const char* end, char delimiter) {
  int64_t count = 1;
  for (; at < end; ++at) count += *at == delimiter;
  return count;
}

// Returns -1 if the line is good, else the first field that is not.
int64_t ParseLine(const std::vector<FieldKind>& kinds, const char* at,
                  const char* end, char delimiter, RowPointers row) {
  const int64_t num_fields = kinds.size();
  for (int64_t i = 0; i < num_fields; ++i) {
    at = ParseField(kinds[i], at, end, delimiter, &row);
    if (at == nullptr) return i;
    const bool is_last = i + 1 == num_fields;
    if (is_last != (at == end)) return i;
    ++at;
  }
  return -1;
}

}  // namespace

DelimitedText::DelimitedText(const char* text, int64_t size, char delimiter,
                             std::vector<FieldKind> kinds, Executor* executor)
    : text_(text),
      delimiter_(delimiter),
      kinds_(std::move(kinds)),
      executor_(executor) {
  for (const FieldKind kind : kinds_) {
    num_numbers_ += kind == FieldKind::kNumber;
    num_ids_ += kind == FieldKind::kDecimalId || kind == FieldKind::kHexId;
  }
  for (int64_t start = 0; start < size;) {
    starts_.push_back(start);
    const int64_t reach = start + kPartBytes;
    if (reach >= size) break;
    const void* end = std::memchr(text + reach, '\n', size - reach);
    if (end == nullptr) break;
    start = static_cast<const char*>(end) - text + 1;
  }
  starts_.push_back(size);
  const int64_t num_parts = starts_.size() - 1;
  std::vector<int64_t> counts(num_parts);
  executor_->ParallelFor(num_parts, [&](int64_t part) {
    const char* at = text_ + starts_[part];
    const char* const end = text_ + starts_[part + 1];
    int64_t count = 0;
    for (; at < end; ++count) at = Skip(at, end, '\n') + 1;
    counts[part] = count;
  });
  first_lines_.assign(1, 0);
  for (const int64_t count : counts) {
    first_lines_.push_back(first_lines_.back() + count);
  }
}

std::vector<BadLine> DelimitedText::Parse(const ParsedRows& rows) const {
  const int64_t num_parts = starts_.size() - 1;
  std::vector<std::vector<BadLine>> of_parts(num_parts);
  executor_->ParallelFor(
      num_parts, [&](int64_t part) { ParsePart(part, rows, &of_parts[part]); });
  std::vector<BadLine> all;
  for (const auto& some : of_parts) {
    all.insert(all.end(), some.begin(), some.end());
  }
  return all;
}

void DelimitedText::ParsePart(int64_t part, const ParsedRows& rows,
                              std::vector<BadLine>* bad_lines) const {
  const char* at = text_ + starts_[part];
  const char* const text_end = text_ + starts_[part + 1];
  for (int64_t line = first_lines_[part]; at < text_end; ++line) {
    const char* const line_end = Skip(at, text_end, '\n');
    const char* end = line_end;
    if (end > at && end[-1] == '\r') --end;
    const int64_t place = rows.places == nullptr ? line : rows.places[line];
    if (place < 0) {
      at = line_end + 1;
      continue;
    }
    const RowPointers row = {rows.labels + place,
                             rows.numbers + place * num_numbers_,
                             rows.ids + place * num_ids_};
    const int64_t bad_field = ParseLine(kinds_, at, end, delimiter_, row);
    if (bad_field >= 0) {
      const int64_t num_fields = CountFields(at, end, delimiter_);
      const bool is_whole = num_fields == static_cast<int64_t>(kinds_.size());
      bad_lines->push_back({line, at - text_, end - text_,
                            is_whole ? bad_field : -1, num_fields});
    }
    at = line_end + 1;
  }
}

}  // namespace tfctr
