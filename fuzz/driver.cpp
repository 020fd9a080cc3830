/// libFuzzer's entry for one target, the one that FARANDOLE_FUZZ_TARGET names; with `--seeds
/// FOLDER` it writes the target's seeds there instead.

#include <cstring>
#include <filesystem>
#include <fstream>
#include <string>

#include "target.h"

namespace {

const farandole::fuzz::Target& target() {
  for (const auto& one : farandole::fuzz::targets()) {
    if (one.name == FARANDOLE_FUZZ_TARGET) return one;
  }
  std::abort();
}

}  // namespace

extern "C" int LLVMFuzzerInitialize(int* argc, char*** argv) {
  if (*argc != 3 || std::strcmp((*argv)[1], "--seeds") != 0) return 0;
  const std::filesystem::path folder((*argv)[2]);
  std::filesystem::create_directories(folder);
  int number = 0;
  for (const auto& seed : target().seeds()) {
    std::ofstream file(folder / ("seed" + std::to_string(number++)), std::ios::binary);
    file.write(reinterpret_cast<const char*>(seed.data()),
               static_cast<std::streamsize>(seed.size()));
  }
  std::exit(0);
}

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  target().run({reinterpret_cast<const std::byte*>(data), size});
  return 0;
}
