// Reads a file and writes it again. io_oracle.py compares the result with that of numpy and
// safetensors.
#include <cstdio>
#include <exception>
#include <string>

#include "io/npy.h"
#include "io/npz.h"
#include "io/safetensors.h"

int main(int argc, char** argv) {
  if (argc != 3) {
    std::fprintf(stderr, "usage: io_convert IN OUT, both .npy, .safetensors or .npz\n");
    return 2;
  }
  const std::string from = argv[1];
  const std::string to = argv[2];
  try {
    if (from.ends_with(".npy")) {
      tilewise::io::write_npy(to, tilewise::io::read_npy(from));
    } else if (from.ends_with(".npz")) {
      const auto all = [](std::string_view) { return true; };
      tilewise::io::stage_npz(to, tilewise::io::read_npz(from, all)).commit();
    } else {
      tilewise::io::write_safetensors(to, tilewise::io::read_safetensors(from));
    }
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 2;
  }
  return 0;
}
