#include "cli/table.hpp"

#include <algorithm>
#include <cctype>
#include <utility>

namespace moeplan::cli {
namespace {

/// Characters of UTF-8 text: bytes that do not continue one.
std::size_t width(const std::string& text) {
    return static_cast<std::size_t>(std::count_if(
        text.begin(), text.end(), [](unsigned char c) { return (c & 0xC0) != 0x80; }));
}

bool numeric(const std::string& text) {
    return !text.empty() && (std::isdigit(static_cast<unsigned char>(text[0])) ||
                             ((text[0] == '-' || text[0] == '+') && text.size() > 1 &&
                              std::isdigit(static_cast<unsigned char>(text[1]))));
}

}  // namespace

Table::Table(std::vector<std::string> head) { rows_.push_back(std::move(head)); }

Table& Table::row(std::vector<std::string> cells) {
    cells.resize(rows_[0].size());
    rows_.push_back(std::move(cells));
    return *this;
}

std::string Table::text() const {
    const std::size_t columns = rows_[0].size();
    std::vector<std::size_t> widths(columns);
    std::vector<bool> right(columns, rows_.size() > 1);
    for (std::size_t r = 0; r < rows_.size(); ++r)
        for (std::size_t c = 0; c < columns; ++c) {
            widths[c] = std::max(widths[c], width(rows_[r][c]));
            if (r > 0 && !rows_[r][c].empty() && rows_[r][c] != "–" && !numeric(rows_[r][c]))
                right[c] = false;
        }
    std::string out;
    for (const auto& row : rows_) {
        std::string line;
        for (std::size_t c = 0; c < columns; ++c) {
            const std::string pad(widths[c] - width(row[c]), ' ');
            line += (c > 0 ? "  " : "") + (right[c] ? pad + row[c] : row[c] + pad);
        }
        line.erase(line.find_last_not_of(' ') + 1);
        out += line + "\n";
    }
    return out;
}

}  // namespace moeplan::cli
