#include "cli/report/assets.hpp"

// The files as they are, placed by the assembler; the paths come from CMake, which also makes this
// file depend on them.
#define MOEPLAN_EMBED(symbol, path)                                                        \
    asm(".section .rodata\n.balign 16\n" #symbol "_begin:\n.incbin \"" path "\"\n" #symbol \
        "_end:\n.byte 0\n.previous\n");                                                    \
    extern "C" const char symbol##_begin[], symbol##_end[];

MOEPLAN_EMBED(moeplan_chart_library, MOEPLAN_CHART_LIBRARY)
MOEPLAN_EMBED(moeplan_page_script, MOEPLAN_PAGE_SCRIPT)
MOEPLAN_EMBED(moeplan_page_style, MOEPLAN_PAGE_STYLE)

namespace moeplan::cli {

std::string_view chart_library() {
    return {moeplan_chart_library_begin, moeplan_chart_library_end};
}
std::string_view page_script() { return {moeplan_page_script_begin, moeplan_page_script_end}; }
std::string_view page_style() { return {moeplan_page_style_begin, moeplan_page_style_end}; }

}  // namespace moeplan::cli
