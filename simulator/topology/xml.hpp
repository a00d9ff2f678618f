#pragma once
/// XML as a tree, from files we do not trust: bounded in size and depth, no entity is ever fetched.

#include <map>
#include <string>
#include <string_view>
#include <vector>

namespace moeplan {

struct XmlElement {
    std::string name;
    std::map<std::string, std::string> attributes;
    std::vector<XmlElement> children;
    long line = 0;

    /// Value of an attribute, or `otherwise`.
    std::string get(const std::string& key, const std::string& otherwise = "") const;
    bool has(const std::string& key) const { return attributes.count(key) > 0; }
};

/// The root element. @throws InputError naming the line
XmlElement parse_xml(std::string_view text, const std::string& file);

}  // namespace moeplan
