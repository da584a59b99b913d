// A reader of JSON as written by Python, including NaN and Infinity. Malformed text, or a value of
// another type than requested, throws Error (GYR_ERROR_FILE).
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace gyr {

class Json {
 public:
  enum class Kind { kNull, kBool, kInteger, kReal, kText, kList, kObject };

  static Json read(std::string_view text);

  Kind kind() const { return kind_; }
  bool is(Kind kind) const { return kind_ == kind; }
  bool truth() const;
  int64_t integer() const;
  double real() const;
  const std::string& text() const&;
  const std::vector<Json>& list() const&;
  const std::vector<std::pair<std::string, Json>>& object() const&;
  // The results are valid as long as the value, so these are not callable on temporaries.
  void text() const&& = delete;
  void list() const&& = delete;
  void object() const&& = delete;
  // Returns the field of an object; throws Error if there is none.
  const Json& operator[](std::string_view name) const&;
  // Returns the field of an object, or null if there is none.
  const Json* find(std::string_view name) const&;
  std::vector<int64_t> integers() const;

 private:
  friend class Reader;
  const Json& checked(Kind kind) const;

  Kind kind_ = Kind::kNull;
  int64_t integer_ = 0;
  double real_ = 0;
  std::string text_;
  std::vector<Json> list_;
  std::vector<std::pair<std::string, Json>> object_;
};

}  // namespace gyr
