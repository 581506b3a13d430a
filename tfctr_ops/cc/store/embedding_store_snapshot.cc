// Snapshots of an EmbeddingStore, while it goes on training.
//
// At one moment, with all locks held, every shard begins to tell rows that were
// changed before from rows that are changed after (RowHeader::dirty). Rows of
// the first kind are then written to disk, a few at a time, or by whoever wants
// to change or evict them first; segments remember which of their rows belong
// to that moment. In the end the snapshot is a set of links to segments.

#include <algorithm>
#include <new>
#include <numeric>
#include <string>
#include <system_error>
#include <thread>
#include <utility>

#include "tfctr_ops/cc/store/admission_format.h"
#include "tfctr_ops/cc/store/embedding_store.h"

namespace tfctr {
namespace {

std::string ParentOf(const std::string& directory) {
  const size_t end = directory.find_last_not_of('/');
  const size_t slash = directory.find_last_of('/', end);
  if (slash == std::string::npos) return ".";
  return slash == 0 ? "/" : directory.substr(0, slash);
}

std::string NameOf(const std::string& path) {
  return path.substr(path.find_last_of('/') + 1);
}

// Brings the segments to the disk, and into the directory.
Status Collect(FileSystem* files, const std::string& directory,
               const SegmentLayout& layout,
               const std::vector<SsdTier::CutSegment>& cut, Snapshot* snapshot,
               SaveReport* report) {
  for (const SsdTier::CutSegment& part : cut) {
    const int64_t pages =
        (part.num_rows + layout.rows_per_page - 1) / layout.rows_per_page;
    const int64_t expected = (1 + pages) * layout.page_bytes;
    int64_t size = 0;
    const std::string& from = part.segment->path();
    Status status = part.segment->Sync();
    if (status.ok()) status = part.segment->FileSize(&size);
    if (status.ok() && size < expected) {
      status = Status::DataLoss("'" + from + "' has lost its end: expected " +
                                std::to_string(expected) +
                                " bytes. Received: " + std::to_string(size) +
                                ". Resume from the snapshot before.");
    }
    const std::string to = directory + "/" + NameOf(from);
    bool across = false;
    if (status.ok()) status = files->Link(from, to, &across);
    if (status.ok() && across) status = CopyFile(files, from, to);
    if (!status.ok()) return status;
    SnapshotSegment segment;
    segment.name = NameOf(from);
    segment.num_rows = part.num_rows;
    segment.live = part.live;
    segment.live.resize(static_cast<size_t>((part.num_rows + 63) / 64));
    for (const uint64_t word : segment.live) {
      segment.num_live += __builtin_popcountll(word);
    }
    report->rows += segment.num_live;
    report->bytes += expected;
    if (!across) report->linked_bytes += expected;
    snapshot->segments.push_back(std::move(segment));
  }
  return Status::Ok();
}

}  // namespace

Status EmbeddingStore::SaveRows(std::vector<SsdTier::CutSegment>* segments) {
  // Some rows of each shard in turn: who takes a lock again at once keeps all
  // who wait for it out, and a whole shard takes long.
  std::vector<int64_t> unsaved(shards_.size());
  std::iota(unsaved.begin(), unsaved.end(), 0);
  while (!unsaved.empty()) {
    const auto is_saved = [&](int64_t s) {
      tier()->AwaitWriter();
      std::lock_guard<std::mutex> lock(shard(s).mutex());
      return !shard(s).SaveSome();
    };
    unsaved.erase(std::remove_if(unsaved.begin(), unsaved.end(), is_saved),
                  unsaved.end());
  }
  for (int64_t s = 0; s < num_shards(); ++s) {
    std::lock_guard<std::mutex> lock(shard(s).mutex());
    tier()->Seal(s);
    tier()->CutOf(s, segments);
  }
  tier()->FinishWrites();
  return tier()->error();
}

Status EmbeddingStore::SaveRowsBeside(
    std::vector<SsdTier::CutSegment>* segments) {
  Status status;
  try {
    // No priority that the caller's thread gave up could be taken back.
    std::thread([&] {
      GiveWay();
      try {
        status = SaveRows(segments);
      } catch (const std::bad_alloc&) {
        status = NoMemoryToSave();
      }
    }).join();
  } catch (const std::system_error&) {
    status = NoMemoryToSave();
  }
  return status;
}

Status EmbeddingStore::NoMemoryToSave() const {
  return Status::ResourceExhausted(
      "The system has no memory left to save table '" + options_.name +
      "'. The training can go on, and the snapshots before are whole. Lower "
      "`ram`, or use a machine with more memory.");
}

bool EmbeddingStore::EndCut() {
  saves_to_.clear();
  const std::vector<std::unique_lock<std::mutex>> locks = LockShards();
  bool saved_all = true;
  for (const auto& shard : shards_) saved_all &= shard->EndSnapshot();
  tier()->EndCut();
  return saved_all;
}

Status EmbeddingStore::OpenSnapshotTier(const std::string& scratch) {
  if (ssd_ != nullptr || snapshot_tier_ != nullptr) return Status::Ok();
  SsdOptions options;
  options.directory = scratch;
  options.files = options_.ssd.files;
  options.gives_way = true;
  Status status =
      SsdTier::Open(options, layout_, num_shards(), &snapshot_tier_);
  if (!status.ok()) return status;
  const std::vector<std::unique_lock<std::mutex>> locks = LockShards();
  for (const auto& shard : shards_) shard->KeepCopies(snapshot_tier_.get());
  return Status::Ok();
}

Status EmbeddingStore::BeginSave(const std::string& directory,
                                 const std::string& scratch,
                                 Executor* executor) {
  std::lock_guard<std::mutex> save_lock(save_mutex_);
  AbandonSave();
  FileSystem* const files = options_.ssd.files;
  std::vector<std::string> names;
  if (files->List(directory, &names).ok()) {
    return Status::FailedPrecondition(
        "A snapshot is written to a new directory. Received: '" + directory +
        "', which exists. Name another, or remove it.");
  }
  Status status = files->RemoveTree(directory + ".tmp");
  if (status.ok()) status = files->MakeDirectory(directory + ".tmp");
  if (status.ok()) status = OpenSnapshotTier(scratch);
  if (status.ok()) status = tier()->error();
  if (!status.ok()) return status;
  std::lock_guard<std::mutex> step_lock(step_mutex_);
  status = FlushLocked(executor);
  if (!status.ok()) return status;
  const std::vector<std::unique_lock<std::mutex>> locks = LockShards();
  // What may find no memory comes first: a cut that was begun must be ended.
  admission_of_save_ = CopyAdmission();
  saves_to_ = directory;
  step_of_save_ = step_;
  tier()->BeginCut();
  for (const auto& shard : shards_) shard->BeginSnapshot();
  return Status::Ok();
}

Status EmbeddingStore::FinishSave(const std::string& metadata,
                                  SaveReport* report) {
  std::lock_guard<std::mutex> save_lock(save_mutex_);
  *report = {};
  if (saves_to_.empty()) {
    return Status::FailedPrecondition(
        "Table '" + options_.name +
        "' has no snapshot to finish: none was begun, or its rows were "
        "replaced since, or another was begun. Save again.");
  }
  const std::string directory = saves_to_;
  const std::string draft = directory + ".tmp";
  FileSystem* const files = options_.ssd.files;
  const int64_t before = tier()->rows_saved();
  std::vector<SsdTier::CutSegment> cut;
  Status status = SaveRowsBeside(&cut);
  if (!EndCut() && status.ok()) {
    status = Status::ResourceExhausted(
        "Table '" + options_.name + "' could not be saved: ssd_limit=" +
        std::to_string(tier()->limit_bytes()) +
        " bytes leave no room for the rows that have changed. Raise "
        "`ssd_limit`.");
  }
  Snapshot snapshot;
  snapshot.metadata = metadata;
  snapshot.step = step_of_save_;
  snapshot.dim = layout_.dim();
  snapshot.num_slot_floats = layout_.num_slot_floats();
  snapshot.optimizer = static_cast<int64_t>(options_.optimizer.kind);
  snapshot.page_bytes = tier()->layout().page_bytes;
  snapshot.rows_per_page = tier()->layout().rows_per_page;
  if (status.ok()) {
    status = Collect(files, draft, tier()->layout(), cut, &snapshot, report);
  }
  report->rows_written = tier()->rows_saved() - before;
  cut.clear();
  snapshot.admission_bytes = static_cast<int64_t>(admission_of_save_.size());
  if (status.ok() && snapshot.admission_bytes > 0) {
    SealAdmission(&admission_of_save_);
    status = WriteAdmission(files, draft, admission_of_save_);
    report->bytes += snapshot.admission_bytes;
  }
  std::vector<char>().swap(admission_of_save_);
  if (status.ok()) status = WriteManifest(files, draft, snapshot);
  if (status.ok()) status = files->SyncDirectory(draft);
  if (status.ok()) status = files->Rename(draft, directory);
  if (status.ok()) status = files->SyncDirectory(ParentOf(directory));
  // What cannot be removed either is removed by the next attempt.
  if (!status.ok()) files->RemoveTree(draft);
  // Copies that only snapshots share are compacted here, where nobody waits.
  for (int64_t s = 0; snapshot_tier_ != nullptr && s < num_shards(); ++s) {
    while (CompactShard(snapshot_tier_.get(), s, /*any=*/false)) {
    }
  }
  return status;
}

Status EmbeddingStore::Save(const std::string& directory,
                            const std::string& metadata, Executor* executor,
                            SaveReport* report) {
  Status status = BeginSave(directory, ParentOf(directory), executor);
  return status.ok() ? FinishSave(metadata, report) : status;
}

void EmbeddingStore::AbandonSave() {
  if (saves_to_.empty()) return;
  options_.ssd.files->RemoveTree(saves_to_ + ".tmp");
  std::vector<char>().swap(admission_of_save_);
  EndCut();
}

}  // namespace tfctr
