// JSON as Python writes it, NaN and Infinity included, read into values. What cannot be read, or is
// of another type than was asked for, is an Error (GYR_ERROR_FILE).
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
  // What they give lives as long as the value: they are not for one that is about to go.
  void text() const&& = delete;
  void list() const&& = delete;
  void object() const&& = delete;
  // The field of an object; an Error where there is none.
  const Json& operator[](std::string_view name) const&;
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
