#include "tfctr_ops/cc/store/admission_format.h"

#include <cstring>
#include <memory>

#include "tfctr_ops/cc/store/checksum.h"
#include "tfctr_ops/cc/store/segment_format.h"

namespace tfctr {
namespace {

uint32_t ChecksumOf(const std::vector<char>& bytes) {
  return Crc32c(bytes.data(),
                static_cast<int64_t>(bytes.size() - sizeof(uint32_t)));
}

}  // namespace

void SealAdmission(std::vector<char>* bytes) {
  const uint32_t checksum = ChecksumOf(*bytes);
  std::memcpy(bytes->data() + bytes->size() - sizeof(checksum), &checksum,
              sizeof(checksum));
}

Status OpenAdmission(const std::string& path, const std::vector<char>& bytes,
                     AdmissionParts* parts) {
  AdmissionHeader& header = parts->header;
  uint32_t stored;
  if (bytes.size() < sizeof(header) + sizeof(stored)) {
    return Status::DataLoss("'" + path + "' is no admission file of tfctr: " +
                            std::to_string(bytes.size()) + " bytes.");
  }
  std::memcpy(&stored, bytes.data() + bytes.size() - sizeof(stored),
              sizeof(stored));
  const uint32_t computed = ChecksumOf(bytes);
  if (stored != computed) {
    return Damaged(path, 0, "file", stored, computed);
  }
  std::memcpy(&header, bytes.data(), sizeof(header));
  if (std::memcmp(header.magic, AdmissionHeader::kMagic,
                  sizeof(header.magic)) != 0) {
    return Status::DataLoss("'" + path + "' is no admission file of tfctr.");
  }
  if (header.version != AdmissionHeader::kVersion) {
    return Status::InvalidArgument(
        "'" + path + "' has version " + std::to_string(header.version) +
        " of the format; this tfctr reads version " +
        std::to_string(AdmissionHeader::kVersion) + ".");
  }
  // What has a right checksum was written here, so these do not overflow.
  const uint64_t entries = header.num_entries * sizeof(CountTable::Entry);
  const uint64_t features = header.num_features * sizeof(uint32_t);
  const uint64_t counters = header.num_counters * header.counter_bytes;
  if (bytes.size() !=
      sizeof(header) + entries + features + counters + sizeof(stored)) {
    return Status::DataLoss("'" + path + "' does not end where it should.");
  }
  const char* at = bytes.data() + sizeof(header);
  parts->entries = reinterpret_cast<const CountTable::Entry*>(at);
  at += entries;
  parts->filter_features = reinterpret_cast<const uint32_t*>(at);
  at += features;
  parts->counters = reinterpret_cast<const uint8_t*>(at);
  return Status::Ok();
}

Status WriteAdmission(FileSystem* files, const std::string& directory,
                      const std::vector<char>& bytes) {
  return WriteFile(files, directory + "/" + kAdmissionName, bytes);
}

Status ReadAdmission(FileSystem* files, const std::string& directory,
                     const Snapshot& snapshot, std::vector<char>* bytes) {
  const std::string path = directory + "/" + kAdmissionName;
  std::unique_ptr<File> file;
  const int64_t size = snapshot.admission_bytes;
  Status status = files->Open(path, FileSystem::Mode::kRead, &file);
  if (!status.ok()) return status;
  bytes->resize(static_cast<size_t>(size));
  status = file->Read(0, size, reinterpret_cast<std::byte*>(bytes->data()));
  AdmissionParts parts;
  if (status.ok()) status = OpenAdmission(path, *bytes, &parts);
  return status;
}

}  // namespace tfctr
