// A memory-mapped zip archive. Its members are not compressed and are used in place.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <string_view>

namespace gyr {

// A file as read-only memory. Throws Error (GYR_ERROR_FILE) if it cannot be read.
class Mapping {
 public:
  explicit Mapping(const char* path);
  ~Mapping();
  Mapping(const Mapping&) = delete;
  Mapping& operator=(const Mapping&) = delete;
  std::string_view bytes() const { return {static_cast<const char*>(data_), size_}; }

 private:
  void* data_ = nullptr;
  size_t size_ = 0;
};

class Archive {
 public:
  // Throws Error (GYR_ERROR_FILE) if the bytes are not a complete archive.
  explicit Archive(std::string_view bytes);

  bool has(const std::string& name) const { return members_.count(name); }
  // Returns the bytes of a member. Throws Error (GYR_ERROR_FILE) if it is missing or compressed.
  std::string_view member(const std::string& name) const;
  // The same, after checking its checksum.
  std::string_view checked(const std::string& name) const;

 private:
  struct Member {
    uint64_t offset, size, stored;
    uint32_t checksum;
    uint16_t method;
  };
  void directory(uint64_t offset, uint64_t size, uint64_t count);

  std::string_view bytes_;
  std::map<std::string, Member> members_;
};

// SHA-256 in hexadecimal, lower case (FIPS 180-4).
std::string sha256(std::string_view bytes);

}  // namespace gyr
