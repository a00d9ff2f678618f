#pragma once
/// From the formats that documentation comes in to plain text. All of them take any bytes and
/// return some text.

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

namespace moeplan::text {

/// A man page in the man(7) macros: fill mode joined, fonts and comments dropped, headings on lines
/// of their own.
std::string roff_to_text(std::string_view page);

/// Perl's POD, one document for each =head1.
std::vector<std::string> pod_to_texts(std::string_view pod);

/// HTML without head, scripts, styles and navigation (DocBook's navheader, navfooter and toc).
std::string html_to_text(std::string_view page);

/// Entries of a dictd dictionary: the index names them, `dict` is the inflated .dict.dz. Entries
/// that the index points outside of `dict` are left out; an entry under many headwords comes once.
std::vector<std::string> dictd_entries(std::string_view index, std::string_view dict);

/// fortune(6) cookies, which lines of a single % part.
std::vector<std::string> fortune_cookies(std::string_view file);

/// Inflates gzip (dictzip too). Stops with what it has at damage or at `limit` bytes.
std::string gunzip(std::string_view bytes, std::size_t limit = std::size_t{128} << 20);

/// Valid UTF-8 (each wrong byte becomes U+FFFD), no control characters but line feed and tab, no
/// spaces at line ends, at most one empty line in a row.
std::string clean(std::string_view text);

}  // namespace moeplan::text
