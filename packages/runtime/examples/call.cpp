// Calls an entry point of a package whose one input is a matrix of float32, in C++: once into memory
// of the library's, once into a vector. Prints the result.
//
//   gyrator aot library --out prefix
//   cmake -B build -DCMAKE_PREFIX_PATH=$PWD/prefix && cmake --build build
//   build/call model.gya 3 16
#include <cstdlib>
#include <iostream>
#include <vector>

#include "gyrator.hpp"

int main(int argc, char** argv) try {
  if (argc != 4) {
    std::cerr << "usage: " << argv[0] << " model.gya rows columns\n";
    return 2;
  }
  const int64_t rows = std::atoll(argv[2]), columns = std::atoll(argv[3]);
  const gyrator::Model model{gyrator::Package(argv[1])};

  const std::vector<float> x(size_t(rows * columns), 1.0f);
  const std::vector<gyrator::Tensor> results = model.run({gyrator::view(x.data(), {rows, columns})});

  std::vector<float> y(size_t(rows * results[0].sizes()[1]));
  model.run_into({gyrator::view(x.data(), {rows, columns})},
                 {gyrator::view(y.data(), results[0].sizes(), results[0].strides())});
  for (size_t k = 0; k < y.size(); k++) {
    if (y[k] != results[0].data<float>()[k]) return 1;
    std::cout << y[k] << '\n';
  }
  return 0;
} catch (const std::exception& error) {
  std::cerr << error.what() << '\n';
  return 1;
}
