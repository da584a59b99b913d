#include "operators.h"

#include "error.h"

namespace gyr {

bool has_operators() { return false; }

std::shared_ptr<const Operator> operator_of(const Json& row, const Device*) {
  fail(GYR_ERROR_MISFIT, words("it calls ", row["name"].text(), ", which needs libtorch"));
}

void* current_stream(int32_t) { return nullptr; }

Surroundings::Surroundings(const Device*, void*) {}
Surroundings::~Surroundings() = default;

}  // namespace gyr
