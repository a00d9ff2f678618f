#include "model/import/text_file.hpp"

#include <fstream>

#include "core/errors.hpp"

namespace moeplan {

std::string read_text_file(const std::filesystem::path& file) {
    constexpr std::size_t kMostBytes = std::size_t{16} << 20;
    std::error_code error;
    if (std::filesystem::is_directory(file, error))
        throw InputError(file.string(), "", "a folder", "a file");
    std::ifstream in(file, std::ios::binary);
    if (!in) throw InputError(file.string(), "", "", "a readable file");
    std::string out;
    char buffer[1 << 16];
    while (in.read(buffer, sizeof buffer) || in.gcount() > 0) {
        out.append(buffer, static_cast<std::size_t>(in.gcount()));
        if (out.size() > kMostBytes)
            throw InputError(file.string(), "", "over 16 MiB", "a configuration file");
    }
    return out;
}

}  // namespace moeplan
