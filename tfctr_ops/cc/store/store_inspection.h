// InspectStore: what the files of a store with an SSD tier hold, and whether
// they are whole, even while another process uses it.

#ifndef TFCTR_OPS_CC_STORE_STORE_INSPECTION_H_
#define TFCTR_OPS_CC_STORE_STORE_INSPECTION_H_

#include <cstdint>
#include <string>
#include <vector>

#include "tfctr_ops/cc/store/file_system.h"
#include "tfctr_ops/cc/store/status.h"

namespace tfctr {

struct StoreInspection {
  bool is_in_use = false;  // Whether the owner lives.
  // Of a row; 0 while no file has any.
  int64_t dim = 0;
  int64_t num_slot_floats = 0;
  int64_t row_bytes = 0;
  int64_t num_segments = 0;
  int64_t num_rows = 0;  // On disk, all copies of a key.
  int64_t num_keys = 0;  // Distinct ones of these rows.
  int64_t bytes = 0;     // Of the segments.
  std::vector<std::string> damage;
};

// Reads all segments of the store in `directory`; see FORMAT.md. Nothing is
// changed. Files that the owner removes meanwhile are passed over, and what it
// has not written whole yet at the end of a file is no damage.
//
// Memory: 16 to 48 bytes per row on disk of the largest shard.
//
// Returns Unavailable if the directory cannot be read, or its lock not asked.
Status InspectStore(FileSystem* files, const std::string& directory,
                    StoreInspection* inspection);

}  // namespace tfctr

#endif  // TFCTR_OPS_CC_STORE_STORE_INSPECTION_H_
