#include "operators.h"

#include "error.h"

namespace gyr {

bool has_operators() { return false; }

std::shared_ptr<const Operator> operator_of(const Json& row) {
  fail(GYR_ERROR_MISFIT, words("it calls ", row["name"].text(), ", which takes libtorch"));
}

Ungraded::Ungraded() = default;
Ungraded::~Ungraded() = default;

}  // namespace gyr
