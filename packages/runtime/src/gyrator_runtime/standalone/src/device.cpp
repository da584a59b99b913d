#include "device.h"

#include <dlfcn.h>

#include <algorithm>
#include <climits>
#include <cstdio>
#include <cstring>
#include <iterator>

#include "error.h"
#include "json.h"
#include "program.h"

namespace gyr {

namespace {

constexpr const char* kLibrary = "libcuda.so.1";
// Constants of cuda.h.
constexpr int32_t kOutOfMemory = 2, kMajor = 75, kMinor = 76, kDynamicShared = 8;
constexpr int32_t kReleaseThreshold = 4, kDeviceMemory = 2;
constexpr int32_t kOverlapsInGraphs = 12030;
constexpr int64_t kSharedByDefault = 48 * 1024;
constexpr int kFirstSpecific = 90;  // from this capability on, machine code is architecture-specific
constexpr int64_t kMostPitch = INT32_MAX;

struct PoolProperties {  // CUmemPoolProps
  int32_t allocation = 1, handles = 0, location = 1, device = 0;
  void* security = nullptr;
  size_t most = 0;
  unsigned short usage = 0;
  unsigned char reserved[54] = {};
};

struct Copy {  // CUDA_MEMCPY2D
  struct Side {
    size_t x = 0, y = 0;
    int32_t memory = kDeviceMemory;
    void* host = nullptr;
    uint64_t device = 0;
    void* array = nullptr;
    size_t pitch = 0;
  } from, to;
  size_t width = 0, height = 0;
};

thread_local void* stream_here = nullptr;

int32_t current(int32_t, void** stream) {
  *stream = stream_here;
  return 0;
}

}  // namespace

// Functions of the driver, by their names in its library.
#define GYR_DRIVER(each)                                                                          \
  each(cuInit, (unsigned)) each(cuDriverGetVersion, (int32_t*))                                   \
  each(cuDeviceGetCount, (int32_t*))                                                              \
  each(cuDeviceGet, (int32_t*, int32_t)) each(cuDeviceGetAttribute, (int32_t*, int32_t, int32_t)) \
  each(cuDevicePrimaryCtxRetain, (void**, int32_t))                                               \
  each(cuDevicePrimaryCtxRelease_v2, (int32_t)) each(cuCtxGetCurrent, (void**))                   \
  each(cuCtxSetCurrent, (void*)) each(cuCtxGetDevice, (int32_t*)) each(cuCtxSynchronize, ())      \
  each(cuStreamSynchronize, (void*)) each(cuGetErrorString, (int32_t, const char**))              \
  each(cuLibraryLoadData, (void**, const void*, void*, void*, unsigned, void*, void*, unsigned))  \
  each(cuLibraryGetKernel, (void**, void*, const char*)) each(cuLibraryUnload, (void*))           \
  each(cuKernelSetAttribute, (int32_t, int32_t, void*, int32_t))                                  \
  each(cuLaunchKernel, (void*, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned,        \
                        unsigned, void*, void**, void**))                                         \
  each(cuLaunchKernelEx, (const LaunchConfig*, void*, void**, void**))                            \
  each(cuMemPoolCreate, (void**, const PoolProperties*)) each(cuMemPoolDestroy, (void*))          \
  each(cuMemPoolSetAttribute, (void*, int32_t, void*))                                            \
  each(cuMemAllocFromPoolAsync, (void**, size_t, void*, void*))                                   \
  each(cuMemFreeAsync, (void*, void*)) each(cuMemcpyHtoD_v2, (void*, const void*, size_t))        \
  each(cuMemcpyDtoHAsync_v2, (void*, const void*, size_t, void*))                                 \
  each(cuMemcpyDtoDAsync_v2, (void*, const void*, size_t, void*))                                 \
  each(cuMemcpy2DAsync_v2, (const Copy*, void*))

struct Driver {
#define GYR_MEMBER(name, arguments) int32_t(*name) arguments = nullptr;
  GYR_DRIVER(GYR_MEMBER)
#undef GYR_MEMBER
  DriverLaunchWith launch_with = nullptr;  // null if graphs cannot capture such launches

  Driver() {
    void* library = dlopen(kLibrary, RTLD_NOW | RTLD_GLOBAL);
    if (!library) fail(GYR_ERROR_MISFIT, words("it runs on cuda, and there is no driver: ", dlerror()));
    const auto find = [&](const char* name) {
      void* found = dlsym(library, name);
      if (!found) fail(GYR_ERROR_MISFIT, words("the driver ", kLibrary, " is too old: it lacks ", name));
      return found;
    };
#define GYR_FIND(name, arguments) name = reinterpret_cast<decltype(name)>(find(#name));
    GYR_DRIVER(GYR_FIND)
#undef GYR_FIND
    if (const int32_t status = cuInit(0)) {
      const char* message = nullptr;
      cuGetErrorString(status, &message);
      if (!message) message = "an error";
      fail(GYR_ERROR_MISFIT, words("it runs on cuda, whose driver reports: ", message));
    }
    int32_t version = 0;
    if (!cuDriverGetVersion(&version) && version >= kOverlapsInGraphs) launch_with = cuLaunchKernelEx;
  }
};

Device::Device(const Driver& driver, int32_t index) : driver_(driver), index_(index) {
  int32_t major = 0, minor = 0, device = 0;
  check(driver.cuDeviceGet(&device, index), "the device");
  check(driver.cuDeviceGetAttribute(&major, kMajor, device), "the device");
  check(driver.cuDeviceGetAttribute(&minor, kMinor, device), "the device");
  arch_ = words("sm_", major, minor);
  check(driver.cuDevicePrimaryCtxRetain(&context_, device), "the device's context");
  const Current here(this);
  PoolProperties own;
  own.device = index;
  uint64_t keep = UINT64_MAX;  // retain released memory for the next call
  if (driver.cuMemPoolCreate(&pool_, &own) ||
      driver.cuMemPoolSetAttribute(pool_, kReleaseThreshold, &keep)) {
    if (pool_) driver.cuMemPoolDestroy(pool_);
    driver.cuDevicePrimaryCtxRelease_v2(device);
    fail(GYR_ERROR_MISFIT, words("cuda:", index, " does not support memory pools"));
  }
}

Device::~Device() {
  {
    const Current here(this);
    driver_.cuCtxSynchronize();
    driver_.cuMemPoolDestroy(pool_);
  }
  driver_.cuDevicePrimaryCtxRelease_v2(index_);
}

std::shared_ptr<Device> Device::open(int32_t index) {
  static const Driver driver;
  int32_t count = 0, given = index;
  driver.cuDeviceGetCount(&count);
  if (!count) fail(GYR_ERROR_MISFIT, "it runs on cuda, and there is no device of that type");
  if (given == -1 && driver.cuCtxGetDevice(&given)) given = 0;
  if (given < 0 || given >= count)
    fail(GYR_ERROR_MISFIT, words("there is no cuda:", given, "; there are ", count, " of them"));
  return std::shared_ptr<Device>(new Device(driver, given));
}

std::string Device::described(int32_t status) const {
  const char* message = nullptr;
  driver_.cuGetErrorString(status, &message);
  return message ? message : words("error ", status);
}

void Device::check(int32_t status, const char* what) const {
  if (!status) return;
  const gyr_status code = status == kOutOfMemory ? GYR_ERROR_MEMORY : GYR_ERROR_DEVICE;
  fail(code, words(what, " of cuda:", index_, ": ", described(status)));
}

void* Device::allocate(size_t bytes, void* stream) const {
  void* made = nullptr;
  check(driver_.cuMemAllocFromPoolAsync(&made, std::max<size_t>(bytes, 1), pool_, stream), "memory");
  return made;
}

void Device::release(void* data, void* stream) const noexcept {
  driver_.cuMemFreeAsync(data, stream);
}

void Device::to_device(void* to, const void* from, size_t bytes) const {
  if (bytes) check(driver_.cuMemcpyHtoD_v2(to, from, bytes), "a copy");
}

void Device::to_host(void* to, const void* from, size_t bytes, void* stream) const {
  check(driver_.cuMemcpyDtoHAsync_v2(to, from, bytes, stream), "a copy");
  check(driver_.cuStreamSynchronize(stream), "a copy");
}

void Device::settle() const noexcept { driver_.cuCtxSynchronize(); }

void Device::wait() const { check(driver_.cuCtxSynchronize(), "the queued work"); }

namespace {

struct Axis {
  int64_t size, to, from;  // strides in bytes
};

// Axes with more than one element, innermost last; adjacent axes are merged where possible.
std::vector<Axis> axes_of(int ndim, const int64_t* sizes, int64_t item, const int64_t* to,
                          const int64_t* from) {
  std::vector<Axis> found;
  for (int k = 0; k < ndim; k++)
    if (sizes[k] != 1) found.push_back({sizes[k], to[k] * item, from[k] * item});
  std::stable_sort(found.begin(), found.end(),
                   [](const Axis& a, const Axis& b) { return a.to > b.to; });
  std::vector<Axis> made;
  for (const Axis& axis : found) {
    const bool continues = !made.empty() && made.back().to == axis.size * axis.to &&
                       made.back().from == axis.size * axis.from;
    if (continues) made.back() = {made.back().size * axis.size, axis.to, axis.from};
    else made.push_back(axis);
  }
  return made;
}

}  // namespace

void Device::copy(int ndim, const int64_t* sizes, size_t item, void* to, const int64_t* to_strides,
                  const void* from, const int64_t* from_strides, void* stream) const {
  if (std::count(sizes, sizes + ndim, 0)) return;
  std::vector<Axis> axes = axes_of(ndim, sizes, int64_t(item), to_strides, from_strides);
  Copy one;
  one.width = item;
  one.height = 1;
  const auto last = [&] { return axes.back(); };
  if (!axes.empty() && last().to == int64_t(item) && last().from == int64_t(item)) {
    one.width *= size_t(last().size);
    axes.pop_back();
  }
  const auto pitched = [&](int64_t stride) {
    return stride >= int64_t(one.width) && stride <= kMostPitch;
  };
  if (!axes.empty() && pitched(last().to) && pitched(last().from)) {
    one.height = size_t(last().size);
    one.to.pitch = size_t(last().to);
    one.from.pitch = size_t(last().from);
    axes.pop_back();
  }
  std::vector<int64_t> at(axes.size(), 0);
  for (;;) {
    int64_t out = 0, in = 0;
    for (size_t k = 0; k < axes.size(); k++) {
      out += at[k] * axes[k].to;
      in += at[k] * axes[k].from;
    }
    one.to.device = reinterpret_cast<uint64_t>(to) + uint64_t(out);
    one.from.device = reinterpret_cast<uint64_t>(from) + uint64_t(in);
    check(one.height > 1 ? driver_.cuMemcpy2DAsync_v2(&one, stream)
                         : driver_.cuMemcpyDtoDAsync_v2(reinterpret_cast<void*>(one.to.device),
                                                        reinterpret_cast<void*>(one.from.device),
                                                        one.width, stream),
          "a copy");
    size_t k = axes.size();
    while (k > 0 && ++at[k - 1] == axes[k - 1].size) at[--k] = 0;
    if (k == 0) return;
  }
}

Device::Current::Current(const Device* device) : device_(device) {
  if (!device_) return;
  device_->driver_.cuCtxGetCurrent(&before_);
  if (before_ != device_->context_) device_->driver_.cuCtxSetCurrent(device_->context_);
}

Device::Current::~Current() {
  if (device_ && before_ != device_->context_) device_->driver_.cuCtxSetCurrent(before_);
}

int64_t fit(const std::string& code, const std::string& device) {
  int least = 0, own = 0, end = 0;
  if (sscanf(code.c_str(), "sm_%d%n", &least, &end) != 1) return -1;
  if (sscanf(device.c_str(), "sm_%d", &own) != 1) return -1;
  if (code[size_t(end)] == '+') return least <= own ? least : -1;
  if (size_t(end) != code.size()) return -1;
  const bool alone = own >= kFirstSpecific || least / 10 != own / 10;
  const bool runs = alone ? least == own : least <= own;
  return runs ? INT32_MAX + int64_t(least) : -1;
}

OnStream::OnStream(void* stream) : before_(stream_here) { stream_here = stream; }
OnStream::~OnStream() { stream_here = before_; }

namespace {

// Names of the operations of expressions (native/words.py), in the order of ExprOp.
constexpr const char* kOperations[] = {"arg", "const", "add", "sub", "mul", "floordiv", "mod", "min",
                                       "max", "eq",    "ne",  "lt",  "le",  "unless",   "skip"};

std::vector<int64_t> expression_of(const Json& row, int64_t n_sizes) {
  std::vector<int64_t> words;
  for (const Json& pair : row.list()) {
    if (pair.list().size() != 2) fail(GYR_ERROR_FILE, "a grid is malformed");
    const std::string& name = pair.list()[0].text();
    const auto found = std::find(std::begin(kOperations), std::end(kOperations), name);
    words.push_back(found - std::begin(kOperations));
    words.push_back(pair.list()[1].integer());
  }
  check_expression(words.data(), int64_t(words.size() / 2), n_sizes);
  return words;
}

struct Build {
  std::string name;
  std::string_view code;
  int64_t shared = 0;
};

}  // namespace

struct DeviceCode::Kernel {
  DeviceLaunch block{};  // first: its address is the kernel's
  DeviceCode* owner = nullptr;
  Build builds[2];
  std::vector<int64_t> divisors, grids[3];
};

DeviceCode::DeviceCode(std::shared_ptr<const Device> device, std::string_view bytes)
    : libraries_{std::move(device), {}} {
  int64_t length = 0;
  if (bytes.size() < sizeof length) fail(GYR_ERROR_FILE, "its kernels are too short");
  memcpy(&length, bytes.data(), sizeof length);
  if (length < 0 || uint64_t(length) > bytes.size() - sizeof length)
    fail(GYR_ERROR_FILE, "its kernels have no index");
  const Json rows = Json::read(bytes.substr(sizeof length, size_t(length)));
  const std::string_view codes = bytes.substr(sizeof length + size_t(length));
  for (const Json& row : rows.list()) read(row, codes);
}

DeviceCode::~DeviceCode() = default;

DeviceCode::Libraries::~Libraries() {
  const Device::Current here(device.get());
  device->driver().cuCtxSynchronize();
  for (void* library : loaded) device->driver().cuLibraryUnload(library);
}

void DeviceCode::read(const Json& row, std::string_view codes) {
  auto made = std::make_unique<Kernel>();
  const auto placed = [&](const Json& of) {
    const int64_t at = of["at"].integer(), length = of["length"].integer();
    if (at < 0 || length < 1 || uint64_t(at) > codes.size() ||
        uint64_t(length) > codes.size() - uint64_t(at))
      fail(GYR_ERROR_FILE, "a kernel ends beyond its member");
    const Json& facts = of["facts"];
    return Build{facts["name"].text(), codes.substr(size_t(at), size_t(length)),
                 facts["shared"].integer()};
  };
  made->owner = this;
  made->builds[1] = made->builds[0] = placed(row);
  for (const auto& [name, general] : row.object())
    if (name == "general") made->builds[1] = placed(general);
  int64_t n_sizes = 0;
  const Json job = Json::read(row["job"].text());
  for (const Json& argument : job["arguments"].list()) {
    if (argument.list().size() != 3 || argument.list()[2].integer() < 1)
      fail(GYR_ERROR_FILE, "a kernel's argument is malformed");
    n_sizes += argument.list()[1].text().compare(0, 1, "*") != 0;
    made->divisors.push_back(argument.list()[2].integer());
  }
  const auto& programs = row["grid"].list();
  if (programs.size() > std::size(made->grids)) fail(GYR_ERROR_FILE, "a grid has too many dimensions");
  DeviceLaunch& block = made->block;
  block.launch = libraries_.device->driver().cuLaunchKernel;
  if (row["facts"]["waits"].truth()) block.launch_with = libraries_.device->driver().launch_with;
  block.stream = current;
  block.prepare = [](const DeviceLaunch* of, int64_t what) { return prepare(of, what); };
  block.threads = row["facts"]["threads"].integer();
  block.divisors = made->divisors.data();
  block.dimensions = int64_t(programs.size());
  for (size_t k = 0; k < programs.size(); k++) {
    made->grids[k] = expression_of(programs[k], n_sizes);
    block.grid[k] = made->grids[k].data();
    block.grid_length[k] = int64_t(made->grids[k].size() / 2);
  }
  load(*made, 0);
  kernels_[row["symbol"].text()] = std::move(made);
}

void DeviceCode::load(Kernel& kernel, int which) {
  const Device& device = *libraries_.device;
  const Driver& driver = device.driver();
  const Build& build = kernel.builds[which];
  void *library = nullptr, *function = nullptr;
  std::string code(build.code);  // null-terminated, because PTX is text
  int32_t status = driver.cuLibraryLoadData(&library, code.c_str(), nullptr, nullptr, 0, nullptr,
                                            nullptr, 0);
  if (!status) {
    libraries_.loaded.push_back(library);
    status = driver.cuLibraryGetKernel(&function, library, build.name.c_str());
  }
  if (!status && build.shared > kSharedByDefault)
    status = driver.cuKernelSetAttribute(kDynamicShared, int32_t(build.shared), function,
                                         device.index());
  if (status)
    fail(GYR_ERROR_MISFIT,
         words("its kernel ", build.name, " cannot be loaded: ", device.described(status)));
  kernel.block.shared[which] = build.shared;
  __atomic_store_n(&kernel.block.functions[which], function, __ATOMIC_RELEASE);
}

int64_t DeviceCode::prepare(const void* of, int64_t what) {
  if (what == kEnterContext) return kInvalidContext;  // the call has entered it already
  auto& kernel = *const_cast<Kernel*>(static_cast<const Kernel*>(of));
  const std::lock_guard<std::mutex> alone(kernel.owner->lock_);
  if (!kernel.block.functions[what]) kernel.owner->load(kernel, int(what));
  return 0;
}

std::pair<int64_t, int64_t> DeviceCode::kernel(const std::string& symbol) const {
  const auto found = kernels_.find(symbol);
  if (found == kernels_.end()) fail(GYR_ERROR_FILE, words("its kernels lack ", symbol));
  const Kernel& kernel = *found->second;
  return {reinterpret_cast<int64_t>(&kernel.block), int64_t(kernel.divisors.size())};
}

}  // namespace gyr
