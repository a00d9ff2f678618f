#pragma once
/// A picture's worth of a graph: GPUs in a row, what joins them within a node or rack below it,
/// what joins nodes above it.

#include <cstdint>
#include <string>
#include <vector>

#include "core/enum_names.hpp"
#include "simulator/link_graph.hpp"

namespace moeplan {

enum class VertexKind : std::uint8_t {
    gpu,
    nv_switch,
    nic,
    leaf,         ///< switch that NICs are ports of
    spine,        ///< switch that leaves are ports of
    other_switch  ///< of a tree, or of a file that does not say what it is
};

struct Drawing {
    struct Vertex {
        std::string name;
        VertexKind kind = VertexKind::other_switch;
        int row = 0;    ///< lines to the nearest GPU; negative where all of them are scale-up
        int node = -1;  ///< that it is a part of; −1: of none, or nodes are single GPUs
    };
    struct Line {
        std::uint32_t from = 0, to = 0;  ///< of vertices
        BytesPerSecond bandwidth;        ///< one way; 0: a NIC's place beside its GPU
        Level level = Level::scale_up;
    };
    std::vector<Vertex> vertices;  ///< row by row, each from left to right
    std::vector<Line> lines;
    int gpus_left_out = 0;
};

/// Of the first and the last nodes, as many as have `most_gpus` between them, two at least: where
/// there are racks or several leaves a rail, some of both ends and the way between them.
Drawing drawing_of(const LinkGraph& graph, int most_gpus = 32);

template <>
const EnumNames<VertexKind>& enum_names<VertexKind>();

}  // namespace moeplan
