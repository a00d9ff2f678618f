/// The step at flow level: every flow shares links by itself, in SimGrid or, where its bookkeeping
/// is the limit, in our own fluid solver.

#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <stdexcept>

#include "core/errors.hpp"
#include "core/stop_signal.hpp"
#include "simulator/step_walk.hpp"

namespace moeplan {
namespace {

/// Above this SimGrid 3.32 is the slow part (each flow is a search through a list of all that
/// live): measured 20–60 µs a flow at 64 ranks, so some seconds a step.
constexpr double kMostSimgridFlows = 60'000;
constexpr std::size_t kMostSimgridRanks = 256;

NetworkModel engine_for(const StepGraph& graph, StepNetwork& network) {
    std::vector<double> uses(graph.exchanges.size(), 0);
    for (const Op& op : graph.ops)
        if (op.exchange) uses[op.demand] += 1;
    double flows = 0;
    std::size_t widest = 0;
    for (std::uint32_t d = 0; d < graph.exchanges.size(); ++d) {
        std::size_t here = 0;
        for (const auto& stage : network.exchange(d).stages) here += stage.flows.size();
        flows += uses[d] * static_cast<double>(here);
        widest = std::max(widest, here);
    }
    return flows <= kMostSimgridFlows && widest <= kMostSimgridRanks * 64 ? NetworkModel::simgrid
                                                                          : NetworkModel::fluid;
}

void write_all(int file, const void* data, std::size_t size) {
    const char* at = static_cast<const char*>(data);
    while (size > 0) {
        const ssize_t n = ::write(file, at, size);
        if (n < 0 && errno == EINTR) continue;
        if (n <= 0) _exit(2);
        at += n;
        size -= static_cast<std::size_t>(n);
    }
}
bool read_all(int file, void* data, std::size_t size) {
    char* at = static_cast<char*>(data);
    while (size > 0) {
        const ssize_t n = ::read(file, at, size);
        if (n < 0 && errno == EINTR) continue;
        if (n <= 0) return false;
        at += n;
        size -= static_cast<std::size_t>(n);
    }
    return true;
}
template <class T>
void write_vector(int file, const std::vector<T>& values) {
    const std::uint64_t size = values.size();
    write_all(file, &size, sizeof size);
    write_all(file, values.data(), values.size() * sizeof(T));
}
template <class T>
bool read_vector(int file, std::vector<T>& values) {
    std::uint64_t size = 0;
    if (!read_all(file, &size, sizeof size)) return false;
    values.resize(size);
    return read_all(file, values.data(), values.size() * sizeof(T));
}

/// One engine a process, and its clock never goes back: the walk runs in a child that has never had
/// one, and hands the times back through a pipe. What it needs is already in memory; nothing is
/// read or printed there.
Timeline walk_in_child(const StepGraph& graph, const StepCase& step, const JobPrices& prices,
                       StepNetwork& network) {
    int ends[2];
    if (::pipe(ends) != 0)
        throw EnvironmentError(std::string("no pipe for the simulation's process: ") +
                               std::strerror(errno));
    const pid_t child = ::fork();
    if (child < 0) {
        ::close(ends[0]);
        ::close(ends[1]);
        throw EnvironmentError(std::string("no process for the simulation: ") +
                               std::strerror(errno));
    }
    if (child == 0) {
        belong_to_parent();
        ::close(ends[0]);
        std::string fault;
        try {
            const Timeline line = walk(graph, step, prices, network, NetworkModel::simgrid);
            const char fine = 1;
            write_all(ends[1], &fine, 1);
            write_all(ends[1], &line.step_time, sizeof line.step_time);
            write_all(ends[1], &line.events, sizeof line.events);
            write_vector(ends[1], line.begin);
            write_vector(ends[1], line.end);
            write_vector(ends[1], line.device);
            write_vector(ends[1], line.carried);
        } catch (const std::exception& error) {
            fault = error.what();
            const char wrong = 0;
            write_all(ends[1], &wrong, 1);
            write_vector(ends[1], std::vector<char>(fault.begin(), fault.end()));
        }
        _exit(0);  // no destructors: they belong to the parent
    }
    ::close(ends[1]);
    Timeline line;
    line.model = NetworkModel::simgrid;
    char fine = 0;
    std::vector<char> fault;
    bool whole = read_all(ends[0], &fine, 1);
    if (whole && fine)
        whole = read_all(ends[0], &line.step_time, sizeof line.step_time) &&
                read_all(ends[0], &line.events, sizeof line.events) &&
                read_vector(ends[0], line.begin) && read_vector(ends[0], line.end) &&
                read_vector(ends[0], line.device) && read_vector(ends[0], line.carried);
    else if (whole)
        whole = read_vector(ends[0], fault);
    ::close(ends[0]);
    int status = 0;
    while (::waitpid(child, &status, 0) < 0 && errno == EINTR) {
    }
    if (!fault.empty())
        throw std::runtime_error("flow simulation: " + std::string(fault.begin(), fault.end()));
    if (!whole)
        throw EnvironmentError("the simulation's process ended early (status " +
                               std::to_string(status) + "): out of memory?");
    return line;
}

}  // namespace

Timeline simulate_flows(const StepGraph& graph, const StepCase& step, const JobPrices& prices,
                        StepNetwork& network) {
    const NetworkModel model = engine_for(graph, network);
    return model == NetworkModel::simgrid ? walk_in_child(graph, step, prices, network)
                                          : walk(graph, step, prices, network, model);
}

Timeline simulate_flows(const StepGraph& graph, const StepCase& step) {
    StepNetwork network(step, graph);
    return simulate_flows(graph, step, price_jobs(graph, step), network);
}

StepReport simulate_step(const StepCase& step) {
    const StepGraph graph = build_step_graph(step);
    const JobPrices prices = price_jobs(graph, step);
    StepNetwork network(step, graph);
    const Timeline line = simulate_flows(graph, step, prices, network);
    return report(step, graph, prices, line, network, Fidelity::flow);
}

}  // namespace moeplan
