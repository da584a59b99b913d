// Arrays for the duration of a call, on the stack if they are short.
#pragma once

#include <cstddef>
#include <memory>

namespace gyr {

// A number of default-constructed elements.
template <class T, size_t kInline = 8>
class Few {
 public:
  explicit Few(size_t n) : size_(n) {
    data_ = n <= kInline ? reinterpret_cast<T*>(room_) : std::allocator<T>().allocate(n);
    std::uninitialized_default_construct_n(data_, n);
  }
  ~Few() {
    std::destroy_n(data_, size_);
    if (size_ > kInline) std::allocator<T>().deallocate(data_, size_);
  }
  Few(const Few&) = delete;
  Few& operator=(const Few&) = delete;

  size_t size() const { return size_; }
  T* data() { return data_; }
  const T* data() const { return data_; }
  T* begin() { return data_; }
  T* end() { return data_ + size_; }
  T& operator[](size_t k) { return data_[k]; }
  const T& operator[](size_t k) const { return data_[k]; }

 private:
  alignas(T) unsigned char room_[kInline * sizeof(T)];
  T* data_;
  size_t size_;
};

}  // namespace gyr
