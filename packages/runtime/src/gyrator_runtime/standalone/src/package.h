// An open package: its signatures, its mapped weights, and its linked plans.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "archive.h"
#include "device.h"
#include "json.h"
#include "program.h"
#include "tensor.h"

namespace gyr {

// A shared library of kernels, mapped as long as the object is alive.
class Library {
 public:
  // Throws Error (GYR_ERROR_MISFIT) if the bytes cannot be loaded.
  Library(const std::string& name, std::string_view bytes);
  ~Library();
  Library(const Library&) = delete;
  Library& operator=(const Library&) = delete;
  void* function(const std::string& symbol) const;

 private:
  void* handle_ = nullptr;
};

// A tensor of an entry point's signature, or a weight.
struct Signature {
  std::string name, text;
  gyr_dtype dtype = GYR_NONE;
  int ndim = 0;
  int32_t device = GYR_CPU;  // its device type
  std::vector<gyr_size> sizes;  // for a number, its own value; empty for an output
  bool written = false;
};

// Returns its description for the C interface, with the signature's strings.
gyr_value value_of(const Signature& of);

struct Weight {
  Signature signature;
  std::vector<int64_t> sizes, strides;
  Own stored;  // in the file, or on the device
};

// A leaf of the arguments: one of the caller's inputs, or a constant.
struct Argument {
  int64_t input = -1;  // its index among the caller's inputs
  bool number = false;  // an integer that determines a size
  Const constant;
};

// Packs a weight, or a constant, into a library's own layout.
struct Packing {
  struct Argument {
    int64_t weight = -1, constant = -1;  // its index, if it is one
    Const value;  // otherwise
  };
  std::shared_ptr<const Operator> op;
  std::vector<Argument> arguments;
};

// Computes constants from weights, which plans take after the weights.
struct Constants {
  std::vector<size_t> weights;  // the inputs of its plan
  std::vector<Plan> plans;  // empty without constants
  size_t taken = 0;  // how many of its results, the first ones, are taken; others are only packed
  std::vector<Packing> packed;  // taken after them
  size_t count() const { return taken + packed.size(); }
};

struct Result {
  int64_t given = -1;  // for an argument that is returned: its index among all inputs of a plan
};

struct Entry {
  std::string name;
  std::vector<size_t> weights;
  std::vector<Argument> arguments;
  std::vector<Result> results;
  std::vector<Signature> inputs, outputs;
  std::vector<gyr_symbol> symbols;
  std::vector<std::string> symbol_names;
  std::vector<gyr_value> input_values, output_values;
  int64_t tokens = 0;
  std::vector<Plan> plans;
  Constants constants;
  // Returns the number of inputs of plans before the arguments, without tokens.
  size_t held() const { return weights.size() + constants.count(); }
};

struct Package {
  Package(const char* path, const gyr_open_options& options, int32_t device_index);

  Mapping file;
  Archive archive;
  std::string isa;
  std::shared_ptr<const Device> device;  // null for the CPU
  std::deque<Entry> entries;
  std::deque<Weight> weights;

 private:
  void check_machine(const Json& manifest);
  void read_weights(const Json& manifest, bool verify);
  void read_entry(const Json& row);
  size_t named_weight(const std::string& name) const;
  std::vector<size_t> named_weights(const Json& row) const;
  Packing packing_of(const Json& row, const Constants& constants) const;
  std::vector<Plan> plans_of(const Json& row, const std::string& name);
  std::string_view member(const std::string& name) const;
  Own tensor(const Json& header, size_t begin, std::string_view bytes, const std::string& name);
  Tensor* stored(const std::string& name, bool hosted);
  const Json& program_of(const Json& row, const std::string& name) const;
  int64_t fitting(const Json& program) const;

  struct Described {
    int64_t size;
    std::string sha256;
  };
  std::map<std::string, Described> members_;
  std::map<std::string, Own> tensors_;  // constants of programs, by name in the weights member
  std::map<std::string, Own> placed_;  // the tensors on the device
  std::vector<Own> aligned_;  // copies of unaligned tensors
  std::map<std::string, std::unique_ptr<DeviceCode>> codes_;
  std::map<std::string, std::unique_ptr<Library>> libraries_;
  std::map<std::string, std::shared_ptr<const Operator>> operators_;
  std::string here_, built_;  // this machine, and the default machine of programs
  int level_;
};

}  // namespace gyr
