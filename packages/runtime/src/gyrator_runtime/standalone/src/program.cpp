#include "program.h"

#include <algorithm>

#include "error.h"

namespace gyr {

namespace {

struct Named {
  const char* name;
  Call call;
  size_t least;  // minimum number of arguments
};

constexpr Named kHost[] = {
    {"size_of", Call::kSizeOf, 2},           {"stride_of", Call::kStrideOf, 2},
    {"integer", Call::kInteger, 1},          {"identity", Call::kIdentity, 1},
    {"reinterpret", Call::kReinterpret, 4},  {"over_storage", Call::kOverStorage, 5},
    {"separate", Call::kSeparate, 0},        {"assert_true", Call::kAssertTrue, 2},
    {"read_scalar", Call::kReadScalar, 1},   {"pack", Call::kPack, 0},
};
constexpr Named kReferences[] = {
    {"Allocator", Call::kAllocator, 3}, {"Conforming", Call::kConforming, 0},
    {"Within", Call::kWithin, 0},       {"Branching", Call::kBranching, 1},
    {"Looping", Call::kLooping, 0},     {"Repeating", Call::kRepeating, 1},
    {"Calling", Call::kCalling, 0},     {"Operator", Call::kOperator, 0},
    {"Operating", Call::kOperating, 0},
};

[[noreturn]] void malformed() { fail(GYR_ERROR_FILE, "a plan is malformed"); }

void need(bool holds) {
  if (!holds) malformed();
}

[[noreturn]] void unknown(const std::string& what) {
  fail(GYR_ERROR_MISFIT,
       words("it calls ", what, ", which this library lacks"));
}

size_t least_arguments(Call call) {
  for (const Named& n : kHost)
    if (n.call == call) return n.least;
  for (const Named& n : kReferences)
    if (n.call == call) return n.least;
  malformed();
}

class Linker {
 public:
  Linker(const Links& links, size_t number) : links_(links), number_(number) {}

  Const constant(const Json& data) const {
    Const out;
    switch (data.kind()) {
      case Json::Kind::kNull:
        return out;
      case Json::Kind::kBool:
        out.kind = Const::Kind::kInteger;
        out.integer = data.truth();
        out.truth = true;
        return out;
      case Json::Kind::kInteger:
        out.kind = Const::Kind::kInteger;
        out.integer = data.integer();
        return out;
      case Json::Kind::kReal:
        out.kind = Const::Kind::kReal;
        out.real = data.real();
        return out;
      case Json::Kind::kText:
        out.kind = Const::Kind::kText;
        out.text = data.text();
        return out;
      default:
        return composed(data.list());
    }
  }

 private:
  Const composed(const std::vector<Json>& row) const {
    need(!row.empty());
    const std::string& kind = row[0].text();
    Const out;
    if (kind == "tuple" || kind == "list") {
      out.kind = Const::Kind::kSequence;
      for (size_t k = 1; k < row.size(); k++) out.items.push_back(constant(row[k]));
      const auto plain = [](const Const& c) { return c.kind == Const::Kind::kInteger; };
      if (std::all_of(out.items.begin(), out.items.end(), plain))
        for (const Const& c : out.items) out.integers.push_back(c.integer);
      return out;
    }
    need(row.size() > 1);
    if (kind == "TorchObject") {
      out.kind = Const::Kind::kType;
      out.text = row[1].text();
      out.dtype = dtype_of(out.text);
      return out;
    }
    if (kind == "TorchDevice") {
      out.kind = Const::Kind::kOther;
      out.text = row[1].text();
      out.device = device_named(out.text);
      return out;
    }
    if (kind == "Carried") {
      const auto found = links_.constants.find(row[1].text());
      need(found != links_.constants.end());
      out.kind = Const::Kind::kTensor;
      out.tensor = found->second;
      return out;
    }
    out.kind = Const::Kind::kFunction;
    if (kind == "HostFunction") {
      for (const Named& n : kHost)
        if (row[1].text() == n.name) out.call = n.call;
      if (out.call == Call::kNothing) unknown(row[1].text());
      return out;
    }
    for (const Named& n : kReferences)
      if (kind == n.name) out.call = n.call;
    if (out.call == Call::kNothing)
      unknown(row[1].is(Json::Kind::kText) ? row[1].text() : kind);
    fields(out, row);
    return out;
  }

  // Returns the device type of a name: the host, or the device that plans run on.
  int32_t device_named(const std::string& name) const {
    if (name == "cpu") return GYR_CPU;
    if (!links_.device || name.compare(0, 4, "cuda")) unknown(words("a tensor on ", name));
    return GYR_CUDA;
  }

  int64_t earlier(const Json& plan) const {
    need(plan.integer() >= 0 && size_t(plan.integer()) < number_);
    return plan.integer();
  }

  void fields(Const& out, const std::vector<Json>& row) const {
    const auto at = [&](size_t k) -> const Json& {
      need(k < row.size());
      return row[k];
    };
    switch (out.call) {
      case Call::kConforming:  // rank, dtype, device, mend, name, what
        out.dtype = dtype_of(at(2).text());
        out.integer = at(1).integer();
        out.truth = at(4).text() == "all";
        out.text = at(5).text();
        out.items.push_back(constant(at(6)));
        out.device = device_named(at(3).text());
        break;
      case Call::kAllocator:
        out.device = device_named(at(1).text());
        break;
      case Call::kOperator:
      case Call::kOperating: {
        const auto found = links_.operators.find(at(1).text());
        if (found == links_.operators.end()) unknown(at(1).text());
        out.op = found->second;
        out.text = at(1).text();
        if (out.call == Call::kOperating) out.items = constant(at(2)).items;
        break;
      }
      case Call::kWithin:
        out.plan = earlier(at(3));
        break;
      case Call::kBranching:
        out.plan = earlier(at(1));
        out.other = earlier(at(2));
        break;
      case Call::kLooping:
        out.other = earlier(at(1));
        out.plan = earlier(at(2));
        out.carried = at(3).integer();
        if (at(4).truth()) unknown("a loop that stacks its values");
        break;
      case Call::kRepeating:
        out.plan = earlier(at(1));
        out.carried = at(2).integer();
        break;
      default:
        out.plan = earlier(at(1));
        break;
    }
    need(out.carried >= 0);
  }

  const Links& links_;
  size_t number_;
};

// Checks that the words of a plan refer only to existing objects, and fills in the kernels.
class Checker {
 public:
  explicit Checker(Plan& plan) : plan_(plan) {}

  void run() {
    need(plan_.n_args >= 0 && plan_.n_regs >= plan_.n_args);
    for (bool more = true; more;) more = instruction();
  }

 private:
  int64_t word() {
    need(at_ < plan_.code.size());
    return plan_.code[at_++];
  }
  int64_t count() {
    const int64_t n = word();
    need(n >= 0 && size_t(n) <= plan_.code.size());
    return n;
  }
  void reg() { below(word(), plan_.n_regs); }
  void slot() { below(word(), int64_t(plan_.ints.size())); }
  const Const& constant() {
    const int64_t k = word();
    below(k, int64_t(plan_.consts.size()));
    return plan_.consts[size_t(k)];
  }
  Call function() {
    const Const& found = constant();
    need(found.kind == Const::Kind::kFunction);
    return found.call;
  }
  static void below(int64_t k, int64_t n) { need(k >= 0 && k < n); }

  bool instruction() {
    switch (word()) {
      case OP_END:
        return false;
      case OP_LOAD_INT:
        slot();
        reg();
        return true;
      case OP_EVAL:
        slot();
        expression();
        return true;
      case OP_LAUNCH:
        launches();
        return true;
      case OP_CALL_TUPLE: {
        target();
        const Call called = function();
        const Const& given = constant();
        need(given.kind == Const::Kind::kSequence && given.items.size() >= least_arguments(called));
        return true;
      }
      case OP_CALL: {
        target();
        const Call called = function();
        const size_t names = named();
        need(!names || called == Call::kOperator);  // only operators have arguments by name
        const int64_t n = count();
        need(names <= size_t(n));
        need(size_t(n) >= least_arguments(called));
        for (int64_t k = 0; k < n; k++) argument();
        return true;
      }
      case OP_OPERATE:
        operate();
        return true;
      case OP_DROP:
        reg();
        return true;
      case OP_GET_ITEM:
        reg();
        reg();
        need(word() >= 0);
        return true;
      case OP_RETURN:
        plan_.n_results = count();
        for (int64_t n = plan_.n_results; n > 0; n--) argument();
        need(word() == OP_END);
        return false;
      case OP_MOVE:
        reg();
        reg();
        return true;
      case OP_CONFORM: {
        reg();
        need(function() == Call::kConforming);
        for (int k = 0; k < 3; k++) word();
        const int64_t ndim = count();
        need(ndim <= GYR_MAX_NDIM);
        for (int64_t k = 0; k < 2 * ndim; k++) slot();
        return true;
      }
      case OP_SEPARATE: {
        need(function() == Call::kSeparate);
        const int64_t n = count(), m = count();
        for (int64_t k = 0; k < n + m; k++) reg();
        return true;
      }
      default:
        malformed();
    }
  }

  void target() {
    const int64_t k = word();
    if (k != -1) below(k, plan_.n_regs);
  }

  size_t named() {
    if (word() == -1) return 0;
    at_--;
    const Const& names = constant();
    need(names.kind == Const::Kind::kSequence);
    for (const Const& name : names.items) need(name.kind == Const::Kind::kText);
    return names.items.size();
  }

  void operate() {
    word();
    const Const& function = constant();
    need(function.call == Call::kOperating);
    const int64_t n = count(), numbers = count();
    need(size_t(n) == function.items.size());
    for (int64_t k = 0; k < n; k++) {
      reg();
      const Const& layout = function.items[size_t(k)];
      const int64_t ndim = word();
      if (ndim == -1) continue;
      need(ndim >= 0 && ndim <= GYR_MAX_NDIM && layout.items.size() == 2 &&
           dtype_of(layout.items[1].text));
      word();
      word();
      for (int64_t slots = 1 + 2 * ndim; slots > 0; slots--) slot();
    }
    for (int64_t k = 0; k < numbers; k++) word();
  }

  void argument() {
    switch (word()) {
      case ARG_REG:
        return reg();
      case ARG_CONST:
        constant();
        return;
      case ARG_INT:
        return slot();
      case ARG_INT_TUPLE:
        for (int64_t n = count(); n > 0; n--) slot();
        return;
      default:
        malformed();
    }
  }

  void expression() {
    const int64_t n = count();
    need(at_ + 2 * size_t(n) <= plan_.code.size());
    check_expression(plan_.code.data() + at_, n, int64_t(plan_.ints.size()));
    at_ += 2 * size_t(n);
  }

  void launches() {
    word();
    const int64_t n = count();
    int64_t pointers = count(), sizes = count();
    for (int64_t k = 0; k < n; k++) {
      const size_t kernel = at_;
      word();
      const int64_t number = word();
      below(number, int64_t(plan_.launches.size()));
      const int64_t n_buffers = count(), n_sizes = count();
      const size_t device = at_;
      need(word() == 0);
      word();
      pointers -= n_buffers;
      sizes -= n_sizes;
      for (int64_t b = 0; b < n_buffers; b++) {
        reg();
        if (word() != -1) {
          at_--;
          slot();
        }
      }
      for (int64_t s = 0; s < n_sizes; s++) slot();
      const Launched& launched = plan_.launches[size_t(number)];
      need(!launched.device || launched.arguments == n_buffers + n_sizes);
      plan_.code[kernel] = reinterpret_cast<int64_t>(launched.kernel);
      plan_.code[device] = launched.device;
    }
    need(pointers == 0 && sizes == 0);
  }

  Plan& plan_;
  size_t at_ = 0;
};

Plan read_plan(const Json& row, const Links& links, size_t number) {
  Plan plan;
  plan.n_args = row["n_args"].integer();
  plan.n_regs = row["n_regs"].integer();
  need(plan.n_regs >= 0 && plan.n_regs < 1 << 24);
  plan.code = row["code"].integers();
  plan.ints = row["ints"].integers();
  const Linker linker(links, number);
  for (const Json& data : row["consts"].list()) plan.consts.push_back(linker.constant(data));
  for (const Json& name : row["launches"].list()) {
    const auto found = links.kernels.find(name.text());
    if (found == links.kernels.end()) fail(GYR_ERROR_FILE, words("it has no kernel ", name.text()));
    plan.launches.push_back(found->second);
  }
  Checker(plan).run();
  return plan;
}

}  // namespace

void check_expression(const int64_t* words, int64_t n, int64_t n_slots) {
  need(n > 0);
  std::vector<int> known(size_t(n) + 1, -1);
  int depth = 0;
  for (int64_t k = 0; k < n; k++) {
    if (known[size_t(k)] >= 0) depth = known[size_t(k)];
    const int64_t op = words[2 * k], operand = words[2 * k + 1];
    const auto leave_out = [&] {
      need(operand > 0 && operand <= n - k - 1);
      int& there = known[size_t(k + 1 + operand)];
      need(there < 0 || there == depth);
      there = depth;
    };
    switch (op) {
      case EXPR_ARG:
        need(operand >= 0 && operand < n_slots);
        depth++;
        break;
      case EXPR_CONST:
        depth++;
        break;
      case EXPR_UNLESS:
        depth--;
        leave_out();
        break;
      case EXPR_SKIP:
        leave_out();
        need(known[size_t(k + 1)] >= 0);  // the other side of a choice starts there
        break;
      default:
        need(op >= EXPR_ADD && op <= EXPR_LE && depth >= 2);
        depth--;
        break;
    }
    need(depth >= 0 && depth <= kExprDepth);
    if (op != EXPR_SKIP && known[size_t(k + 1)] >= 0) need(known[size_t(k + 1)] == depth);
  }
  if (known[size_t(n)] >= 0) depth = known[size_t(n)];
  need(depth == 1);
}

void Plan::bind_outputs(int64_t skipped) {
  // Index of the write to each register that is written only once, by an allocator.
  std::vector<int64_t> made(size_t(n_regs), -1), writes(size_t(n_regs), 0);
  const auto written = [&](int64_t reg, int64_t function) {
    if (reg < 0) return;
    writes[size_t(reg)]++;
    made[size_t(reg)] = function;
  };
  const int64_t* pc = code.data();
  const auto argument = [](const int64_t* at) { return at[0] == ARG_INT_TUPLE ? at + 2 + at[1] : at + 2; };
  for (;;) {
    switch (*pc++) {
      case OP_LOAD_INT:
        pc += 2;
        break;
      case OP_EVAL:
        pc += 2 + 2 * pc[1];
        break;
      case OP_LAUNCH: {
        const int64_t n = pc[1];
        pc += 4;
        for (int64_t k = 0; k < n; k++) pc += kLaunchHeader + 2 * pc[2] + pc[3];
        break;
      }
      case OP_CALL_TUPLE:
        written(pc[0], pc[1]);
        pc += 3;
        break;
      case OP_CALL: {
        written(pc[0], pc[1]);
        const int64_t n = pc[3];
        pc += 4;
        for (int64_t k = 0; k < n; k++) pc = argument(pc);
        break;
      }
      case OP_OPERATE: {
        const int64_t n = pc[2], numbers = pc[3];
        pc += 4;
        for (int64_t k = 0; k < n; k++) pc += pc[1] < 0 ? 2 : 5 + 2 * pc[1];
        pc += numbers;
        break;
      }
      case OP_DROP:
        pc++;
        break;
      case OP_GET_ITEM:
        written(pc[0], -1);
        pc += 3;
        break;
      case OP_MOVE:
        written(pc[0], -1);
        pc += 2;
        break;
      case OP_CONFORM:
        written(pc[0], -1);
        pc += 6 + 2 * pc[5];
        break;
      case OP_SEPARATE:
        for (int64_t k = 0; k < pc[1]; k++) written(pc[3 + k], -1);
        pc += 3 + pc[1] + pc[2];
        break;
      case OP_RETURN: {
        const int64_t n = *pc++;
        for (int64_t k = 0; k < n; k++) {
          const size_t reg = size_t(pc[1]);
          if (pc[0] == ARG_REG && k >= skipped && writes[reg] == 1 && made[reg] >= 0) {
            Const& function = consts[size_t(made[reg])];
            if (function.call == Call::kAllocator) function.place = int32_t(k - skipped);
          }
          pc = argument(pc);
        }
        return;
      }
      default:
        return;
    }
  }
}

Const constant_of(const Json& data) {
  Const made;
  switch (data.kind()) {
    case Json::Kind::kNull:
      break;
    case Json::Kind::kBool:
    case Json::Kind::kInteger:
      made.kind = Const::Kind::kInteger;
      made.truth = data.is(Json::Kind::kBool);
      made.integer = made.truth ? data.truth() : data.integer();
      break;
    case Json::Kind::kReal:
      made.kind = Const::Kind::kReal;
      made.real = data.real();
      break;
    case Json::Kind::kText:
      made.kind = Const::Kind::kText;
      made.text = data.text();
      break;
    default:
      made.kind = Const::Kind::kSequence;
      for (const Json& item : data.list()) made.items.push_back(constant_of(item));
  }
  return made;
}

std::vector<Plan> read_plans(std::string_view text, const Links& links) {
  std::vector<Plan> plans;
  const Json rows = Json::read(text);
  for (const Json& row : rows.list())
    plans.push_back(read_plan(row, links, plans.size()));
  need(!plans.empty());
  return plans;
}

}  // namespace gyr
