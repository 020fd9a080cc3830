#include "types.h"

namespace farandole {

std::string to_string(const Shape& shape) {
  std::string text = "[";
  for (std::size_t i = 0; i < shape.size(); ++i) {
    if (i != 0) text += ", ";
    text += std::to_string(shape[i]);
  }
  return text + "]";
}

std::int64_t element_count(const Shape& shape) noexcept {
  std::int64_t count = 1;
  for (std::int64_t extent : shape) count *= extent;
  return count;
}

}  // namespace farandole
