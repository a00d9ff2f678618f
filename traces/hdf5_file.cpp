#include "traces/hdf5_file.hpp"

#include <algorithm>
#include <cstring>
#include <limits>
#include <string_view>

#include "core/errors.hpp"

namespace moeplan::hdf5 {
namespace {

std::recursive_mutex& library_mutex() {
    static std::recursive_mutex mutex;
    return mutex;
}

/// Ids of one read at most (8 GiB as u16): a shape beyond it is a damaged or hostile file, not a
/// trace.
constexpr hsize_t kLargestRead = hsize_t{1} << 32;

/// Deflate never expands by more than this (zlib: 1032:1); the rest is room for chunk indices.
constexpr hsize_t kLargestExpansion = 1100;

}  // namespace

Session::Session() : lock_(library_mutex()) {
    // We close what we open; its own clean-up at exit loops over what a damaged file left behind.
    [[maybe_unused]] static const herr_t once = H5dont_atexit();
    H5Eget_auto2(H5E_DEFAULT, &print_, &data_);
    H5Eset_auto2(H5E_DEFAULT, nullptr, nullptr);
}

Session::~Session() { H5Eset_auto2(H5E_DEFAULT, print_, data_); }

Handle half_type() {
    Handle type(H5Tcopy(H5T_IEEE_F32LE), H5Tclose);
    // Sign 1, exponent 5 (bias 15), mantissa 10; the fields must shrink before the size does.
    H5Tset_fields(type.get(), 15, 10, 5, 0, 10);
    H5Tset_size(type.get(), 2);
    H5Tset_ebias(type.get(), 15);
    return type;
}

Growing create_growing(hid_t file, const char* name, hid_t type, std::vector<hsize_t> shape,
                       std::vector<hsize_t> chunk) {
    std::vector<hsize_t> most = shape;
    most[0] = H5S_UNLIMITED;
    for (auto& extent : chunk) extent = std::max<hsize_t>(1, extent);
    // Pools are counted by document, and no two steps have the same number of documents.
    if (std::string_view(name) == "pool_size") most.back() = H5S_UNLIMITED;
    const Handle space(H5Screate_simple(static_cast<int>(shape.size()), shape.data(), most.data()),
                       H5Sclose);
    const Handle settings(H5Pcreate(H5P_DATASET_CREATE), H5Pclose);
    H5Pset_chunk(settings.get(), static_cast<int>(chunk.size()), chunk.data());
    if (shape.size() > 1) {
        H5Pset_shuffle(settings.get());
        H5Pset_deflate(settings.get(), 1);
    }
    H5Pset_obj_track_times(settings.get(), false);  // same trace, same bytes
    Growing out{
        Handle(H5Dcreate2(file, name, type, space.get(), H5P_DEFAULT, settings.get(), H5P_DEFAULT),
               H5Dclose),
        std::move(shape)};
    return out;
}

void write_block(Growing& to, const std::string& file, const std::vector<hsize_t>& start,
                 const std::vector<hsize_t>& count, hid_t memory, const void* values) {
    bool grown = false;
    for (std::size_t i = 0; i < start.size(); ++i)
        if (start[i] + count[i] > to.shape[i]) {
            to.shape[i] = start[i] + count[i];
            grown = true;
        }
    if (grown) H5Dset_extent(to.dataset.get(), to.shape.data());
    const Handle target(H5Dget_space(to.dataset.get()), H5Sclose);
    const Handle block(H5Screate_simple(static_cast<int>(count.size()), count.data(), nullptr),
                       H5Sclose);
    if (!target ||
        H5Sselect_hyperslab(target.get(), H5S_SELECT_SET, start.data(), nullptr, count.data(),
                            nullptr) < 0 ||
        H5Dwrite(to.dataset.get(), memory, block.get(), target.get(), H5P_DEFAULT, values) < 0)
        throw InputError(file, "", "", "room to write");
}

void write_attribute(hid_t file, const char* name, const std::string& value) {
    const Handle type(H5Tcopy(H5T_C_S1), H5Tclose);
    H5Tset_size(type.get(), std::max<std::size_t>(1, value.size()));
    H5Tset_cset(type.get(), H5T_CSET_UTF8);
    H5Tset_strpad(type.get(), H5T_STR_NULLPAD);
    const Handle space(H5Screate(H5S_SCALAR), H5Sclose);
    const Handle attribute(
        H5Acreate2(file, name, type.get(), space.get(), H5P_DEFAULT, H5P_DEFAULT), H5Aclose);
    H5Awrite(attribute.get(), type.get(), value.c_str());
}

namespace {

template <class T>
void write_number(hid_t file, const char* name, T value, hid_t stored) {
    const Handle space(H5Screate(H5S_SCALAR), H5Sclose);
    const Handle attribute(H5Acreate2(file, name, stored, space.get(), H5P_DEFAULT, H5P_DEFAULT),
                           H5Aclose);
    H5Awrite(attribute.get(), memory_type<T>(), &value);
}

}  // namespace

void write_attribute(hid_t file, const char* name, std::int64_t value) {
    write_number(file, name, value, H5T_STD_I64LE);
}
void write_attribute(hid_t file, const char* name, std::uint64_t value) {
    write_number(file, name, value, H5T_STD_U64LE);
}

std::optional<Dataset> Dataset::find(const std::string& file, hid_t id, const char* name,
                                     std::size_t num_dimensions, bool integers) {
    if (H5Lexists(id, name, H5P_DEFAULT) <= 0) return std::nullopt;
    Dataset out;
    out.file_ = file;
    out.name_ = std::string("/") + name;
    out.handle_ = Handle(H5Dopen2(id, name, H5P_DEFAULT), H5Dclose);
    if (!out.handle_) throw InputError(file, out.name_, "no readable dataset", "a dataset");
    const Handle type(H5Dget_type(out.handle_.get()), H5Tclose);
    const H5T_class_t kind = type ? H5Tget_class(type.get()) : H5T_NO_CLASS;
    if (!(kind == H5T_INTEGER || (!integers && kind == H5T_FLOAT)))
        throw InputError(file, out.name_, "of another type", integers ? "integers" : "numbers");
    const Handle space(H5Dget_space(out.handle_.get()), H5Sclose);
    const int rank = space ? H5Sget_simple_extent_ndims(space.get()) : -1;
    if (rank != static_cast<int>(num_dimensions))
        throw InputError(file, out.name_, "of " + std::to_string(rank) + " dimensions",
                         std::to_string(num_dimensions) + " dimensions");
    out.shape_.resize(num_dimensions);
    H5Sget_simple_extent_dims(space.get(), out.shape_.data(), nullptr);
    out.stored_bytes_ = H5Dget_storage_size(out.handle_.get());
    // A shape that its stored bytes cannot fill is refused before memory is asked for.
    const hsize_t element = H5Tget_size(type.get());
    hsize_t total = element;
    for (const hsize_t extent : out.shape_) {
        if (extent != 0 && total > std::numeric_limits<hsize_t>::max() / extent)
            throw InputError(file, out.name_, "of shape " + place_text(out.shape_),
                             "a shape that its data can fill");
        total *= extent;
    }
    if (total > out.stored_bytes_ * kLargestExpansion + 65536)
        throw InputError(file, out.name_,
                         "of shape " + place_text(out.shape_) + " with " +
                             std::to_string(out.stored_bytes_) + " bytes stored",
                         "a shape that its data can fill (the file is damaged or cut short)");
    return out;
}

std::size_t Dataset::checked_size(const std::vector<hsize_t>& count) const {
    hsize_t size = 1;
    for (const hsize_t extent : count) {
        if (extent != 0 && size > kLargestRead / extent)
            fail(count, "a block too large", "at most 2^32 values a layer");
        size *= extent;
    }
    return static_cast<std::size_t>(size);
}

void Dataset::read_into(const std::vector<hsize_t>& start, const std::vector<hsize_t>& count,
                        hid_t memory, void* out) const {
    const Handle source(H5Dget_space(handle_.get()), H5Sclose);
    const Handle block(H5Screate_simple(static_cast<int>(count.size()), count.data(), nullptr),
                       H5Sclose);
    if (!source ||
        H5Sselect_hyperslab(source.get(), H5S_SELECT_SET, start.data(), nullptr, count.data(),
                            nullptr) < 0 ||
        H5Dread(handle_.get(), memory, block.get(), source.get(), H5P_DEFAULT, out) < 0)
        fail(start, "not readable", "whole data (the file is damaged or cut short)");
}

void Dataset::fail(const std::vector<hsize_t>& place, const std::string& value,
                   const std::string& expected) const {
    throw InputError(file_, name_ + place_text(place), value, expected);
}

std::string place_text(const std::vector<hsize_t>& place) {
    std::string out = "[";
    for (std::size_t i = 0; i < place.size(); ++i)
        out += (i > 0 ? ", " : "") + std::to_string(place[i]);
    return out + "]";
}

namespace {

constexpr std::size_t kLongestText = 1 << 16;

Handle open_attribute(hid_t id, const char* name) {
    if (H5Aexists(id, name) <= 0) return {};
    return Handle(H5Aopen(id, name, H5P_DEFAULT), H5Aclose);
}

bool is_single(const Handle& attribute) {
    const Handle space(H5Aget_space(attribute.get()), H5Sclose);
    return space && H5Sget_simple_extent_npoints(space.get()) == 1;
}

}  // namespace

std::optional<std::string> text_attribute(const std::string& file, hid_t id, const char* name) {
    const Handle attribute = open_attribute(id, name);
    if (!attribute) return std::nullopt;
    const Handle type(H5Aget_type(attribute.get()), H5Tclose);
    if (!type || H5Tget_class(type.get()) != H5T_STRING || !is_single(attribute))
        throw InputError(file, std::string("attribute ") + name, "no text", "one text");
    std::string out;
    if (H5Tis_variable_str(type.get()) > 0) {
        const Handle memory(H5Tcopy(H5T_C_S1), H5Tclose);
        H5Tset_size(memory.get(), H5T_VARIABLE);
        H5Tset_cset(memory.get(), H5Tget_cset(type.get()));
        char* text = nullptr;
        if (H5Aread(attribute.get(), memory.get(), &text) < 0 || text == nullptr)
            throw InputError(file, std::string("attribute ") + name, "not readable", "one text");
        out.assign(text, strnlen(text, kLongestText));
        H5free_memory(text);
        return out;
    }
    const std::size_t size = H5Tget_size(type.get());
    if (size > kLongestText)
        throw InputError(file, std::string("attribute ") + name, "too long", "at most 65536 bytes");
    out.resize(size);
    if (H5Aread(attribute.get(), type.get(), out.data()) < 0)
        throw InputError(file, std::string("attribute ") + name, "not readable", "one text");
    out.resize(strnlen(out.data(), size));
    return out;
}

std::optional<std::int64_t> integer_attribute(const std::string& file, hid_t id, const char* name) {
    const Handle attribute = open_attribute(id, name);
    if (!attribute) return std::nullopt;
    const Handle type(H5Aget_type(attribute.get()), H5Tclose);
    std::int64_t value = 0;
    if (!type || H5Tget_class(type.get()) != H5T_INTEGER || !is_single(attribute) ||
        H5Aread(attribute.get(), H5T_NATIVE_INT64, &value) < 0)
        throw InputError(file, std::string("attribute ") + name, "no integer", "one integer");
    return value;
}

}  // namespace moeplan::hdf5
