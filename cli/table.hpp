#pragma once
/// A table for people: columns aligned, numbers to the right, widths counted in characters and not
/// in bytes.

#include <string>
#include <vector>

namespace moeplan::cli {

class Table {
  public:
    explicit Table(std::vector<std::string> head);
    Table& row(
        std::vector<std::string> cells);  ///< as many cells as the head has; missing ones are empty
    std::string text() const;             ///< lines that end in a newline

  private:
    std::vector<std::vector<std::string>> rows_;
};

}  // namespace moeplan::cli
