/// The loader: the CPU is built in, other devices are modules that are opened when they are asked
/// for.
#include "kernels/backend.hpp"

#include <dlfcn.h>

#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <map>
#include <mutex>
#include <optional>
#include <utility>
#include <vector>

#include "core/data_files.hpp"
#include "core/errors.hpp"
#include "kernels/cpu/cpu_backend.hpp"
#include "kernels/modules.hpp"

namespace moeplan {

template <>
const EnumNames<Device>& enum_names<Device>() {
    static const EnumNames<Device> names = {{Device::cpu, "cpu"}, {Device::cuda, "cuda"}};
    return names;
}

void check(const Status& status, std::string_view call) {
    if (status.code == kOk) return;
    throw EnvironmentError(std::string(call) + ": " +
                           (status.message[0] ? status.message : "failed without a message"));
}

std::vector<std::filesystem::path> module_folders() {
    std::vector<std::filesystem::path> folders;
    if (const char* from_environment = std::getenv("MOEPLAN_MODULES"))
        folders.emplace_back(from_environment);
    const auto binary = own_binary().parent_path();
    for (const char* relative :
         {".", "kernels", "../lib/moeplan", "../lib/x86_64-linux-gnu/moeplan", ".."})
        folders.push_back(binary / relative);
    return folders;
}

namespace {

constexpr const char* kModuleFile = "moeplan_cuda.so";

struct Loaded {
    std::optional<Backend> backend;
    std::string why_missing;
};

Loaded load_module(int ordinal) {
    std::string looked;
    for (const auto& folder : module_folders()) {
        const auto file = folder / kModuleFile;
        std::error_code ignored;
        if (!std::filesystem::exists(file, ignored)) {
            looked += (looked.empty() ? "" : ", ") + folder.lexically_normal().string();
            continue;
        }
        // RTLD_LOCAL: the module brings its own copy of what it links; nothing of it may shadow
        // ours.
        void* handle = dlopen(file.c_str(), RTLD_NOW | RTLD_LOCAL);
        if (!handle)
            return {std::nullopt,
                    "cannot load " + file.string() + ": " + dlerror() +
                        ". It needs NVIDIA's driver (libcuda.so.1) and the CUDA runtime it was "
                        "built with; `nvidia-smi` tells whether the driver works"};
        const auto entry = reinterpret_cast<ModuleEntry>(dlsym(handle, kModuleEntry));
        if (!entry)
            return {std::nullopt, file.string() + " is not a module of moeplan (it exports no " +
                                      kModuleEntry + ")"};
        Backend backend;
        const Status status = entry(kBackendAbi, ordinal, &backend);
        if (status.code != kOk) return {std::nullopt, file.string() + ": " + status.message};
        return {backend, {}};
    }
    return {std::nullopt,
            std::string("this moeplan has no CUDA module: ") + kModuleFile + " is in none of " +
                looked + ". Build it where nvcc is (cmake --preset cuda), or use --device cpu"};
}

const Loaded& loaded(int ordinal) {
    static std::mutex mutex;
    static std::map<int, Loaded> modules;
    const std::lock_guard lock(mutex);
    const auto found = modules.find(ordinal);
    return found != modules.end() ? found->second
                                  : modules.emplace(ordinal, load_module(ordinal)).first->second;
}

}  // namespace

const Backend& backend_for(Device device, int ordinal) {
    if (device == Device::cpu) return cpu_backend();
    const Loaded& module = loaded(ordinal);
    if (!module.backend)
        throw EnvironmentError("cuda:" + std::to_string(ordinal) + ": " + module.why_missing);
    return *module.backend;
}

std::vector<std::string> choices_of(const Backend& backend) {
    std::vector<std::string> lines;
    if (backend.choices)
        backend.choices(&lines, [](void* to, const char* line) {
            static_cast<std::vector<std::string>*>(to)->emplace_back(line);
        });
    return lines;
}

std::string why_missing(Device device, int ordinal) {
    return device == Device::cpu ? "" : loaded(ordinal).why_missing;
}

DeviceName device_from(std::string_view flag, std::string_view text) {
    if (text == "cpu") return {};
    if (text == "cuda") return {Device::cuda, 0};
    constexpr std::string_view prefix = "cuda:";
    if (text.starts_with(prefix)) {
        const std::string number(text.substr(prefix.size()));
        if (!number.empty() && number.size() <= 3 &&
            number.find_first_not_of("0123456789") == std::string::npos)
            return {Device::cuda, std::stoi(number)};
    }
    throw InputError(std::string(flag), "", std::string(text), "cpu, cuda or cuda:N");
}

}  // namespace moeplan
