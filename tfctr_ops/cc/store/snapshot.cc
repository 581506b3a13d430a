#include "tfctr_ops/cc/store/snapshot.h"

#include <algorithm>
#include <cstring>
#include <memory>
#include <utility>

#include "tfctr_ops/cc/store/checksum.h"
#include "tfctr_ops/cc/store/segment.h"

namespace tfctr {
namespace {

constexpr char kMagic[8] = {'t', 'f', 'c', 't', 'r', 'S', 'N', 'P'};
constexpr uint64_t kVersion = 2;
// Of a snapshot without counters of admission, as it always was.
constexpr uint64_t kPlainVersion = 1;
constexpr int64_t kPagesAtOnce = 64;
constexpr int64_t kCopyBytes = int64_t{4} << 20;

// Appends numbers and strings to bytes.
class Writer {
 public:
  void Number(uint64_t value) { Bytes(&value, sizeof(value)); }
  void String(const std::string& text) {
    Number(text.size());
    Bytes(text.data(), text.size());
  }
  void Bytes(const void* data, size_t size) {
    const auto* from = static_cast<const char*>(data);
    bytes_.insert(bytes_.end(), from, from + size);
  }
  const std::vector<char>& bytes() const { return bytes_; }

 private:
  std::vector<char> bytes_;
};

// Takes them back; after the end, everything is zero or empty and `ok` is
// false.
class Reader {
 public:
  explicit Reader(const std::vector<char>& bytes) : bytes_(bytes) {}
  uint64_t Number() {
    uint64_t value = 0;
    Bytes(&value, sizeof(value));
    return value;
  }
  std::string String() {
    const uint64_t size = Number();
    if (size > bytes_.size() - at_) {
      ok_ = false;
      return "";
    }
    std::string text(size, '\0');
    Bytes(text.data(), size);
    return text;
  }
  void Bytes(void* to, size_t size) {
    ok_ = ok_ && size <= bytes_.size() - at_;
    if (!ok_) return;
    std::memcpy(to, bytes_.data() + at_, size);
    at_ += size;
  }
  bool ok() const { return ok_; }
  bool at_end() const { return ok_ && at_ == bytes_.size(); }

 private:
  const std::vector<char>& bytes_;
  size_t at_ = 0;
  bool ok_ = true;
};

}  // namespace

Status WriteManifest(FileSystem* files, const std::string& directory,
                     const Snapshot& snapshot) {
  Writer out;
  out.Bytes(kMagic, sizeof(kMagic));
  const bool is_plain = snapshot.admission_bytes == 0;
  out.Number(is_plain ? kPlainVersion : kVersion);
  out.Number(static_cast<uint64_t>(snapshot.step));
  out.Number(static_cast<uint64_t>(snapshot.dim));
  out.Number(static_cast<uint64_t>(snapshot.num_slot_floats));
  out.Number(static_cast<uint64_t>(snapshot.optimizer));
  out.Number(static_cast<uint64_t>(snapshot.page_bytes));
  out.Number(static_cast<uint64_t>(snapshot.rows_per_page));
  out.String(snapshot.metadata);
  out.Number(snapshot.segments.size());
  for (const SnapshotSegment& segment : snapshot.segments) {
    out.String(segment.name);
    out.Number(static_cast<uint64_t>(segment.num_rows));
    out.Bytes(segment.live.data(), segment.live.size() * sizeof(uint64_t));
  }
  if (!is_plain) out.Number(static_cast<uint64_t>(snapshot.admission_bytes));
  std::vector<char> bytes = out.bytes();
  const uint32_t crc = Crc32c(bytes.data(), static_cast<int64_t>(bytes.size()));
  bytes.resize(bytes.size() + sizeof(crc));
  std::memcpy(bytes.data() + bytes.size() - sizeof(crc), &crc, sizeof(crc));

  return WriteFile(files, directory + "/" + kManifestName, bytes);
}

Status ReadManifest(FileSystem* files, const std::string& directory,
                    Snapshot* snapshot) {
  const std::string path = directory + "/" + kManifestName;
  std::unique_ptr<File> file;
  int64_t size = 0;
  Status status = files->Open(path, FileSystem::Mode::kRead, &file);
  if (status.ok()) status = file->Size(&size);
  if (!status.ok()) return status;
  uint32_t stored = 0;
  if (size < static_cast<int64_t>(sizeof(kMagic) + sizeof(stored))) {
    return Status::DataLoss("'" + path + "' is no manifest of tfctr: it has " +
                            std::to_string(size) + " bytes.");
  }
  std::vector<char> bytes(static_cast<size_t>(size));
  status = file->Read(0, size, reinterpret_cast<std::byte*>(bytes.data()));
  if (!status.ok()) return status;
  std::memcpy(&stored, bytes.data() + bytes.size() - sizeof(stored),
              sizeof(stored));
  bytes.resize(bytes.size() - sizeof(stored));
  const uint32_t computed =
      Crc32c(bytes.data(), static_cast<int64_t>(bytes.size()));
  if (stored != computed) return Damaged(path, 0, "manifest", stored, computed);

  Reader in(bytes);
  char magic[sizeof(kMagic)] = {};
  in.Bytes(magic, sizeof(magic));
  if (std::memcmp(magic, kMagic, sizeof(kMagic)) != 0) {
    return Status::DataLoss("'" + path + "' is no manifest of tfctr.");
  }
  const uint64_t version = in.Number();
  if (version != kVersion && version != kPlainVersion) {
    return Status::InvalidArgument(
        "'" + path + "' has version " + std::to_string(version) +
        " of the format; this tfctr reads versions " +
        std::to_string(kPlainVersion) + " to " + std::to_string(kVersion) +
        ".");
  }
  *snapshot = {};
  snapshot->step = static_cast<int64_t>(in.Number());
  snapshot->dim = static_cast<int64_t>(in.Number());
  snapshot->num_slot_floats = static_cast<int64_t>(in.Number());
  snapshot->optimizer = static_cast<int64_t>(in.Number());
  snapshot->page_bytes = static_cast<int64_t>(in.Number());
  snapshot->rows_per_page = static_cast<int64_t>(in.Number());
  snapshot->metadata = in.String();
  const uint64_t num_segments = in.Number();
  for (uint64_t i = 0; in.ok() && i < num_segments; ++i) {
    SnapshotSegment segment;
    segment.name = in.String();
    segment.num_rows = static_cast<int64_t>(in.Number());
    segment.live.resize(static_cast<size_t>((segment.num_rows + 63) / 64));
    in.Bytes(segment.live.data(), segment.live.size() * sizeof(uint64_t));
    for (const uint64_t word : segment.live) {
      segment.num_live += __builtin_popcountll(word);
    }
    snapshot->segments.push_back(std::move(segment));
  }
  if (version == kVersion) {
    snapshot->admission_bytes = static_cast<int64_t>(in.Number());
  }
  if (!in.at_end()) {
    return Status::DataLoss("'" + path + "' does not end where it should.");
  }
  return Status::Ok();
}

Status ReadSegment(
    FileSystem* files, const std::string& directory, const Snapshot& snapshot,
    const SnapshotSegment& segment,
    const std::function<Status(std::byte* rows, int64_t n)>& use) {
  const RowLayout rows(snapshot.dim, snapshot.num_slot_floats);
  const SegmentLayout layout(rows, 0);
  const std::string path = directory + "/" + segment.name;
  if (layout.page_bytes != snapshot.page_bytes ||
      layout.rows_per_page != snapshot.rows_per_page) {
    return Status::DataLoss("The manifest of '" + directory +
                            "' tells sizes that do not go together.");
  }
  std::unique_ptr<File> file;
  Status status = files->Open(path, FileSystem::Mode::kRead, &file);
  if (!status.ok()) return status;
  const AlignedBytes pages(kPagesAtOnce * layout.page_bytes);
  status = file->Read(0, layout.page_bytes, pages.data());
  SegmentHeader header;
  if (status.ok()) {
    status = CheckHeader(path, layout.page_bytes, pages.data(), &header);
  }
  const int64_t rows_at_once = kPagesAtOnce * layout.rows_per_page;
  for (int64_t first = 0; status.ok() && first < segment.num_rows;
       first += rows_at_once) {
    const int64_t end = std::min(segment.num_rows, first + rows_at_once);
    const int64_t page = first / layout.rows_per_page;
    const int64_t num_pages =
        (end - first + layout.rows_per_page - 1) / layout.rows_per_page;
    status = file->Read(layout.PageOffset(page), num_pages * layout.page_bytes,
                        pages.data());
    for (int64_t p = 0; status.ok() && p < num_pages; ++p) {
      status = CheckPage(layout, page + p, path,
                         pages.data() + p * layout.page_bytes);
    }
    if (!status.ok()) break;
    // The live rows move to the front, one after the other.
    int64_t n = 0;
    for (int64_t r = first; r < end; ++r) {
      if (!segment.is_live(r)) continue;
      std::memmove(pages.data() + n++ * layout.row_bytes,
                   pages.data() + layout.InPages(r - first),
                   static_cast<size_t>(layout.row_bytes));
    }
    if (n > 0) status = use(pages.data(), n);
  }
  return status;
}

Status WriteFile(FileSystem* files, const std::string& path,
                 const std::vector<char>& bytes) {
  std::unique_ptr<File> file;
  Status status = files->Open(path, FileSystem::Mode::kCreate, &file);
  if (status.ok()) {
    status = file->Write(0, static_cast<int64_t>(bytes.size()),
                         reinterpret_cast<const std::byte*>(bytes.data()));
  }
  if (status.ok()) status = file->Sync();
  return status;
}

Status CopyFile(FileSystem* files, const std::string& from,
                const std::string& to) {
  std::unique_ptr<File> source, target;
  int64_t size = 0;
  Status status = files->Open(from, FileSystem::Mode::kRead, &source);
  if (status.ok()) status = source->Size(&size);
  if (status.ok()) status = files->Open(to, FileSystem::Mode::kCreate, &target);
  std::vector<std::byte> bytes(static_cast<size_t>(std::min(size, kCopyBytes)));
  for (int64_t done = 0; status.ok() && done < size; done += kCopyBytes) {
    const int64_t n = std::min(kCopyBytes, size - done);
    status = source->Read(done, n, bytes.data());
    if (status.ok()) status = target->Write(done, n, bytes.data());
  }
  if (status.ok()) status = target->Sync();
  return status;
}

}  // namespace tfctr
