// Loads a package of Gyrator's and one of AOTInductor's, and calls them in turns, without Python.
//
//   packages model.gya model.pt2 THREADS ROUNDS BATCH INPUT...     each INPUT: f32:4,64 or i64:1,128
//
// Prints, as JSON, seconds of thread time: the least of the loads after the first, the least mean of
// a batch of calls. Inputs are ones. It fails where the results differ.
#include <time.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <sstream>
#include <string>
#include <vector>

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <c10/core/InferenceMode.h>
#include <torch/csrc/inductor/aoti_package/model_package_loader.h>

#include "gyrator.hpp"

namespace {

constexpr int kLoads = 8;

double now() {
  timespec t;
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
  return double(t.tv_sec) + 1e-9 * double(t.tv_nsec);
}

at::Tensor ones(const std::string& text) {
  std::istringstream rest(text.substr(4));
  std::vector<int64_t> sizes;
  for (std::string size; std::getline(rest, size, ',');) sizes.push_back(std::stoll(size));
  return at::ones(sizes, text.compare(0, 3, "f32") == 0 ? at::kFloat : at::kLong);
}

gyr_tensor view(const at::Tensor& of) {
  gyr_tensor made{};
  made.data = of.data_ptr();
  made.dtype = of.scalar_type() == at::kFloat ? GYR_FLOAT32 : GYR_INT64;
  made.ndim = int32_t(of.dim());
  made.sizes = of.sizes().data();
  return made;
}

template <class Step>
void least(double& found, int times, Step step) {
  const double start = now();
  for (int k = 0; k < times; k++) step();
  found = std::min(found, (now() - start) / times);
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 7) return 2;
  const int rounds = std::atoi(argv[4]), batch = std::atoi(argv[5]);
  at::set_num_threads(std::atoi(argv[3]));
  c10::InferenceMode inference;
  std::vector<at::Tensor> inputs;
  for (int k = 6; k < argc; k++) inputs.push_back(ones(argv[k]));
  std::vector<gyr_tensor> views;
  for (const at::Tensor& input : inputs) views.push_back(view(input));

  using Loader = torch::inductor::AOTIModelPackageLoader;
  std::vector<gyrator::Model> ours;  // to unload is another matter
  std::vector<std::unique_ptr<Loader>> theirs;
  double load[2] = {1e9, 1e9}, call[2] = {1e9, 1e9};
  for (int k = 0; k < kLoads; k++) {
    double first = 1e9;
    least(k ? load[0] : first, 1, [&] { ours.emplace_back(gyrator::Package(argv[1])); });
    least(k ? load[1] : first, 1, [&] { theirs.push_back(std::make_unique<Loader>(argv[2])); });
  }

  gyr_tensor output{};
  const auto run = [&] {
    gyr_tensor_release(&output);
    output = gyr_tensor{};
    if (gyr_run(ours[0].raw(), 0, views.data(), views.size(), &output, 1)) {
      std::fprintf(stderr, "%s\n", gyr_last_error());
      std::exit(1);
    }
  };
  std::vector<at::Tensor> outputs;
  const auto run_theirs = [&] { outputs = theirs[0]->run(inputs); };
  for (int round = 0; round < rounds + 2; round++) {
    double first = 1e9;
    least(round < 2 ? first : call[0], batch, run);
    least(round < 2 ? first : call[1], batch, run_theirs);
  }
  const at::IntArrayRef sizes(output.sizes, size_t(output.ndim));
  const at::IntArrayRef strides(output.strides, size_t(output.ndim));
  const at::Tensor found = at::from_blob(output.data, sizes, strides, at::kFloat);
  if (!at::allclose(found, outputs[0], 1e-3, 1e-3)) {
    std::fprintf(stderr, "the results differ\n");
    return 1;
  }
  std::printf("{\"load\": {\"gyrator\": %.9g, \"inductor\": %.9g}, ", load[0], load[1]);
  std::printf("\"call\": {\"gyrator\": %.9g, \"inductor\": %.9g}}\n", call[0], call[1]);
  return 0;
}
