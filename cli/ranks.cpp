#include "cli/ranks.hpp"

#include <cstdio>

#include "cli/command.hpp"
#include "core/errors.hpp"
#include "core/stop_signal.hpp"
#include "model/train.hpp"

namespace moeplan::cli {

int on_every_rank(const Communicator& world, const std::function<int()>& body) {
    if (world.size() == 1) return body();
    try {
        return body();
    } catch (const InputError& error) {
        if (world.rank() == 0) std::fprintf(stderr, "moeplan: %s\n", error.what());
        world.abort(kWrongInput);
    } catch (const Diverged& error) {
        if (world.rank() == 0) std::fprintf(stderr, "moeplan: %s\n", error.what());
        world.abort(kMachineLacks);
    } catch (const Stopped&) {
        throw;  // told by a signal, as all of them were
    } catch (const std::exception& error) {
        std::fprintf(stderr, "moeplan: rank %d: %s\n", world.rank(), error.what());
        world.abort(kMachineLacks);
    }
}

}  // namespace moeplan::cli
