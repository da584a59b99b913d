#include "json.h"

#include <charconv>
#include <limits>

#include "error.h"

namespace gyr {

namespace {

constexpr int kDepth = 64;

const char* name_of(Json::Kind kind) {
  static const char* const names[] = {"null", "bool", "integer", "number", "text", "list", "object"};
  return names[static_cast<int>(kind)];
}

}  // namespace

class Reader {
 public:
  explicit Reader(std::string_view text) : at_(text.data()), end_(at_ + text.size()) {}

  Json whole() {
    Json found = value(0);
    space();
    if (at_ != end_) wrong();
    return found;
  }

 private:
  [[noreturn]] static void wrong() { fail(GYR_ERROR_FILE, "part of it is not JSON"); }

  void space() {
    while (at_ != end_ && (*at_ == ' ' || *at_ == '\n' || *at_ == '\t' || *at_ == '\r')) at_++;
  }
  bool take(char c) {
    space();
    if (at_ == end_ || *at_ != c) return false;
    at_++;
    return true;
  }
  void expect(char c) {
    if (!take(c)) wrong();
  }
  bool word(std::string_view w) {
    if (std::string_view(at_, size_t(end_ - at_)).substr(0, w.size()) != w) return false;
    at_ += w.size();
    return true;
  }

  Json value(int depth) {
    if (depth > kDepth) wrong();
    space();
    Json out;
    if (take('{')) {
      out.kind_ = Json::Kind::kObject;
      if (take('}')) return out;
      do {
        space();
        std::string name = text();
        expect(':');
        out.object_.emplace_back(std::move(name), value(depth + 1));
      } while (take(','));
      expect('}');
    } else if (take('[')) {
      out.kind_ = Json::Kind::kList;
      if (take(']')) return out;
      do out.list_.push_back(value(depth + 1));
      while (take(','));
      expect(']');
    } else if (at_ != end_ && *at_ == '"') {
      out.kind_ = Json::Kind::kText;
      out.text_ = text();
    } else {
      scalar(out);
    }
    return out;
  }

  void scalar(Json& out) {
    constexpr double infinity = std::numeric_limits<double>::infinity();
    if (word("null")) return;
    out.kind_ = Json::Kind::kBool;
    if (word("true")) {
      out.integer_ = 1;
      return;
    }
    if (word("false")) return;
    out.kind_ = Json::Kind::kReal;
    if (word("NaN")) {
      out.real_ = std::numeric_limits<double>::quiet_NaN();
      return;
    }
    if (word("Infinity")) {
      out.real_ = infinity;
      return;
    }
    if (word("-Infinity")) {
      out.real_ = -infinity;
      return;
    }
    const auto whole = std::from_chars(at_, end_, out.integer_);
    const char* next = whole.ptr;
    const bool plain = next == end_ || (*next != '.' && *next != 'e' && *next != 'E');
    if (whole.ec == std::errc() && plain) {
      out.kind_ = Json::Kind::kInteger;
      at_ = next;
      return;
    }
    const auto real = std::from_chars(at_, end_, out.real_);
    if (real.ec != std::errc()) wrong();
    at_ = real.ptr;
  }

  unsigned hex() {
    unsigned code = 0;
    if (end_ - at_ < 4) wrong();
    const auto found = std::from_chars(at_, at_ + 4, code, 16);
    if (found.ec != std::errc() || found.ptr != at_ + 4) wrong();
    at_ += 4;
    return code;
  }

  void unicode(std::string& out) {
    unsigned code = hex();
    if (code >= 0xD800 && code < 0xDC00 && word("\\u"))
      code = 0x10000 + ((code - 0xD800) << 10) + (hex() - 0xDC00);
    if (code < 0x80) {
      out += char(code);
    } else if (code < 0x800) {
      out += {char(0xC0 | code >> 6), char(0x80 | (code & 63))};
    } else if (code < 0x10000) {
      out += {char(0xE0 | code >> 12), char(0x80 | (code >> 6 & 63)), char(0x80 | (code & 63))};
    } else {
      out += {char(0xF0 | (code >> 18 & 7)), char(0x80 | (code >> 12 & 63)),
              char(0x80 | (code >> 6 & 63)), char(0x80 | (code & 63))};
    }
  }

  std::string text() {
    expect('"');
    std::string out;
    for (;;) {
      if (at_ == end_) wrong();
      const char c = *at_++;
      if (c == '"') return out;
      if (c != '\\') {
        out += c;
        continue;
      }
      if (at_ == end_) wrong();
      static constexpr std::string_view kFrom = "\"\\/bfnrt", kTo = "\"\\/\b\f\n\r\t";
      const char escaped = *at_++;
      const size_t which = kFrom.find(escaped);
      if (escaped == 'u') unicode(out);
      else if (which != kFrom.npos) out += kTo[which];
      else wrong();
    }
  }

  const char* at_;
  const char* end_;
};

Json Json::read(std::string_view text) { return Reader(text).whole(); }

const Json& Json::checked(Kind kind) const {
  if (kind_ != kind)
    fail(GYR_ERROR_FILE, words("part of it is of type ", name_of(kind_), ", not ", name_of(kind)));
  return *this;
}

bool Json::truth() const { return checked(Kind::kBool).integer_; }
int64_t Json::integer() const { return checked(Kind::kInteger).integer_; }
double Json::real() const { return checked(Kind::kReal).real_; }
const std::string& Json::text() const& { return checked(Kind::kText).text_; }
const std::vector<Json>& Json::list() const& { return checked(Kind::kList).list_; }
const std::vector<std::pair<std::string, Json>>& Json::object() const& {
  return checked(Kind::kObject).object_;
}

const Json* Json::find(std::string_view name) const& {
  for (const auto& [key, value] : object())
    if (key == name) return &value;
  return nullptr;
}

const Json& Json::operator[](std::string_view name) const& {
  if (const Json* found = find(name)) return *found;
  fail(GYR_ERROR_FILE, words("part of it has no ", std::string(name)));
}

std::vector<int64_t> Json::integers() const {
  std::vector<int64_t> out;
  out.reserve(list().size());
  for (const Json& item : list_) out.push_back(item.integer());
  return out;
}

}  // namespace gyr
