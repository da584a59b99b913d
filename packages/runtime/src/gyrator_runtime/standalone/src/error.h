// Failures inside the library: exceptions, which api.cpp converts to a status and a message.
#pragma once

#include <string>
#include <type_traits>
#include <utility>

#include "gyrator.h"

namespace gyr {

struct Error {
  gyr_status status;
  std::string text;
};

[[noreturn]] inline void fail(gyr_status status, std::string text) {
  throw Error{status, std::move(text)};
}

template <class... Parts>
std::string words(const Parts&... parts) {
  std::string text;
  const auto add = [&](const auto& part) {
    if constexpr (std::is_arithmetic_v<std::decay_t<decltype(part)>>)
      text += std::to_string(part);
    else
      text += part;
  };
  (add(parts), ...);
  return text;
}

}  // namespace gyr
