#include "tfctr_ops/cc/store/segment.h"

#include <algorithm>
#include <cstring>
#include <new>
#include <utility>

namespace tfctr {

AlignedBytes::AlignedBytes(int64_t size)
    : data_(static_cast<std::byte*>(std::aligned_alloc(
          SegmentLayout::kSector, static_cast<size_t>(size)))) {
  if (data_ == nullptr) throw std::bad_alloc();
  std::memset(data_.get(), 0, static_cast<size_t>(size));
}

Status Segment::Create(FileSystem* files, const SegmentLayout& layout,
                       int64_t chunk_pages, const std::string& path,
                       uint64_t number, uint32_t shard,
                       std::shared_ptr<DiskUsage> usage, int64_t spare,
                       std::shared_ptr<Segment>* segment) {
  segment->reset();
  if (!usage->Reserve(layout.page_bytes, spare)) return Status::Ok();
  std::unique_ptr<File> file;
  Status status = files->Open(path, FileSystem::Mode::kCreate, &file);
  if (!status.ok()) {
    usage->Release(layout.page_bytes);
    return status;
  }
  segment->reset(new Segment(files, layout, chunk_pages, number, shard,
                             std::move(usage), std::move(file)));
  return Status::Ok();
}

Segment::Segment(FileSystem* files, const SegmentLayout& layout,
                 int64_t chunk_pages, uint64_t number, uint32_t shard,
                 std::shared_ptr<DiskUsage> usage, std::unique_ptr<File> file)
    : files_(files),
      layout_(layout),
      chunk_pages_(chunk_pages),
      number_(number),
      shard_(shard),
      usage_(std::move(usage)),
      file_(std::move(file)),
      reserved_bytes_(layout.page_bytes) {}

Segment::~Segment() {
  // A file that cannot be removed is left for the next owner of the directory.
  files_->Remove(path());
  usage_->Release(reserved_bytes_);
}

void Segment::ClearLive(int64_t row, int64_t cut, bool of_cut) {
  NoteCut(cut);
  const uint64_t others = ~(uint64_t{1} << (row % 64));
  live_[static_cast<size_t>(row / 64)] &= others;
  if (of_cut) cut_live_[static_cast<size_t>(row / 64)] &= others;
  --num_live_;
}

int64_t Segment::ChunkPages(int64_t chunk) const {
  return std::min(chunk_pages_, layout_.pages - chunk * chunk_pages_);
}

void Segment::ReleaseWritten() {
  const int64_t written = written_chunks_.load(std::memory_order_acquire);
  for (int64_t c = written; c-- > 0;) {
    if (chunks_[static_cast<size_t>(c)] == nullptr) break;
    chunks_[static_cast<size_t>(c)].reset();
  }
}

bool Segment::MakeRoom(int64_t spare) {
  const int64_t chunk = num_rows_ / chunk_rows();
  if (num_rows_ % chunk_rows() != 0 ||
      static_cast<int64_t>(chunks_.size()) > chunk) {
    return true;
  }
  ReleaseWritten();
  const int64_t bytes = ChunkPages(chunk) * layout_.page_bytes;
  if (!usage_->Reserve(bytes, spare)) return false;
  reserved_bytes_ += bytes;
  auto fresh = std::make_shared<Chunk>(bytes);
  fresh->first_page = chunk * chunk_pages_;
  chunks_.push_back(std::move(fresh));
  const int64_t rows = std::min(layout_.capacity(), (chunk + 1) * chunk_rows());
  live_.resize(static_cast<size_t>((rows + 63) / 64), 0);
  return true;
}

int64_t Segment::Add(const std::byte* row, int64_t cut, bool of_cut) {
  NoteCut(cut);
  Chunk* chunk = chunks_.back().get();
  const int64_t in_chunk = chunk->num_rows++;
  const int64_t page = in_chunk / layout_.rows_per_page;
  CopyForDisk(row, layout_.row_bytes,
              chunk->memory.data() + page * layout_.page_bytes +
                  layout_.InPage(in_chunk));
  const int64_t number = num_rows_++;
  const uint64_t bit = uint64_t{1} << (number % 64);
  live_[static_cast<size_t>(number / 64)] |= bit;
  if (of_cut) {
    cut_live_.resize(live_.size(), 0);
    cut_live_[static_cast<size_t>(number / 64)] |= bit;
  }
  ++num_live_;
  return number;
}

std::shared_ptr<Segment::Chunk> Segment::TakeFullChunk() {
  if (num_rows_ % chunk_rows() != 0 && !is_full()) return nullptr;
  return chunks_.back();
}

std::shared_ptr<Segment::Chunk> Segment::Seal() {
  if (is_sealed_) return nullptr;
  is_sealed_ = true;
  if (is_full() || num_rows_ % chunk_rows() == 0) {
    return nullptr;  // The last chunk was full, or there is none.
  }
  const std::shared_ptr<Chunk> chunk = chunks_.back();
  const int64_t used =
      (chunk->num_rows + layout_.rows_per_page - 1) / layout_.rows_per_page;
  const int64_t left = (ChunkPages(chunk->first_page / chunk_pages_) - used) *
                       layout_.page_bytes;
  reserved_bytes_ -= left;
  usage_->Release(left);
  return chunk;
}

bool Segment::CopyFromMemory(int64_t row, std::byte* to) const {
  const int64_t chunk = row / chunk_rows();
  if (chunk < written_chunks_.load(std::memory_order_acquire)) return false;
  const int64_t in_chunk = row % chunk_rows();
  const int64_t page = in_chunk / layout_.rows_per_page;
  std::memcpy(to,
              chunks_[static_cast<size_t>(chunk)]->memory.data() +
                  page * layout_.page_bytes + layout_.InPage(in_chunk),
              static_cast<size_t>(layout_.row_bytes));
  return true;
}

const std::byte* Segment::Mapped() {
  if (!is_map_tried_) {
    is_map_tried_ = true;
    map_ = file_->Map(layout_.file_bytes());
  }
  return map_ == nullptr ? nullptr : map_->data();
}

void Segment::CopyPageFromMemory(int64_t page, std::byte* to) const {
  const Chunk& chunk = *chunks_[static_cast<size_t>(page / chunk_pages_)];
  std::memcpy(
      to, chunk.memory.data() + (page - chunk.first_page) * layout_.page_bytes,
      static_cast<size_t>(layout_.page_bytes));
}

Status Segment::Write(const Chunk& chunk) {
  const int64_t num_pages =
      (chunk.num_rows + layout_.rows_per_page - 1) / layout_.rows_per_page;
  // Sealed in a copy, since rows are read from the chunk at the same time. The
  // first page of the file goes before the first chunk.
  const int64_t head = chunk.first_page == 0 ? 1 : 0;
  const AlignedBytes pages((head + num_pages) * layout_.page_bytes);
  if (head == 1) SealHeader(layout_, number_, shard_, pages.data());
  std::byte* const first = pages.data() + head * layout_.page_bytes;
  std::memcpy(first, chunk.memory.data(),
              static_cast<size_t>(num_pages * layout_.page_bytes));
  for (int64_t p = 0; p < num_pages; ++p) {
    const int64_t rows = std::min(layout_.rows_per_page,
                                  chunk.num_rows - p * layout_.rows_per_page);
    SealPage(layout_, number_, shard_, chunk.first_page + p, rows,
             first + p * layout_.page_bytes);
  }
  const int64_t offset =
      layout_.PageOffset(chunk.first_page) - head * layout_.page_bytes;
  Status status = file_->Write(offset, (head + num_pages) * layout_.page_bytes,
                               pages.data());
  if (status.ok()) written_chunks_.fetch_add(1, std::memory_order_release);
  return status;
}

Status Segment::ReadDirect(int64_t offset, int64_t size, std::byte* to) {
  File* file;
  {
    std::lock_guard<std::mutex> lock(direct_mutex_);
    if (direct_file_ == nullptr) {
      Status status =
          files_->Open(path(), FileSystem::Mode::kReadDirect, &direct_file_);
      if (!status.ok()) return status;
    }
    file = direct_file_.get();
  }
  return file->Read(offset, size, to);
}

}  // namespace tfctr
