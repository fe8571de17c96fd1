// zlib's inflate and checksum over bytes in memory. Used by npz.cc.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

namespace tilewise::io {

// The CRC-32 of bytes that follow others with the checksum `before`.
std::uint32_t checksum(std::span<const std::byte> bytes, std::uint32_t before = 0);

// Inflates a raw deflate stream step by step.
class Inflater {
 public:
  // Throws std::bad_alloc. The bytes must outlive the object.
  explicit Inflater(std::span<const std::byte> deflated);
  ~Inflater();
  Inflater(const Inflater&) = delete;
  Inflater& operator=(const Inflater&) = delete;

  // Fills `to`; returns the number of bytes, fewer only where the stream ends or is not valid.
  std::size_t read(std::span<std::byte> to);

  // True if the stream has ended, and with it the deflated bytes. Reads one byte more if need be.
  bool ends_here();

 private:
  struct Stream;  // zlib's
  std::unique_ptr<Stream> stream_;
  std::span<const std::byte> left_;  // what zlib has not been given yet
  bool ended_ = false;
};

}  // namespace tilewise::io
