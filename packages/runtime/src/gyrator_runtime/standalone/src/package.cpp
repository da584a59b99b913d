#include "package.h"

#include <dlfcn.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/utsname.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <climits>
#include <cstdlib>
#include <set>
#include <tuple>

#include "error.h"
#include "memory.h"
#include "operators.h"

namespace gyr {

namespace {

// Must agree with package/manifest.py and plan/stored.py; a test checks this.
constexpr int64_t kFormat = 1, kPlanFormat = 2;
constexpr const char* kManifest = "manifest.json";
constexpr const char* kWeights = "weights.safetensors";
constexpr const char* kDevice = "cuda";
#if defined(__aarch64__)
constexpr const char* kLevels[] = {"plain", "neon"};
#else
constexpr const char* kLevels[] = {"plain", "avx2", "avx512"};
#endif
constexpr int kLevelCount = sizeof kLevels / sizeof *kLevels;

// Dtypes by their names in safetensors (package/weights.py).
struct Stored {
  const char* name;
  gyr_dtype dtype;
};
constexpr Stored kStored[] = {
    {"F64", GYR_FLOAT64},  {"F32", GYR_FLOAT32},        {"F16", GYR_FLOAT16},
    {"BF16", GYR_BFLOAT16}, {"I64", GYR_INT64},          {"I32", GYR_INT32},
    {"I16", GYR_INT16},    {"I8", GYR_INT8},            {"U64", GYR_UINT64},
    {"U32", GYR_UINT32},   {"U16", GYR_UINT16},         {"U8", GYR_UINT8},
    {"BOOL", GYR_BOOL},    {"C64", GYR_COMPLEX64},      {"F8_E4M3", GYR_FLOAT8_E4M3FN},
    {"F8_E5M2", GYR_FLOAT8_E5M2},
};

int level_of(const std::string& name) {
  for (int k = 0; k < kLevelCount; k++)
    if (name == kLevels[k]) return k;
  return -1;
}

int machine_level() {
#if defined(__x86_64__)
  const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
                   __builtin_cpu_supports("f16c");
  if (!avx2) return 0;
  const bool avx512 = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                    __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
  return avx512 ? 2 : 1;
#elif defined(__aarch64__)
  return 1;  // every aarch64 processor that runs Linux has it
#else
  return 0;
#endif
}

int chosen_level(const char* wanted) {
  if (!wanted) wanted = getenv("GYRATOR_ISA");
  const int has = machine_level();
  if (!wanted || !*wanted) return has;
  const int level = level_of(wanted);
  if (level < 0 || level > has)
    fail(GYR_ERROR_ARGUMENT, words("this processor cannot run instruction set level ", wanted,
                                   "; it has ", kLevels[has]));
  return level;
}

// Returns the machine of a program, by default that of the package.
const std::string& machine_of(const Json& program, const std::string& package) {
  for (const auto& [key, value] : program.object())
    if (key == "machine" && !value.text().empty()) return value.text();
  return package;
}

[[noreturn]] void altered(const std::string& what) {
  fail(GYR_ERROR_ALTERED, words("it was altered: ", what));
}

std::string size_text(const gyr_size& size, const std::vector<std::string>& symbols) {
  if (size.symbol < 0) return std::to_string(size.offset);
  std::string text = size.factor == 1 ? "" : words(size.factor, "*");
  text += symbols[size_t(size.symbol)];
  if (size.offset) text += words(size.offset > 0 ? "+" : "", size.offset);
  return text;
}

}  // namespace

gyr_value value_of(const Signature& of) {
  const gyr_size* sizes = of.sizes.empty() ? nullptr : of.sizes.data();
  return {of.name.c_str(), of.text.c_str(), of.dtype, of.ndim, sizes, of.written};
}

namespace {

gyr_dtype named_dtype(const std::string& name) {
  const gyr_dtype found = dtype_of(name);
  if (!found) fail(GYR_ERROR_FILE, words("it has an element type ", name));
  return found;
}

int place_of_symbol(const Entry& entry, const std::string& name) {
  const auto& names = entry.symbol_names;
  const auto found = std::find(names.begin(), names.end(), name);
  if (found == names.end()) fail(GYR_ERROR_FILE, words("it has no symbol ", name));
  return int(found - names.begin());
}

gyr_size size_of(const Entry& entry, const Json& row) {
  if (row.is(Json::Kind::kInteger)) return {-1, 0, row.integer()};
  const int64_t factor = row["factor"].integer();
  if (factor == 0) fail(GYR_ERROR_FILE, "it has a size that is 0 times a symbol");
  return {place_of_symbol(entry, row["symbol"].text()), factor, row["offset"].integer()};
}

Signature input_of(const Entry& entry, const Json& row, bool number) {
  Signature made;
  made.name = row["name"].text();
  made.written = row["written"].truth();
  for (const Json& size : row["shape"].list()) made.sizes.push_back(size_of(entry, size));
  if (number && made.sizes.size() != 1) fail(GYR_ERROR_FILE, "an integer has several sizes");
  made.dtype = number ? gyr_dtype(GYR_INT64) : named_dtype(row["dtype"].text());
  if (number) {
    made.text = words("an integer ", size_text(made.sizes[0], entry.symbol_names));
    return made;
  }
  made.text = words(gyr_dtype_name(made.dtype), "[");
  for (size_t k = 0; k < made.sizes.size(); k++)
    made.text += words(k ? ", " : "", size_text(made.sizes[k], entry.symbol_names));
  made.text += "]";
  made.ndim = int(made.sizes.size());
  if (made.ndim > GYR_MAX_NDIM) fail(GYR_ERROR_FILE, "it has an input of many dimensions");
  const std::string& place = row["device"].text();
  if (place.compare(0, strlen(kDevice), kDevice) == 0) {
    made.device = GYR_CUDA;
    made.text += words(" on ", kDevice);
  } else if (place != "cpu") {
    fail(GYR_ERROR_MISFIT, words("it is for ", place));
  }
  return made;
}

Signature output_of(const Entry& entry, const Json& row, Result& result) {
  Signature made;
  const std::string& kind = row["kind"].text();
  if (kind == "input") {
    result.given = row["place"].integer();
    const int64_t place = result.given - int64_t(entry.held());
    if (result.given < 0 || place >= int64_t(entry.arguments.size()))
      fail(GYR_ERROR_FILE, "a result is not an argument");
    const int64_t input = place < 0 ? -1 : entry.arguments[size_t(place)].input;
    if (input >= 0) {
      const Signature& given = entry.inputs[size_t(input)];
      made.dtype = given.dtype;
      made.ndim = given.ndim;
      made.text = given.text;
    }
    return made;
  }
  if (kind == "value") {
    made.text = "a number";
    return made;
  }
  made.dtype = named_dtype(row["dtype"].text());
  made.text = words(gyr_dtype_name(made.dtype), "[");
  for (const Json& size : row["shape"].list())
    made.text += words(made.ndim++ ? ", " : "", size.text());
  made.text += "]";
  return made;
}

// Returns a path of an open file that no other library has had, because the loader identifies loaded
// libraries by path.
std::string path_of(int file) {
  static std::atomic<uint64_t> count{0};
  std::string path = "/proc/self/";
  for (uint64_t left = count++; left; left >>= 1) path += left & 1 ? "./" : "/";
  return words(path, "fd/", file);
}

}  // namespace

Library::Library(const std::string& name, std::string_view bytes) {
  // Kernels call functions of libm without depending on it.
  [[maybe_unused]] static void* const math = dlopen("libm.so.6", RTLD_NOW | RTLD_GLOBAL);
  std::string path;
  int file = memfd_create(name.c_str(), MFD_CLOEXEC);
  if (file >= 0) {
    path = path_of(file);
  } else {
    const char* folder = getenv("TMPDIR");
    path = words(folder && *folder ? folder : "/tmp", "/gyrator-XXXXXX");
    file = mkostemp(path.data(), O_CLOEXEC);
  }
  std::string why = "there is no room for it";
  size_t written = 0;
  while (file >= 0 && written < bytes.size()) {
    const ssize_t n = write(file, bytes.data() + written, bytes.size() - written);
    if (n <= 0) break;
    written += size_t(n);
  }
  if (file >= 0 && written == bytes.size()) {
    handle_ = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (!handle_) why = dlerror();
  }
  if (file >= 0) {
    if (path.compare(0, 6, "/proc/") != 0) unlink(path.c_str());
    close(file);
  }
  if (!handle_) fail(GYR_ERROR_MISFIT, words("its kernels cannot be loaded: ", why));
}

Library::~Library() {
  if (handle_) dlclose(handle_);
}

void* Library::function(const std::string& symbol) const {
  void* found = dlsym(handle_, symbol.c_str());
  if (!found) fail(GYR_ERROR_FILE, words("its kernels lack ", symbol));
  return found;
}

Package::Package(const char* path, const gyr_open_options& options, int32_t device_index)
    : file(path), archive(file.bytes()), level_(chosen_level(options.isa)) {
  if (options.expected_sha256) {
    std::string wanted = options.expected_sha256;
    std::transform(wanted.begin(), wanted.end(), wanted.begin(),
                   [](char c) { return c >= 'A' && c <= 'F' ? char(c + 32) : c; });
    if (sha256(file.bytes()) != wanted) altered("its SHA-256 is not the expected one");
  }
  if (!archive.has(kManifest)) fail(GYR_ERROR_FILE, words("it has no ", kManifest));
  const Json manifest = Json::read(archive.checked(kManifest));
  const int64_t format = manifest["format"].integer();
  if (format != kFormat)
    fail(GYR_ERROR_FORMAT, words("it has format ", format, "; this library reads ", kFormat));
  const std::string& runtime = manifest["runtime"].text();
  if (runtime == "libtorch" && !has_operators())
    fail(GYR_ERROR_MISFIT, "it needs libtorch: open it with libgyrator_torch");
  if (runtime != "standalone" && runtime != "libtorch")
    fail(GYR_ERROR_MISFIT, "it needs Python: build it with runtime=\"standalone\" or \"libtorch\"");
  const int64_t plans = manifest["plan_format"].integer();
  if (plans != kPlanFormat)
    fail(GYR_ERROR_FORMAT, words("its plans have format ", plans, ", not ", kPlanFormat));
  const std::string& kind = manifest["device"].text();
  if (!kind.empty() && kind != kDevice)
    fail(GYR_ERROR_MISFIT, words("it runs on ", kind, ", which this library does not support"));
  if (kind.empty() && device_index >= 0)
    fail(GYR_ERROR_MISFIT, words("it runs on cpu, not on ", kDevice, ":", device_index));
  if (!kind.empty()) device = Device::open(device_index);
  const Device::Current here(device.get());
  check_machine(manifest);
  for (const Json& row : manifest["members"].list())
    members_[row["name"].text()] = {row["size"].integer(), row["sha256"].text()};
  read_weights(manifest, options.verify);
  for (const auto& [key, rows] : manifest.object())
    for (size_t k = 0; key == "operators" && k < rows.list().size(); k++)
      operators_[rows.list()[k]["name"].text()] = operator_of(rows.list()[k], device.get());
  for (const Json& row : manifest["entries"].list()) read_entry(row);
  if (entries.empty()) fail(GYR_ERROR_FILE, "it has no entry points");
}

std::string_view Package::member(const std::string& name) const {
  const auto known = members_.find(name);
  if (known == members_.end()) fail(GYR_ERROR_FILE, words("its manifest has no ", name));
  const std::string_view found = archive.member(name);
  if (int64_t(found.size()) != known->second.size || sha256(found) != known->second.sha256)
    altered(words(name, " has another hash"));
  return found;
}

void Package::read_weights(const Json& manifest, bool verify) {
  if (members_.count(kWeights)) {
    const std::string_view bytes = verify ? member(kWeights) : archive.member(kWeights);
    if (int64_t(bytes.size()) != members_[kWeights].size)
      altered(words(kWeights, " has ", bytes.size(), " bytes"));
    uint64_t length = 0;
    if (bytes.size() < sizeof length) fail(GYR_ERROR_FILE, "its weights are too short");
    memcpy(&length, bytes.data(), sizeof length);
    if (length > bytes.size() - sizeof length) fail(GYR_ERROR_FILE, "its weights have no header");
    const size_t begin = sizeof length + length;
    const Json header = Json::read(bytes.substr(sizeof length, length));
    for (const auto& [name, row] : header.object())
      if (name != "__metadata__") tensors_.emplace(name, tensor(row, begin, bytes, name));
  }
  for (const Json& row : manifest["weights"].list()) {
    Weight made;
    made.signature.name = row["name"].text();
    made.signature.dtype = named_dtype(row["dtype"].text());
    made.signature.written = row["written"].truth();
    made.sizes = row["shape"].integers();
    made.strides = row["strides"].integers();
    for (const int64_t size : made.sizes) made.signature.sizes.push_back({-1, 0, size});
    const int ndim = made.signature.ndim = int(made.sizes.size());
    made.signature.text =
        words(gyr_dtype_name(made.signature.dtype), listed(ndim, made.sizes.data()));
    const auto found = tensors_.find(row["tensor"].text());
    const bool same = found != tensors_.end() && made.strides.size() == made.sizes.size() &&
                      found->second->dtype == made.signature.dtype && found->second->ndim == ndim &&
                      std::equal(made.sizes.begin(), made.sizes.end(), found->second->sizes());
    if (!same) altered(words("the weight ", made.signature.name, " does not match the manifest"));
    const bool hosted = !device || row["hosted"].truth();
    made.signature.device = hosted ? GYR_CPU : GYR_CUDA;
    Tensor* at = stored(found->first, hosted);
    made.stored.reset(Tensor::make(at->dtype, at->ndim, at->sizes(), at->strides()));
    made.stored->data = at->data;
    made.stored->device = at->device;
    made.stored->lasting = true;
    extent(ndim, made.sizes.data(), made.strides.data(), at->item);
    weights.push_back(std::move(made));
  }
}

// Returns a tensor in the file, or its copy on the device.
Tensor* Package::stored(const std::string& name, bool hosted) {
  Tensor* found = tensors_.at(name).get();
  if (hosted || !device) return found;
  Own& placed = placed_[name];
  if (!placed) {
    Memory memory;
    memory.device = device;
    Own made(memory.make(GYR_CUDA, found->dtype, found->ndim, found->sizes(), found->strides(), true));
    memory.copy(GYR_CUDA, made->data, found->strides(), found);
    made->lasting = true;
    placed = std::move(made);
  }
  return placed.get();
}

Own Package::tensor(const Json& row, size_t begin, std::string_view bytes,
                    const std::string& name) {
  gyr_dtype dtype = GYR_NONE;
  for (const Stored& s : kStored)
    if (row["dtype"].text() == s.name) dtype = s.dtype;
  const std::vector<int64_t> sizes = row["shape"].integers();
  const std::vector<int64_t> places = row["data_offsets"].integers();
  const size_t available = bytes.size() - begin;
  const bool placed = dtype && sizes.size() <= GYR_MAX_NDIM && places.size() == 2 &&
                      places[0] >= 0 && places[0] <= places[1] && size_t(places[1]) <= available;
  if (!placed) fail(GYR_ERROR_FILE, words("its weight ", name, " cannot be read"));
  int64_t strides[GYR_MAX_NDIM];
  const int ndim = int(sizes.size());
  contiguous(ndim, sizes.data(), strides);
  const size_t needed = extent(ndim, sizes.data(), strides, gyr_dtype_size(dtype));
  if (size_t(places[1] - places[0]) != needed)
    fail(GYR_ERROR_FILE, words("its weight ", name, " has another size"));
  Own made(Tensor::make(dtype, ndim, sizes.data(), strides));
  // It is never written to: the file is mapped read-only.
  made->data = const_cast<char*>(bytes.data()) + begin + places[0];
  made->lasting = true;
  if (reinterpret_cast<uintptr_t>(made->data) % std::min<size_t>(gyr_dtype_size(dtype), 8)) {
    Own aligned(Tensor::allocated(default_allocator(), dtype, ndim, sizes.data(), strides));
    memcpy(aligned->data, made->data, needed);
    made->data = aligned->data;
    aligned_.push_back(std::move(aligned));
  }
  return made;
}

void Package::read_entry(const Json& row) {
  Entry& entry = entries.emplace_back();
  entry.name = row["name"].text();
  entry.tokens = row["tokens"].integer();
  if (entry.tokens < 0) fail(GYR_ERROR_FILE, "it has an invalid number of tokens");
  for (const Json& symbol : row["symbols"].list())
    entry.symbol_names.push_back(symbol["name"].text());
  for (const Json& symbol : row["symbols"].list()) {
    const Json& most = symbol["most"];
    const size_t k = entry.symbols.size();
    entry.symbols.push_back({entry.symbol_names[k].c_str(), symbol["least"].integer(),
                             most.is(Json::Kind::kNull) ? INT64_MAX : most.integer()});
  }
  entry.weights = named_weights(row);
  const Json* constants = row.find("constants");
  if (constants && !constants->is(Json::Kind::kNull)) {
    Constants& made = entry.constants;
    made.weights = named_weights(*constants);
    made.plans = plans_of(*constants, entry.name);
    const int64_t taken = (*constants)["count"].integer();
    if (made.plans.back().n_args != int64_t(made.weights.size()) || taken < 0 ||
        taken > made.plans.back().n_results)
      fail(GYR_ERROR_FILE, words("the constants of ", entry.name, " are computed from other weights"));
    made.taken = size_t(taken);
  }
  for (const Json& packing : row["packed"].list())
    entry.constants.packed.push_back(packing_of(packing, entry.constants));
  for (const Json& input : row["inputs"].list()) {
    Argument& made = entry.arguments.emplace_back();
    const std::string& kind = input["kind"].text();
    if (kind == "constant") {
      const Json& value = input["value"];
      made.constant.kind = Const::Kind::kNone;
      if (value.is(Json::Kind::kInteger)) {
        made.constant.kind = Const::Kind::kInteger;
        made.constant.integer = value.integer();
      }
      continue;
    }
    made.number = kind == "integer";
    made.input = int64_t(entry.inputs.size());
    entry.inputs.push_back(input_of(entry, input, made.number));
  }
  for (const Json& output : row["outputs"].list())
    entry.outputs.push_back(output_of(entry, output, entry.results.emplace_back()));
  for (const Signature& s : entry.inputs) entry.input_values.push_back(value_of(s));
  for (const Signature& s : entry.outputs) entry.output_values.push_back(value_of(s));
  entry.plans = plans_of(row, entry.name);
  Plan& main = entry.plans.back();
  if (main.n_args != entry.tokens + int64_t(entry.held() + entry.arguments.size()))
    fail(GYR_ERROR_FILE, words("the plan of ", entry.name, " takes other arguments"));
  main.bind_outputs(entry.tokens);
}

Packing Package::packing_of(const Json& row, const Constants& constants) const {
  Packing made;
  const std::string& name = row["operator"].text();
  const auto found = operators_.find(name);
  if (found == operators_.end()) fail(GYR_ERROR_FILE, words("it does not describe ", name));
  made.op = found->second;
  for (const Json& argument : row["arguments"].list()) {
    Packing::Argument& to = made.arguments.emplace_back();
    if (!argument.is(Json::Kind::kObject)) {
      to.value = constant_of(argument);
    } else if (argument["constant"].is(Json::Kind::kNull)) {
      to.weight = int64_t(named_weight(argument["weight"].text()));
    } else {
      to.constant = argument["constant"].integer();
      if (to.constant < 0 || constants.plans.empty() ||
          to.constant >= constants.plans.back().n_results)
        fail(GYR_ERROR_FILE, words(name, " packs a constant that does not exist"));
    }
  }
  return made;
}

size_t Package::named_weight(const std::string& name) const {
  const auto named = [&](const Weight& w) { return w.signature.name == name; };
  const auto found = std::find_if(weights.begin(), weights.end(), named);
  if (found == weights.end()) fail(GYR_ERROR_FILE, words("it has no weight ", name));
  return size_t(found - weights.begin());
}

std::vector<size_t> Package::named_weights(const Json& row) const {
  std::vector<size_t> made;
  for (const Json& name : row["weights"].list()) made.push_back(named_weight(name.text()));
  return made;
}

void Package::check_machine(const Json& manifest) {
  struct utsname here {};
  uname(&here);
  here_ = here.machine;
  built_ = manifest["machine"].text();
  std::string has = built_;
  bool fits = built_ == here_;
  bool has_cpu_code = !device;  // whether there is CPU code
  for (const Json& entry : manifest["entries"].list())
    for (const Json& program : entry["programs"].list()) {
      for (const Json& library : program["libraries"].list())
        has_cpu_code = has_cpu_code || !library["driven"].truth();
      const std::string& machine = machine_of(program, built_);
      fits = fits || machine == here_;
      if (has.find(machine) == std::string::npos) has += words(", ", machine);
    }
  if (has_cpu_code && !fits) fail(GYR_ERROR_MISFIT, words("it is for ", has, ", this is ", here_));
}

// Returns a rank of how well a program fits this process; -1 if it does not run here.
int64_t Package::fitting(const Json& program) const {
  const std::string& isa = program["isa"].text();
  if (device) return fit(isa, device->arch());
  const int level = machine_of(program, built_) == here_ ? level_of(isa) : -1;
  return level <= level_ ? level : -1;
}

const Json& Package::program_of(const Json& row, const std::string& name) const {
  const Json* best = nullptr;
  int64_t most = -1;
  std::string has;
  for (const Json& program : row["programs"].list()) {
    const int64_t found = fitting(program);
    has += words(has.empty() ? "" : ", ", program["isa"].text());
    if (found > most) {
      best = &program;
      most = found;
    }
  }
  const std::string here = device ? words("device is ", device->arch())
                                  : words("process has ", kLevels[level_]);
  if (!best)
    fail(GYR_ERROR_MISFIT, words(name, " is built for ", has, ", this ", here));
  return *best;
}

// Links the plans of the program that fits this process best.
std::vector<Plan> Package::plans_of(const Json& row, const std::string& name) {
  const Json& program = program_of(row, name);
  const std::string& chosen = program["isa"].text();
  if (device || level_of(chosen) > level_of(isa)) isa = chosen;
  Links links;
  links.operators = operators_;
  links.device = device != nullptr;
  std::map<std::string, Library*> owners;
  std::map<std::string, const DeviceCode*> driven;
  for (const Json& library : program["libraries"].list()) {
    const std::string& file = library["member"].text();
    if (library["driven"].truth()) {
      if (!device) fail(GYR_ERROR_FILE, "it has kernels for a device");
      std::unique_ptr<DeviceCode>& code = codes_[file];
      if (!code) code = std::make_unique<DeviceCode>(device, member(file));
      for (const Json& symbol : library["symbols"].list()) driven[symbol.text()] = code.get();
      continue;
    }
    std::unique_ptr<Library>& loaded = libraries_[file];
    if (!loaded) loaded = std::make_unique<Library>(file, member(file));
    for (const Json& symbol : library["symbols"].list()) owners[symbol.text()] = loaded.get();
  }
  for (const Json& kernel : program["kernels"].list()) {
    const std::string& symbol = kernel["symbol"].text();
    Launched made;
    made.name = kernel["name"].text();
    const auto owner = owners.find(symbol);
    const auto code = driven.find(symbol);
    if (code != driven.end())
      std::tie(made.device, made.arguments) = code->second->kernel(symbol);
    else if (owner != owners.end())
      made.kernel = reinterpret_cast<Kernel>(owner->second->function(symbol));
    else
      fail(GYR_ERROR_FILE, words("its kernels lack ", symbol));
    for (const Json& check : kernel["checks"].list()) {
      if (check.list().size() != 2) fail(GYR_ERROR_FILE, "a check of a kernel is malformed");
      made.checks.push_back(check.list()[1].text());
    }
    links.kernels.emplace(made.name, std::move(made));
  }
  std::set<std::string> hosted;
  for (const Json& key : program["hosted"].list()) hosted.insert(key.text());
  for (const auto& [key, tensor] : program["constants"].object()) {
    if (!tensors_.count(tensor.text())) fail(GYR_ERROR_FILE, words("it has no constant ", key));
    links.constants[key] = stored(tensor.text(), hosted.count(key) != 0);
  }
  return read_plans(member(program["plan"].text()), links);
}

}  // namespace gyr
