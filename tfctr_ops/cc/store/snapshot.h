// Snapshot: the rows of a table as of one moment, in a directory of their own.
//
// The directory holds segment files and a MANIFEST, which says which of their
// rows belong to it. It is complete or not there: it is made under another name
// and renamed when everything is on the disk. FORMAT.md describes every byte.

#ifndef TFCTR_OPS_CC_STORE_SNAPSHOT_H_
#define TFCTR_OPS_CC_STORE_SNAPSHOT_H_

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "tfctr_ops/cc/store/file_system.h"
#include "tfctr_ops/cc/store/hash.h"
#include "tfctr_ops/cc/store/segment_format.h"
#include "tfctr_ops/cc/store/status.h"

namespace tfctr {

constexpr char kManifestName[] = "MANIFEST";

struct SnapshotSegment {
  std::string name;      // Of the file in the directory.
  int64_t num_rows = 0;  // In the file, stale ones included.
  int64_t num_live = 0;
  std::vector<uint64_t> live;  // A bit per row.

  bool is_live(int64_t row) const {
    return (live[static_cast<size_t>(row / 64)] >> (row % 64)) & 1;
  }
};

struct Snapshot {
  std::string metadata;  // Of the caller; not looked into here.
  int64_t step = 0;
  int64_t dim = 0;
  int64_t num_slot_floats = 0;
  int64_t optimizer = 0;  // SparseOptimizer::Kind.
  int64_t page_bytes = 0;
  int64_t rows_per_page = 0;
  int64_t admission_bytes = 0;  // Of the file that keeps counters; 0: none.
  std::vector<SnapshotSegment> segments;

  int64_t num_rows() const {
    int64_t rows = 0;
    for (const SnapshotSegment& segment : segments) rows += segment.num_live;
    return rows;
  }
};

// What a snapshot took.
struct SaveReport {
  int64_t rows;          // In the snapshot.
  int64_t rows_written;  // Of these, the others being there already.
  int64_t bytes;         // Of its files.
  int64_t linked_bytes;  // Of these, shared with other snapshots or the store.
};

// What to restore: the snapshots of one moment that a table was saved in, one
// by each rank that had a share of it, and which of their keys.
struct RestoreRequest {
  std::vector<std::string> directories;
  std::vector<int32_t> features;  // Feature f of them becomes features[f].
  std::vector<uint64_t> seeds;    // Of the features from now on, unless empty.
  // Keys of other owners are left out; see OwnerOf.
  int32_t owner = 0;
  int32_t num_owners = 1;

  bool Takes(uint32_t feature, int64_t id) const {
    return num_owners == 1 || OwnerOf(feature, id, num_owners) == owner;
  }
};

// Writes the manifest into a directory and brings it to the disk.
Status WriteManifest(FileSystem* files, const std::string& directory,
                     const Snapshot& snapshot);
// Reads it. NotFound-like problems are Unavailable, damage is DataLoss.
Status ReadManifest(FileSystem* files, const std::string& directory,
                    Snapshot* snapshot);

// Calls use(rows, n) for batches of a segment's live rows, each row_bytes long,
// one after the other. Every page is checked first.
Status ReadSegment(
    FileSystem* files, const std::string& directory, const Snapshot& snapshot,
    const SnapshotSegment& segment,
    const std::function<Status(std::byte* rows, int64_t n)>& use);

// Writes a new file, and brings it to the disk.
Status WriteFile(FileSystem* files, const std::string& path,
                 const std::vector<char>& bytes);
// Copies a file, for snapshots on another file system.
Status CopyFile(FileSystem* files, const std::string& from,
                const std::string& to);

}  // namespace tfctr

#endif  // TFCTR_OPS_CC_STORE_SNAPSHOT_H_
