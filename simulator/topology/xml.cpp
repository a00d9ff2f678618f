#include "simulator/topology/xml.hpp"

#include <expat.h>
#include <fmt/format.h>

#include <memory>

#include "core/errors.hpp"

namespace moeplan {
namespace {

constexpr std::size_t kDeepest = 64, kMostElements = 2'000'000;

struct Building {
    XML_Parser parser = nullptr;
    XmlElement top;                          // its only child is the root
    std::vector<XmlElement*> open;
    std::size_t elements = 0;
    std::string refused;
};

// expat calls these through C: nothing may be thrown across it.
void XMLCALL on_start(void* user, const XML_Char* name, const XML_Char** attributes) {
    auto& at = *static_cast<Building*>(user);
    if (at.open.size() > kDeepest || ++at.elements > kMostElements) {
        at.refused = fmt::format("at most {} elements, nested at most {} deep", kMostElements, kDeepest);
        XML_StopParser(at.parser, XML_FALSE);
        return;
    }
    XmlElement& element = at.open.back()->children.emplace_back();
    element.name = name;
    element.line = static_cast<long>(XML_GetCurrentLineNumber(at.parser));
    for (; *attributes; attributes += 2) element.attributes.emplace(attributes[0], attributes[1]);
    at.open.push_back(&element);
}

void XMLCALL on_end(void* user, const XML_Char*) { static_cast<Building*>(user)->open.pop_back(); }

}  // namespace

std::string XmlElement::get(const std::string& key, const std::string& otherwise) const {
    const auto at = attributes.find(key);
    return at == attributes.end() ? otherwise : at->second;
}

XmlElement parse_xml(std::string_view text, const std::string& file) {
    const std::unique_ptr<XML_ParserStruct, decltype(&XML_ParserFree)> parser(
        XML_ParserCreate(nullptr), &XML_ParserFree);
    if (!parser) throw EnvironmentError("expat: no memory for a parser");
    Building building;
    building.parser = parser.get();
    building.open.push_back(&building.top);
    XML_SetUserData(parser.get(), &building);
    XML_SetElementHandler(parser.get(), on_start, on_end);
    // In pieces: expat counts lengths in int.
    for (std::size_t at = 0; at < text.size() || at == 0;) {
        const std::size_t length = std::min<std::size_t>(text.size() - at, 1 << 24);
        const bool last = at + length >= text.size();
        if (XML_Parse(parser.get(), text.data() + at, static_cast<int>(length), last) == XML_STATUS_ERROR) {
            const auto line = fmt::format("line {}", XML_GetCurrentLineNumber(parser.get()));
            if (!building.refused.empty()) throw InputError(file, line, "", building.refused);
            throw InputError(file, line, XML_ErrorString(XML_GetErrorCode(parser.get())),
                             "well-formed XML (the file may be cut off)");
        }
        at += length;
        if (last) break;
    }
    return std::move(building.top.children.front());
}

}  // namespace moeplan
