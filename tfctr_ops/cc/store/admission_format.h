// What a snapshot keeps of an Admission; FORMAT.md says it in words.

#ifndef TFCTR_OPS_CC_STORE_ADMISSION_FORMAT_H_
#define TFCTR_OPS_CC_STORE_ADMISSION_FORMAT_H_

#include <cstdint>
#include <string>
#include <vector>

#include "tfctr_ops/cc/store/count_table.h"
#include "tfctr_ops/cc/store/file_system.h"
#include "tfctr_ops/cc/store/snapshot.h"
#include "tfctr_ops/cc/store/status.h"

namespace tfctr {

constexpr char kAdmissionName[] = "ADMISSION";

// Then come the entries, the numbers of the features, the counters of the
// filter, and the checksum of all.
struct AdmissionHeader {
  static constexpr char kMagic[8] = {'t', 'f', 'c', 't', 'r', 'A', 'D', 'M'};
  static constexpr uint64_t kVersion = 1;

  char magic[8];
  uint64_t version;
  uint64_t num_entries;
  // Of the filter; all zero without one.
  uint64_t num_features;
  uint64_t num_hashes;
  uint64_t num_counters;
  uint64_t counter_bytes;
};
static_assert(sizeof(AdmissionHeader) == 56, "It is written to disk.");

// The parts of such bytes, which must outlive it.
struct AdmissionParts {
  AdmissionHeader header;
  const CountTable::Entry* entries;
  const uint32_t* filter_features;
  const uint8_t* counters;
};

// Sets the checksum, for which four bytes are kept at the end.
void SealAdmission(std::vector<char>* bytes);
// Returns DataLoss if they are not as SealAdmission left them, InvalidArgument
// if they have another version. `path` is for messages.
Status OpenAdmission(const std::string& path, const std::vector<char>& bytes,
                     AdmissionParts* parts);

// Writes them into a directory and brings them to the disk.
Status WriteAdmission(FileSystem* files, const std::string& directory,
                      const std::vector<char>& bytes);
// Reads and checks those of a snapshot that has them.
Status ReadAdmission(FileSystem* files, const std::string& directory,
                     const Snapshot& snapshot, std::vector<char>* bytes);

}  // namespace tfctr

#endif  // TFCTR_OPS_CC_STORE_ADMISSION_FORMAT_H_
