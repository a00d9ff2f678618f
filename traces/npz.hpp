#pragma once
/// numpy's .npz: a zip of .npy arrays. Internal to traces/.

#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <vector>

namespace moeplan::npz {

struct Array {
    std::string descr;  ///< numpy's type: "<i4", "|u1", "<f2" …
    std::vector<std::uint64_t> shape;
    std::string bytes;  ///< C order, as in the file
    std::uint64_t size() const;
};

/// Stored and deflated members. @throws InputError naming file and member for damage, other
/// compressions or big endians
std::map<std::string, Array> read(const std::filesystem::path& file);

/// Values as integers or floats. @throws InputError if the type is another, naming the member
std::vector<std::int64_t> integers(const std::string& file, const std::string& name, const Array&);
std::vector<float> floats(const std::string& file, const std::string& name, const Array&);

/// Stored, not compressed, as numpy.savez does. Arrays beyond 4 GiB are refused.
std::string write(const std::map<std::string, Array>&, const std::string& file);

template <class T>
Array array_of(const char* descr, std::vector<std::uint64_t> shape, const std::vector<T>& values) {
    return {descr, std::move(shape),
            std::string(reinterpret_cast<const char*>(values.data()), values.size() * sizeof(T))};
}

}  // namespace moeplan::npz
