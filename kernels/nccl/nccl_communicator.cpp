/// The loader of the NCCL module.
#include "kernels/nccl/nccl_communicator.hpp"

#include <dlfcn.h>

#include "kernels/modules.hpp"

namespace moeplan {
namespace {

constexpr const char* kModuleFile = "moeplan_nccl.so";

NcclEntry find_entry(std::string* why) {
    for (const auto& folder : module_folders()) {
        const auto file = folder / kModuleFile;
        std::error_code ignored;
        if (!std::filesystem::exists(file, ignored)) continue;
        void* handle = dlopen(file.c_str(), RTLD_NOW | RTLD_LOCAL);
        if (!handle) {
            *why = "cannot load " + file.string() + ": " + dlerror();
            return nullptr;
        }
        const auto entry = reinterpret_cast<NcclEntry>(dlsym(handle, kNcclEntry));
        if (!entry) *why = file.string() + " is not a module of moeplan (it exports no " + kNcclEntry + ")";
        return entry;
    }
    *why = std::string("this moeplan has no NCCL module (") + kModuleFile + "): build it where NCCL is beside the CUDA toolkit";
    return nullptr;
}

}  // namespace

std::optional<Communicator> nccl_communicator(const Communicator& hosts, int ordinal, std::string* why) {
    const NcclEntry entry = find_entry(why);
    // Either all ranks use NCCL or none does: a rank that waits in it for one that cannot come would wait for ever.
    if (hosts.all_reduce_max(entry ? 0 : 1) > 0) {
        if (entry) *why = "another rank has no NCCL module";
        return std::nullopt;
    }
    CommunicatorTable table;
    const Status status = entry(kBackendAbi, ordinal, &hosts.table(), &table);
    if (hosts.all_reduce_max(status.code == kOk ? 0 : 1) > 0) {
        *why = status.code == kOk ? "NCCL failed on another rank" : status.message;
        if (status.code == kOk) table.release(table.state);
        return std::nullopt;
    }
    return Communicator(table);
}

}  // namespace moeplan
