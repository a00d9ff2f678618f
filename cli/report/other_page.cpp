#include "cli/report/other_page.hpp"

#include <fmt/format.h>

#include <string>
#include <utility>
#include <vector>

#include "cli/report/values.hpp"

namespace moeplan::cli {

void add_other_sections(Page& page, const JsonReader& r) {
    std::vector<std::pair<std::string, std::string>> single;
    for (const auto& [key, value] : r.members()) {
        if (key == "$schema" || key == "version" || value.is_array()) continue;
        if (!value.is_object()) {
            single.push_back({spaced(key), value_text(key, value)});
            continue;
        }
        for (const auto& [inner, inner_value] : value.members())
            if (!inner_value.is_object() && !inner_value.is_array())
                single.push_back(
                    {spaced(key) + ", " + spaced(inner), value_text(inner, inner_value)});
    }
    if (!single.empty()) page.facts(single);
    for (const auto& [key, value] : r.members()) {
        if (!value.is_array() || value.size() == 0 || !value.at(std::size_t{0}).is_object())
            continue;
        std::vector<std::string> head, keys;
        for (const auto& [column, cell] : value.at(std::size_t{0}).members())
            if (!cell.is_object() && !cell.is_array()) {
                keys.push_back(column);
                head.push_back(spaced(column));
            }
        std::vector<std::vector<std::string>> rows;
        for (const auto& item : value.items()) {
            if (!item.is_object() || rows.size() >= kMostRows) break;
            auto& row = rows.emplace_back();
            for (const auto& column : keys)
                row.push_back(item.has(column) ? value_text(column, item.at(column)) : "–");
        }
        page.paragraph(capital(spaced(key)) +
                       (value.size() > rows.size()
                            ? fmt::format(", the first {} of {}", rows.size(), value.size())
                            : ""));
        page.table(head, rows);
    }
}

void add_comparison_sections(Page& page, const JsonReader& r) {
    std::vector<std::vector<std::string>> rows;
    if (const auto fields = r.find("fields"))
        for (const auto& field : fields->items()) {
            std::vector<std::string> row;
            for (const auto& [key, value] : field.members()) row.push_back(value_text(key, value));
            rows.push_back(std::move(row));
            if (rows.size() == 1)
                for (auto& cell : rows[0]) cell = cell.empty() ? "–" : cell;
        }
    if (!rows.empty()) {
        std::vector<std::string> head;
        for (const auto& [key, value] : r.at("fields").at(std::size_t{0}).members())
            head.push_back(spaced(key));
        page.table(head, rows);
    }
}

}  // namespace moeplan::cli
