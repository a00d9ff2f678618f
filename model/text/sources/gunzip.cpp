#include <zlib.h>

#include <algorithm>
#include <limits>

#include "model/text/sources/sources.hpp"

namespace moeplan::text {

std::string gunzip(std::string_view bytes, std::size_t limit) {
    z_stream stream{};
    if (inflateInit2(&stream, 16 + MAX_WBITS) != Z_OK) return {};
    std::string out;
    std::string buffer(1 << 18, '\0');
    bytes = bytes.substr(0, std::numeric_limits<uInt>::max());
    stream.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(bytes.data()));  // zlib reads only
    stream.avail_in = static_cast<uInt>(bytes.size());
    while (out.size() < limit) {
        stream.next_out = reinterpret_cast<Bytef*>(buffer.data());
        stream.avail_out = static_cast<uInt>(buffer.size());
        const int status = inflate(&stream, Z_NO_FLUSH);
        const std::size_t made = buffer.size() - stream.avail_out;
        out.append(buffer, 0, std::min(made, limit - out.size()));
        if (status != Z_OK || made == 0) break;
    }
    inflateEnd(&stream);
    return out;
}

}  // namespace moeplan::text
