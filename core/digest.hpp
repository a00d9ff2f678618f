#pragma once
/// SHA-256 (FIPS 180-4): every report carries a digest of its inputs, every corpus file one of its
/// content.

#include <array>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>

namespace moeplan {

class Digest {
  public:
    Digest();
    Digest& add(std::string_view bytes);
    std::string hex();  ///< 64 hexadecimal digits; ends the digest

  private:
    void block(const unsigned char* bytes);
    std::array<std::uint32_t, 8> state_;
    std::array<unsigned char, 64> pending_{};
    std::uint64_t length_ = 0;
};

std::string digest_of(std::string_view bytes);
std::string digest_of_file(
    const std::filesystem::path& file);  ///< @throws InputError if it cannot be read

}  // namespace moeplan
