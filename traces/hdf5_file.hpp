#pragma once
/// The little of HDF5 that traces need, with its handles owned and its errors ours. Internal to
/// traces/.

#include <hdf5.h>

#include <cstdint>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace moeplan::hdf5 {

/// Debian's serial HDF5 is not thread-safe and prints its error stack: hold this around every call.
class Session {
  public:
    Session();
    ~Session();
    Session(const Session&) = delete;
    Session& operator=(const Session&) = delete;

  private:
    std::unique_lock<std::recursive_mutex> lock_;
    H5E_auto2_t print_ = nullptr;
    void* data_ = nullptr;
};

/// A handle of any kind, closed with its own function.
class Handle {
  public:
    Handle() = default;
    Handle(hid_t id, herr_t (*close)(hid_t)) : id_(id), close_(close) {}
    Handle(Handle&& other) noexcept
        : id_(std::exchange(other.id_, H5I_INVALID_HID)), close_(other.close_) {}
    Handle& operator=(Handle&& other) noexcept {
        std::swap(id_, other.id_);
        std::swap(close_, other.close_);
        return *this;
    }
    ~Handle() {
        if (id_ >= 0 && close_) close_(id_);
    }
    hid_t get() const { return id_; }
    explicit operator bool() const { return id_ >= 0; }

  private:
    hid_t id_ = H5I_INVALID_HID;
    herr_t (*close_)(hid_t) = nullptr;
};

/// Memory types.
template <class T>
hid_t memory_type();
template <>
inline hid_t memory_type<std::uint16_t>() {
    return H5T_NATIVE_UINT16;
}
template <>
inline hid_t memory_type<std::uint32_t>() {
    return H5T_NATIVE_UINT32;
}
template <>
inline hid_t memory_type<std::int64_t>() {
    return H5T_NATIVE_INT64;
}
template <>
inline hid_t memory_type<std::uint64_t>() {
    return H5T_NATIVE_UINT64;
}
template <>
inline hid_t memory_type<float>() {
    return H5T_NATIVE_FLOAT;
}
template <>
inline hid_t memory_type<double>() {
    return H5T_NATIVE_DOUBLE;
}

/// IEEE half precision, which HDF5 1.10 has no name for.
Handle half_type();

/// A dataset that grows along its first dimension.
struct Growing {
    Handle dataset;
    std::vector<hsize_t> shape;  ///< current extent
};

/// @param shape   with 0 steps
/// @param chunk   likewise, 1 step
Growing create_growing(hid_t file, const char* name, hid_t type, std::vector<hsize_t> shape,
                       std::vector<hsize_t> chunk);

/// Writes one block at `start` of extent `count`; grows the dataset to hold it.
void write_block(Growing&, const std::string& file, const std::vector<hsize_t>& start,
                 const std::vector<hsize_t>& count, hid_t memory, const void* values);

void write_attribute(hid_t file, const char* name, const std::string& value);
void write_attribute(hid_t file, const char* name, std::int64_t value);
void write_attribute(hid_t file, const char* name, std::uint64_t value);

/// A dataset opened for reading. Every message names the file, the dataset and the place.
class Dataset {
  public:
    /// Empty if the file has no such dataset. @throws InputError if it is not numbers of that many
    /// dimensions
    static std::optional<Dataset> find(const std::string& file, hid_t id, const char* name,
                                       std::size_t num_dimensions, bool integers);

    const std::string& name() const { return name_; }
    const std::vector<hsize_t>& shape() const { return shape_; }

    /// The block at `start` of extent `count`. @throws InputError if it cannot be read (a damaged
    /// file)
    template <class T>
    std::vector<T> read(const std::vector<hsize_t>& start,
                        const std::vector<hsize_t>& count) const {
        std::vector<T> out(checked_size(count));
        if (!out.empty()) read_into(start, count, memory_type<T>(), out.data());
        return out;
    }
    [[noreturn]] void fail(const std::vector<hsize_t>& place, const std::string& value,
                           const std::string& expected) const;

  private:
    std::size_t checked_size(const std::vector<hsize_t>& count) const;
    void read_into(const std::vector<hsize_t>& start, const std::vector<hsize_t>& count,
                   hid_t memory, void* out) const;
    std::string file_, name_;
    Handle handle_;
    std::vector<hsize_t> shape_;
    hsize_t stored_bytes_ = 0;
};

std::string place_text(const std::vector<hsize_t>& place);  ///< "[0, 3, 17, 1]"

/// Empty if absent. @throws InputError if it is of another kind
std::optional<std::string> text_attribute(const std::string& file, hid_t id, const char* name);
std::optional<std::int64_t> integer_attribute(const std::string& file, hid_t id, const char* name);

}  // namespace moeplan::hdf5
