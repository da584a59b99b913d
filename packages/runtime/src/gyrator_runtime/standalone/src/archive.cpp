#include "archive.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>

#include "error.h"

namespace gyr {

namespace {

// Signatures and sizes of the records of a zip archive (APPNOTE.TXT of PKWARE, 4.3 and 4.5).
constexpr uint32_t kLocal = 0x04034b50, kCentral = 0x02014b50, kEnd = 0x06054b50;
constexpr uint32_t kEnd64 = 0x06064b50, kLocator64 = 0x07064b50;
constexpr size_t kLocalSize = 30, kCentralSize = 46, kEndSize = 22, kLocatorSize = 20;
constexpr size_t kEnd64Size = 56, kMostComment = 0xFFFF;
constexpr uint16_t kStored = 0, kZip64 = 1;
constexpr uint32_t kLarge = 0xFFFFFFFF;

// Reads little-endian numbers with bounds checks.
class Cursor {
 public:
  Cursor(std::string_view bytes, uint64_t at, uint64_t needs) : bytes_(bytes), at_(at) {
    if (at > bytes.size() || bytes.size() - at < needs)
      fail(GYR_ERROR_FILE, "it is truncated");
  }
  template <class T>
  T number() {
    T found;
    if (bytes_.size() - at_ < sizeof found) fail(GYR_ERROR_FILE, "it is truncated within a record");
    memcpy(&found, bytes_.data() + at_, sizeof found);
    at_ += sizeof found;
    return found;
  }
  void skip(uint64_t n) {
    if (bytes_.size() - at_ < n) fail(GYR_ERROR_FILE, "it is truncated within a record");
    at_ += n;
  }
  std::string_view text(uint64_t n) {
    const uint64_t start = at_;
    skip(n);
    return bytes_.substr(start, n);
  }
  uint64_t at() const { return at_; }

 private:
  std::string_view bytes_;
  uint64_t at_;
};

uint64_t find_end(std::string_view bytes) {
  if (bytes.size() < kEndSize) fail(GYR_ERROR_FILE, "it is too short for a package");
  const uint64_t last = bytes.size() - kEndSize;
  const uint64_t first = last > kMostComment ? last - kMostComment : 0;
  for (uint64_t at = last + 1; at-- > first;) {
    uint32_t found;
    memcpy(&found, bytes.data() + at, sizeof found);
    if (found == kEnd) return at;
  }
  fail(GYR_ERROR_FILE, "it is not a zip archive, or is truncated");
}

uint32_t crc32(std::string_view bytes) {
  static const auto table = [] {
    std::array<uint32_t, 256> made{};
    for (uint32_t k = 0; k < 256; k++) {
      uint32_t c = k;
      for (int bit = 0; bit < 8; bit++) c = c >> 1 ^ (c & 1 ? 0xEDB88320 : 0);
      made[k] = c;
    }
    return made;
  }();
  uint32_t c = ~0u;
  for (const char b : bytes) c = c >> 8 ^ table[(c ^ uint8_t(b)) & 255];
  return ~c;
}

}  // namespace

Mapping::Mapping(const char* path) {
  const int file = open(path, O_RDONLY | O_CLOEXEC);
  struct stat about {};
  const bool found = file >= 0 && fstat(file, &about) == 0;
  int why = found ? 0 : errno;
  if (found && !S_ISREG(about.st_mode)) why = EINVAL;
  size_ = size_t(about.st_size);
  if (!why && size_) {
    data_ = mmap(nullptr, size_, PROT_READ, MAP_PRIVATE, file, 0);
    if (data_ == MAP_FAILED) why = errno;
  }
  if (file >= 0) close(file);
  if (why) {
    data_ = nullptr;
    fail(GYR_ERROR_FILE, words("it cannot be read (", strerror(why), ")"));
  }
}

Mapping::~Mapping() {
  if (data_) munmap(data_, size_);
}

Archive::Archive(std::string_view bytes) : bytes_(bytes) {
  const uint64_t end = find_end(bytes);
  Cursor at(bytes, end, kEndSize);
  at.skip(10);
  uint64_t count = at.number<uint16_t>();
  uint64_t size = at.number<uint32_t>();
  uint64_t offset = at.number<uint32_t>();
  if (end >= kLocatorSize) {
    Cursor locator(bytes, end - kLocatorSize, kLocatorSize);
    if (locator.number<uint32_t>() == kLocator64) {
      locator.skip(4);
      Cursor larger(bytes, locator.number<uint64_t>(), kEnd64Size);
      if (larger.number<uint32_t>() != kEnd64) fail(GYR_ERROR_FILE, "its last record is damaged");
      larger.skip(28);
      count = larger.number<uint64_t>();
      size = larger.number<uint64_t>();
      offset = larger.number<uint64_t>();
    }
  }
  directory(offset, size, count);
}

void Archive::directory(uint64_t offset, uint64_t size, uint64_t count) {
  Cursor at(bytes_, offset, size);
  for (uint64_t k = 0; k < count; k++) {
    if (at.number<uint32_t>() != kCentral) fail(GYR_ERROR_FILE, "its list of members is damaged");
    Member found{};
    at.skip(6);
    found.method = at.number<uint16_t>();
    at.skip(4);
    found.checksum = at.number<uint32_t>();
    found.stored = at.number<uint32_t>();
    found.size = at.number<uint32_t>();
    const uint16_t name_size = at.number<uint16_t>();
    const uint16_t extra_size = at.number<uint16_t>();
    const uint16_t comment_size = at.number<uint16_t>();
    at.skip(8);
    found.offset = at.number<uint32_t>();
    std::string name(at.text(name_size));
    Cursor extra(at.text(extra_size), 0, 0);
    for (uint64_t left = extra_size; left >= 4;) {
      const uint16_t id = extra.number<uint16_t>(), length = extra.number<uint16_t>();
      const uint64_t next = extra.at() + length;
      if (id == kZip64)
        for (uint64_t* field : {&found.size, &found.stored, &found.offset})
          if (*field == kLarge) *field = extra.number<uint64_t>();
      if (next < extra.at() || next > extra_size) fail(GYR_ERROR_FILE, "a member is damaged");
      extra.skip(next - extra.at());
      left = extra_size - next;
    }
    at.skip(comment_size);
    members_.emplace(std::move(name), found);
  }
}

std::string_view Archive::member(const std::string& name) const {
  const auto found = members_.find(name);
  if (found == members_.end()) fail(GYR_ERROR_FILE, words("it has no ", name));
  const Member& m = found->second;
  if (m.method != kStored || m.size != m.stored)
    fail(GYR_ERROR_FILE, words(name, " is compressed: build the package with runtime=\"standalone\""));
  Cursor at(bytes_, m.offset, kLocalSize);
  if (at.number<uint32_t>() != kLocal) fail(GYR_ERROR_FILE, words(name, " is not where it should be"));
  at.skip(22);
  const uint16_t name_size = at.number<uint16_t>();
  const uint16_t extra_size = at.number<uint16_t>();
  if (at.text(name_size) != name) fail(GYR_ERROR_FILE, words(name, " is not where it should be"));
  at.skip(extra_size);
  if (bytes_.size() - at.at() < m.size) fail(GYR_ERROR_FILE, words(name, " ends beyond the file"));
  return bytes_.substr(at.at(), m.size);
}

std::string_view Archive::checked(const std::string& name) const {
  const std::string_view found = member(name);
  if (crc32(found) != members_.at(name).checksum)
    fail(GYR_ERROR_FILE, words(name, " has another checksum"));
  return found;
}

namespace {

constexpr uint32_t kRound[64] = {
    0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5,
    0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174,
    0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da,
    0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967,
    0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85,
    0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070,
    0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3,
    0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2};

uint32_t turned(uint32_t x, int n) { return x >> n | x << (32 - n); }

void block(uint32_t* state, const uint8_t* data) {
  uint32_t w[64], v[8];
  for (int k = 0; k < 16; k++)
    w[k] = uint32_t(data[4 * k]) << 24 | uint32_t(data[4 * k + 1]) << 16 |
           uint32_t(data[4 * k + 2]) << 8 | data[4 * k + 3];
  for (int k = 16; k < 64; k++) {
    const uint32_t a = w[k - 15], b = w[k - 2];
    w[k] = w[k - 16] + (turned(a, 7) ^ turned(a, 18) ^ a >> 3) + w[k - 7] +
           (turned(b, 17) ^ turned(b, 19) ^ b >> 10);
  }
  std::copy(state, state + 8, v);
  for (int k = 0; k < 64; k++) {
    const uint32_t choice = (v[4] & v[5]) ^ (~v[4] & v[6]);
    const uint32_t majority = (v[0] & v[1]) ^ (v[0] & v[2]) ^ (v[1] & v[2]);
    const uint32_t a = v[7] + (turned(v[4], 6) ^ turned(v[4], 11) ^ turned(v[4], 25)) + choice +
                       kRound[k] + w[k];
    const uint32_t b = (turned(v[0], 2) ^ turned(v[0], 13) ^ turned(v[0], 22)) + majority;
    std::copy_backward(v, v + 7, v + 8);
    v[4] += a;
    v[0] = a + b;
  }
  for (int k = 0; k < 8; k++) state[k] += v[k];
}

}  // namespace

std::string sha256(std::string_view bytes) {
  uint32_t state[8] = {0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a,
                       0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};
  const auto* data = reinterpret_cast<const uint8_t*>(bytes.data());
  size_t left = bytes.size();
  for (; left >= 64; left -= 64, data += 64) block(state, data);
  uint8_t last[128] = {};
  std::copy(data, data + left, last);
  last[left] = 0x80;
  const size_t padded = left < 56 ? 64 : 128;
  const uint64_t bits = uint64_t(bytes.size()) * 8;
  for (int k = 0; k < 8; k++) last[padded - 1 - size_t(k)] = uint8_t(bits >> (8 * k));
  for (size_t k = 0; k < padded; k += 64) block(state, last + k);
  std::string out;
  for (const uint32_t word : state)
    for (int shift = 28; shift >= 0; shift -= 4) out += "0123456789abcdef"[word >> shift & 15];
  return out;
}

}  // namespace gyr
